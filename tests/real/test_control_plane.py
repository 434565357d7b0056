"""A real control plane fails in mid-drill: API server, etcd, kubelet, the path to them, the token.

One workload for all; each test leaves the lab as it was. What a run must be like whatever happens is `sound`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaosrunner.cluster import Cluster
from chaosrunner.cluster.resources import NODES, PDBS, PODS, Resource
from chaosrunner.timeline import rows
from tests.engine import drills
from tests.engine.drills import BASELINE, Ran, hold
from tests.engine.lab import Lab, wait_for
from tests.engine.outages import MOMENTS, sound
from tests.labs import RealLab, real_lab_command
from tests.real import tokens
from tests.real.serving import Serving, serving

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(180)]

SPEC = {
    "nodes": 3,
    "replicas": 2,
    "startup": "500ms",
    "grace": 8,
    "pre_stop": "1s",
    "model": {"tokens_per_second": 100, "max_sequences": 8, "sigterm": "drain"},
    "gateway": {"pod_header": "x-served-by", "propagation_delay": "100ms"},
    "pdb": {"max_unavailable": 1},
}
CORDON = {"cordon": {"nodes": 1, "of": "workload"}}
WAIT = {"wait": {"until": "replacement.ready and endpoints_back", "timeout": "90s"}}
STEPS = [BASELINE, CORDON, {"evict": {"pods": 1}}, WAIT, hold(0.5)]

LIVES = 8
"""Seconds that a token is good for, long enough for a drill to begin."""

REMEMBERED = 10
"""Seconds for which an authenticator remembers that a token was good."""

CLIENTS = ("kube-controller-manager", "kube-scheduler")
"""They, and kubelets, ask again after pauses that double up to 30 s and are not forgotten for two minutes (client-go's
reflector): after one outage they are told to begin anew, so that the next one finds them as the first did."""

ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)


@pytest.fixture(scope="module")
def workload(real_lab: RealLab) -> Iterator[Serving]:
    with serving(real_lab.state, SPEC) as made:
        yield made


@pytest.fixture
def lab(workload: Serving, real_lab: RealLab) -> Iterator[Lab]:
    """The workload as the engine's tests see one; afterwards all its Pods and nodes are Ready."""
    ready, servers = workload.ready, [pid(real_lab, name) for name in ("etcd", "kube-apiserver")]
    made = Lab(
        kubeconfig=ready.kubeconfig,
        context=ready.context,
        namespace=ready.namespace,
        url=ready.url,
        prometheus="",
        log="",
        control="",
        pod_header=ready.pod_header,
        pid=0,
    )
    yield made
    if servers != [pid(real_lab, name) for name in ("etcd", "kube-apiserver")]:
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(again, real_lab), CLIENTS + tuple(f"kubelet@{node}" for node in real_lab.nodes)))
    made.restore()
    wait_for(lambda: steadily(partial(whole, made)), 60)


def steadily(holds: Callable[[], bool], seconds: float = 3.0) -> bool:
    """Whether it holds for that long: a kubelet that begins anew calls its Pods unready for a moment."""
    end = time.monotonic() + seconds
    while held := holds():
        if time.monotonic() > end:
            break
        time.sleep(0.2)
    return held


def whole(lab: Lab) -> bool:
    async def read(cluster: Cluster) -> bool:
        pods = (await cluster.list(PODS, lab.namespace, label_selector="app=model")).items
        found = [*pods, *(await cluster.list(NODES)).items]
        ready = [c["status"] for one in found for c in one["status"].get("conditions", []) if c["type"] == "Ready"]
        leaving = any(pod["metadata"].get("deletionTimestamp") for pod in pods)
        (budget,) = (await cluster.list(PDBS, lab.namespace)).items
        allowed = budget["status"]["disruptionsAllowed"] == 1
        return len(pods) == SPEC["replicas"] and not leaving and set(ready) == {"True"} and allowed

    return bool(lab.ask(read))


@dataclass
class Trouble:
    """What is done when a row says that it is time: at once, and then beside the drill."""

    now: Callable[[], None]
    then: Callable[[], None]


class Beside:
    """Makes a trouble at its moment."""

    def __init__(self, moment: str, trouble: Trouble) -> None:
        self._moment = MOMENTS[moment]
        self._trouble = trouble
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def on_row(self, row: rows.Row) -> None:
        if self._thread is None and self._moment(row):
            self._trouble.now()
            self._thread = threading.Thread(target=self._run)
            self._thread.start()

    def _run(self) -> None:
        try:
            self._trouble.then()
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        assert self._thread is not None, "the moment never came"
        self._thread.join()
        if self._error is not None:
            raise self._error


def nothing() -> None:
    pass


def killed(lab: RealLab, component: str, away: float = 0.0) -> Trouble:
    """SIGKILL, in the very moment, and a new start `away` seconds later."""
    process = pid(lab, component)

    def start() -> None:
        time.sleep(away)
        real_lab_command("start", component, state=lab.state)

    return Trouble(lambda: os.kill(process, signal.SIGKILL), start)


def again(lab: RealLab, component: str, away: float = 0.0) -> None:
    real_lab_command("kill", component, state=lab.state)
    time.sleep(away)
    real_lab_command("start", component, state=lab.state)


def pid(lab: RealLab, component: str) -> int:
    """The process of a component of the control plane."""
    words = (component, str(lab.state))
    (found,) = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _mentions(path, *words)]
    return found


def _mentions(path: Path, program: str, folder: str) -> bool:
    """Whether a process is this program of the lab in this folder."""
    try:
        words = path.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return words[1:2] == [program] and any(folder in word for word in words)


def run(
    lab: Lab,
    folder: Path,
    moment: str,
    trouble: Trouble,
    steps: list[drills.Step] = STEPS,
    *,
    kubeconfig: str | None = None,
    **playbook: Any,
) -> Ran:
    path = drills.write(folder, lab, steps, playbook=playbook)
    before = lab.nodes()
    beside = Beside(moment, trouble)
    try:
        ran = drills.run(path, lab, folder, kubeconfig=kubeconfig, on_row=beside.on_row)
    finally:
        beside.end()
    sound(ran, lab, before)
    return ran


def went_on(ran: Ran) -> None:
    assert {result for _, result in ran.steps()} == {"ok"}, ran.facts.reason
    assert (ran.facts.verdict, ran.facts.exit_code) == ("passed", 0), ran.facts.reason


def reasons(ran: Ran) -> set[str | None]:
    return {row.reason for row in ran.of(rows.Watch) if row.event == "gap_opened"}


def closures(ran: Ran) -> set[str | None]:
    return {row.reason for row in ran.of(rows.Watch) if row.event == "gap_closed"}


@pytest.mark.parametrize("moment", ["before the fault", "eviction sent", "undo sent"])
def test_an_api_server_that_is_started_anew(real_lab: RealLab, lab: Lab, tmp_path: Path, moment: str) -> None:
    ran = run(lab, tmp_path, moment, killed(real_lab, "kube-apiserver"))
    went_on(ran)
    assert len(ran.facts.replacements) == 1
    if moment != "undo sent":  # there the run may end first
        assert "relisted" in closures(ran)  # a new start knows no version from before: 410


def test_an_api_server_that_is_away_at_the_very_end(real_lab: RealLab, lab: Lab, tmp_path: Path) -> None:
    ran = run(lab, tmp_path, "end", killed(real_lab, "kube-apiserver", 8.0))
    assert {result for _, result in ran.steps()} == {"ok"}
    assert ran.facts.verdict == "inconclusive"
    assert "nothing is known of" in ran.facts.reason
    assert "to the end of the recording" in ran.facts.reason


def test_an_api_server_that_is_away_for_long(real_lab: RealLab, lab: Lab, tmp_path: Path) -> None:
    """With the eviction's answer outstanding, and longer than nodes may keep silent (`NODE_GRACE`)."""
    ran = run(lab, tmp_path, "eviction sent", killed(real_lab, "kube-apiserver", 8.0))
    went_on(ran)
    gap = next(gap for gap in ran.facts.gaps if gap.resource == "pods")
    assert gap.end is not None
    assert gap.end - gap.begin > 8
    assert len(ran.facts.replacements) == 1


def test_etcd_stands_still(real_lab: RealLab, lab: Lab, tmp_path: Path) -> None:
    ran = run(lab, tmp_path, "cordon sent", killed(real_lab, "etcd", 3.0))
    went_on(ran)
    assert len(ran.facts.replacements) == 1


def test_a_kubelet_that_is_started_anew_is_no_restart_of_its_containers(
    real_lab: RealLab, lab: Lab, tmp_path: Path
) -> None:
    (node, *_) = lab.workload_nodes()
    checks = ["restarts == 0", "success_rate == 1", "zero_ready_seconds == 0"]
    steps: list[drills.Step] = [BASELINE, {"wait": {"until": "pods_ready >= 2", "timeout": "10s"}}, hold(6)]

    restart = partial(again, real_lab, f"kubelet@{node}", 1.0)
    ran = run(lab, tmp_path, "wait", Trouble(nothing, restart), steps, checks=checks)
    went_on(ran)
    assert ran.facts.gaps == []
    assert ran.facts.disruptions == []
    assert {check.verdict for check in ran.facts.checks} == {"passed"}


@contextmanager
def dropping() -> Iterator[Callable[[], None]]:
    """What drops every packet of the connections that this process has to the API server at that moment."""

    def drop() -> None:
        sockets = subprocess.run(["ss", "-Htnp", "dport", "=", ":6443"], capture_output=True, text=True, check=True)
        mine = [line for line in sockets.stdout.splitlines() if f"pid={os.getpid()}," in line]
        ports = {match[1] for line in mine if (match := re.search(r":(\d+)\s+\S+:6443\s", line))}
        assert ports
        chosen = ", ".join(sorted(ports))
        rules = "".join(
            f"add chain inet chaosrunner_test {hook} {{ type filter hook {hook} priority 0; }}\n"
            f"add rule inet chaosrunner_test {hook} tcp {end} {{ {chosen} }} drop\n"
            for hook, end in (("output", "sport"), ("input", "dport"))
        )
        subprocess.run(["nft", "-f", "-"], input=f"add table inet chaosrunner_test\n{rules}", text=True, check=True)

    try:
        yield drop
    finally:
        subprocess.run(["nft", "delete", "table", "inet", "chaosrunner_test"], check=False, capture_output=True)


def test_watches_whose_packets_are_dropped(real_lab: RealLab, lab: Lab, tmp_path: Path) -> None:
    """No end of the connection is told; new connections are made."""
    with dropping() as drop:
        ran = run(lab, tmp_path, "eviction sent", Trouble(drop, nothing))
    went_on(ran)
    gap = next(gap for gap in ran.facts.gaps if gap.resource == "pods")
    assert gap.end is not None
    assert gap.end - gap.begin < 15
    assert len(ran.facts.replacements) == 1


def test_a_token_that_is_refreshed_too_late(workload: Serving, real_lab: RealLab, lab: Lab, tmp_path: Path) -> None:
    """401 for some seconds, with a right that is there: a gap, and the drill goes on."""
    name, file = "late", tmp_path / "token"
    admin, namespace = workload.admin, workload.namespace
    binding = {
        "metadata": {"name": f"{namespace}-{name}"},
        "roleRef": {"apiGroup": BINDINGS.group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    made = workload.portal.call(partial(admin.create, ACCOUNTS, {"metadata": {"name": name}}, namespace))
    uid = made.body["metadata"]["uid"]
    workload.portal.call(partial(admin.create, BINDINGS, binding))
    config = yaml.safe_load(Path(lab.kubeconfig).read_text())
    config["users"] = [{"name": user["name"], "user": {"tokenFile": str(file)}} for user in config["users"]]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))

    def write(lives: float) -> None:
        file.write_text(tokens.sign(real_lab.state, namespace, name, uid, lives=lives))

    def renew() -> None:
        time.sleep(LIVES + REMEMBERED + 4)
        write(3600)

    try:
        write(LIVES)
        steps: list[drills.Step] = [BASELINE, CORDON, hold(LIVES + REMEMBERED), {"evict": {"pods": 1}}, WAIT]
        ran = run(lab, tmp_path, "baseline", Trouble(nothing, renew), steps, kubeconfig=str(kubeconfig))
    finally:
        workload.portal.call(partial(admin.delete, BINDINGS, f"{namespace}-{name}"))
        workload.portal.call(partial(admin.delete, ACCOUNTS, name, namespace))
    went_on(ran)
    assert reasons(ran) == {"unauthorized"}


def test_the_lab_is_whole(real_lab: RealLab, lab: Lab) -> None:
    """After all this: every node is Ready, nothing of a drill is left."""
    assert whole(lab)
    assert lab.cordoned() == []
    assert lab.leases() == []
