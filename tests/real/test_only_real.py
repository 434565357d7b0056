"""What only a real Kubernetes shows, recorded by drills of our own, and what they conclude from it.

Where something is done from outside while a drill runs, containerd's and the kubelet's own word says when.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from chaosrunner.analysis.facts import ALL, Facts, Finding
from chaosrunner.cli import lab_process
from chaosrunner.cluster import budget, connect
from chaosrunner.plan.plan import Plan, make_plan
from chaosrunner.playbook import load_drill
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from tests.drills.rehearsal import load
from tests.engine import drills
from tests.engine.drills import Ran, hold
from tests.engine.proxy import Call, Proxy
from tests.labs import Json, RealLab
from tests.real.serving import Serving, serving
from tests.real.truth import Truth

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

BASELINE = {"baseline": {"for": "1s", "until": "success_rate >= 0.9", "timeout": "20s"}}

SLACK = 1.0
"""Seconds that a busy machine may keep back what everybody agrees on."""


class Hand:
    """Does something from outside once a step of the drill begins, in a thread of its own."""

    def __init__(self, step: str, work: Callable[[], None]) -> None:
        self._step = step
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._failed: list[Exception] = []
        self.began = self.done = 0.0
        """Unix seconds."""

    def on_row(self, row: rows.Row) -> None:
        if isinstance(row, rows.Step) and (row.name, row.event) == (self._step, "started"):
            self._thread.start()

    def join(self) -> None:
        """Raises what went wrong."""
        self._thread.join()
        for error in self._failed:
            raise error

    def _run(self) -> None:
        self.began = time.time()
        try:
            self._work()
            self.done = time.time()
        except Exception as error:
            self._failed.append(error)


def run(path: Path, workload: Serving, timelines: Path, *hands: Hand, **options: Any) -> Ran:
    def on_row(row: rows.Row) -> None:
        for hand in hands:
            hand.on_row(row)

    ran = drills.run(path, workload.ready, timelines, on_row=on_row, request_timeout=30.0, **options)
    for hand in hands:
        hand.join()
    return ran


def load_of(concurrency: int, **more: Any) -> dict[str, Any]:
    return {"load": {"closed": {"concurrency": concurrency, "ramp": "500ms"}}} | more


def pods(lab: RealLab, workload: Serving, app: str = "model") -> list[Json]:
    path = f"/api/v1/namespaces/{workload.namespace}/pods"
    return list(lab.admin.request("GET", path, query={"labelSelector": f"app={app}"}).body["items"])


def container_of(pod: Json) -> str:
    return str(pod["status"]["containerStatuses"][0]["containerID"])


def anchor(ran: Ran) -> float:
    """Unix seconds of the recording's zero."""
    return next(row.wall - row.at for row in ran.of(rows.Clock))


def only(facts: Facts, code: str) -> Finding:
    found = [finding for finding in facts.findings if finding.code == code]
    assert len(found) == 1, facts.findings
    return found[0]


def codes(facts: Facts) -> set[str]:
    return {finding.code for finding in facts.findings}


def instants(pattern: str, text: str) -> tuple[float, ...]:
    found = re.search(pattern, text)
    assert found, text
    return tuple(map(float, found.groups()))


def changes(ran: Ran, uid: str) -> Iterator[tuple[float, bool]]:
    """(at, ready) of an endpoint, whenever that is another."""
    last: bool | None = None
    for row in ran.of(rows.EndpointSlice):
        state = any(one.ready for one in row.endpoints if one.uid == uid)
        if state != last:
            yield row.at, state
            last = state


@pytest.fixture(scope="module")
def graceful(real_lab: RealLab) -> Iterator[Serving]:
    """Three replicas that let their streams end (preStop sleeps 3 s, then they drain); each drill leaves three."""
    with serving(real_lab.state, lab_process.lab_spec(load("lab-evict-one-replica-graceful"))) as made:
        yield made


# --- a failed precondition burns the budget ---------------------------------------------------------------------------


def store(image: str) -> tuple[Json, Json]:
    """Two Pods whose names stay when they are replaced, and a budget of one."""
    labels = {"app": "store"}
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": ["sleep", "1000000"]}
    spec = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False, "containers": [container]}
    return (
        {
            "metadata": {"name": "store"},
            "spec": {
                "serviceName": "store",
                "replicas": 2,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        },
        {"metadata": {"name": "store"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}}},
    )


@contextmanager
def plain(lab: RealLab) -> Iterator[str]:
    """URL at which the API server is reached without TLS: kubectl adds it, and the administrator's identity."""
    command = ["kubectl", f"--kubeconfig={lab.kubeconfig}", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield f"http://{line.split()[-1]}"
        process.terminate()


def kubeconfig(workload: Serving, server: str, folder: Path) -> str:
    """A kubeconfig without credentials for another address of the API server."""
    config = yaml.safe_load(Path(workload.ready.kubeconfig).read_text())
    for entry in config["clusters"]:
        entry["cluster"] = {"server": server}
    for entry in config["users"]:
        entry["user"] = {}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_a_failed_precondition_burns_the_budget(graceful: Serving, real_lab: RealLab, tmp_path: Path) -> None:
    """The Pod is replaced, under its name, between our look at it and our eviction."""
    space, ask = graceful.namespace, real_lab.admin.request
    stateful, pdb = store(real_lab.image)
    ask("POST", f"/apis/apps/v1/namespaces/{space}/statefulsets", stateful)
    ask("POST", f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets", pdb)

    def allowed() -> int:
        found = ask("GET", f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets/store").body
        status = found.get("status", {})
        return int(status.get("disruptionsAllowed", 0)) if status.get("currentHealthy") == 2 else 0

    def wait() -> None:
        end = time.monotonic() + 30
        while not allowed():
            assert time.monotonic() < end, "the budget does not allow a disruption"
            time.sleep(0.1)

    def replace(call: Call) -> None:
        if call.mutating and call.path.endswith("/eviction") and not replaced:
            name = call.path.split("/")[-2]
            replaced.append(name)
            path = f"/api/v1/namespaces/{space}/pods/{name}"
            old = ask("GET", path).body["metadata"]["uid"]
            ask("DELETE", path, {"gracePeriodSeconds": 0})
            end = time.monotonic() + 30
            while (found := ask("GET", path)).status == 404 or found.body["metadata"]["uid"] == old:
                assert time.monotonic() < end, "the Pod is not replaced"
                time.sleep(0.05)
            wait()

    replaced: list[str] = []
    wait()
    steps = [BASELINE, {"evict": {"pods": 1, "expect": "precondition_failed"}}, {"evict": {"pods": 1}}, hold(0.5)]
    target = {"selector": "app=store", "controller": "statefulset/store"}
    path = drills.write(tmp_path, graceful.ready, steps, workload=target)
    with plain(real_lab) as url, Proxy.before(url) as proxy:
        proxy.before_it_goes_on = replace
        ran = run(path, graceful, tmp_path, kubeconfig=kubeconfig(graceful, proxy.url, tmp_path))
    facts = ran.facts
    assert [(one.answer, one.status) for one in facts.evictions] == [
        ("precondition_failed", 409),
        ("blocked_by_budget", 429),
    ]
    failed, refused = facts.evictions
    assert [failed.pod] == replaced
    # The budget's own rows show that it was charged for an eviction that was none.
    after = [row for row in ran.of(rows.Pdb) if row.name == "store" and row.at >= failed.at and row.disrupted_times]
    assert [(row.allowed, list(row.disrupted_times)) for row in after[-1:]] == [(0, replaced)]
    assert failed.answered is not None
    held = only(facts, "budget_held_by_our_eviction")
    assert (
        f"after store had been charged: the budget is held by our failed eviction until {failed.answered + 120:.0f} s"
        in held.text
    )
    assert {after[0].id} <= set(held.evidence)
    assert refused.self_inflicted
    assert "our own doing" in only(facts, "self_inflicted_429").text
    assert "blocked_by_budget" not in codes(facts)
    # A 429 that we brought about proves nothing against the workload.
    assert ran.steps() == [("baseline", "ok"), ("evict", "ok"), ("evict", "inconclusive"), ("hold", "skipped")]
    assert facts.verdict == "inconclusive"
    assert not facts.disruptions or all(not one.ours for one in facts.disruptions)


# --- a container dies -------------------------------------------------------------------------------------------------


def test_a_killed_container_stays_an_endpoint_for_a_second(
    graceful: Serving, real_lab: RealLab, tmp_path: Path
) -> None:
    pod = pods(real_lab, graceful)[0]
    uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
    kill = Hand("kill", partial(real_lab.kill, pod))
    steps = [
        BASELINE,
        {"hold": {"for": "2s"}, "name": "kill"},
        {"wait": {"until": "pods_ready >= 3 and ready_endpoints >= 3 and restarts >= 1", "timeout": "40s"}},
        hold(1),
    ]
    path = drills.write(tmp_path, graceful.ready, steps, probe=load_of(6), max_tokens=48)
    ran = run(path, graceful, tmp_path, kill)
    facts, zero = ran.facts, anchor(ran)
    died, code = Truth(real_lab.state).ended(container_of(pod))
    assert code == 137
    found = only(facts, "container_died")
    low, high = instants(r"died between (\S+) and (\S+) s \(exit 137: SIGKILL", found.text)
    assert low - 0.1 <= died - zero <= high + 0.1
    # kubelet looks at its containers every second: so long the endpoint stays ready, and requests go there.
    (out,) = [at for at, ready in changes(ran, uid) if not ready and at > died - zero]
    assert 0 < out - (died - zero) < 1 + 2 * SLACK
    assert f"its endpoint stayed ready until {out:.1f} s" in found.text
    assert "requests sent to it in that time were lost" in found.text
    # Every loss of the run is explained by it: those of this second, and those of the second after it, for which the
    # lab's gateway is late.
    assert facts.lost_requests
    assert {one.pod for one in facts.lost_requests} == {name}
    assert {one.row for one in facts.lost_requests} <= set(found.evidence)
    assert {one.outcome for one in facts.lost_requests} <= {"cut_stream", "http_error", "no_response"}
    assert facts.restarts == 1
    assert "Ready again at" in found.text
    assert facts.replacements == facts.terminations == facts.disruptions == []


# --- a Pod deleted by force -------------------------------------------------------------------------------------------


def test_the_process_of_a_pod_deleted_by_force_runs_on(graceful: Serving, real_lab: RealLab, tmp_path: Path) -> None:
    containers = {pod["metadata"]["uid"]: container_of(pod) for pod in pods(real_lab, graceful)}
    steps = [
        BASELINE,
        {"delete-pod": {"pods": 1, "force": True, "when": "in_flight(target) >= 1", "within": "10s"}},
        {"wait": {"until": "endpoints_back", "timeout": "40s"}},
        hold(3),
    ]
    path = drills.write(
        tmp_path, graceful.ready, steps, probe=load_of(6), max_tokens=40, playbook={"checks": ["loss_on_victim == 0"]}
    )
    ran = run(path, graceful, tmp_path)
    facts, zero = ran.facts, anchor(ran)
    (victim,) = facts.exposure.victims
    found = only(facts, "deleted_by_force")
    (gone,) = facts.terminations
    assert gone.gone.at is not None
    assert gone.gone.at - victim.fault_at < SLACK
    ended, code = Truth(real_lab.state).ended(containers[victim.uid])
    # The kubelet still gives it a second for its hook and two for SIGTERM: its streams end in that time.
    assert code == 0
    assert 1 < ended - zero - gone.gone.at < 3 + SLACK
    assert victim.exposed >= 1
    assert victim.lost == 0
    assert facts.verdict == "passed"
    (span,) = instants(r"completed up to (\S+) s after the object was gone", found.text)
    # The last may be one that the gateway still sent there.
    ends = [row.at for row in ran.of(rows.Request) if (row.pod, row.outcome) == (victim.pod, "complete")]
    assert max(ends) - gone.gone.at == pytest.approx(span, abs=0.06)
    assert span <= ended - zero - gone.gone.at


# --- a node is cut off ------------------------------------------------------------------------------------------------


def test_the_pods_of_a_cut_node_run_on(graceful: Serving, real_lab: RealLab, tmp_path: Path) -> None:
    pod = pods(real_lab, graceful)[0]
    node, uid, name = pod["spec"]["nodeName"], pod["metadata"]["uid"], pod["metadata"]["name"]
    there = [one["metadata"]["name"] for one in pods(real_lab, graceful) if one["spec"]["nodeName"] == node]
    cut, heal = Hand("cut", partial(real_lab.cut, node)), Hand("heal", partial(real_lab.heal, node))
    steps = [
        BASELINE,
        {"wait": {"until": f"ready_endpoints <= {3 - len(there)}", "timeout": "40s"}, "name": "cut"},
        hold(1),
        {"wait": {"until": "ready_endpoints >= 3", "timeout": "60s"}, "name": "heal"},
        hold(2),
    ]
    path = drills.write(tmp_path, graceful.ready, steps, probe=load_of(6), max_tokens=120)
    try:
        ran = run(path, graceful, tmp_path, cut, heal)
    finally:
        real_lab.heal(node)
    facts, zero = ran.facts, anchor(ran)
    found = only(facts, "node_unreachable")
    assert {result for _, result in ran.steps()} == {"ok"}
    begin, end = instants(r"was not heard of from (\S+) s to (\S+) s \(Ready=Unknown", found.text)
    low, high = instants(r"last heartbeat between (\S+) and (\S+) s", found.text)
    down, up = cut.done - zero, heal.began - zero
    assert found.text.startswith(f"node {node} was not heard of")
    # Heartbeats come every two seconds, and eight without one make a node Unknown.
    assert low - 0.1 <= down + SLACK
    assert down - 2 - SLACK <= high
    assert 8 - 2 - SLACK <= begin - down <= 8 + 2 + 2 * SLACK
    assert up < end
    (marked,) = re.findall(r"; ([^;]*): marked not Ready, not deleted", found.text)
    assert set(marked.split(", ")) == set(there)
    assert "Ready again at" in found.text
    assert "without being replaced" in found.text
    states = [state for _, state in changes(ran, uid)]
    assert states == [True, False, True]
    # Streams stood still, and came to their end once the node was back.
    mine = [
        row
        for row in ran.of(rows.Request)
        if row.pod in there and row.first_token is not None and row.first_token < down and row.at > up
    ]
    assert mine
    whole = [row for row in mine if row.outcome == "complete"]
    assert all((row.largest_gap or 0) > up - down - SLACK for row in whole)
    assert {row.outcome for row in mine} <= {"complete", "cut_stream", "stalled_stream"}
    assert ("their processes ran on" in found.text) == bool(whole)
    lost = {one.row for one in facts.lost_requests}
    assert lost == {one.row for one in facts.lost_requests if one.pod in there}
    assert lost <= set(found.evidence)
    assert facts.replacements == facts.terminations == facts.disruptions == []
    assert facts.restarts == 0
    after = next(one for one in pods(real_lab, graceful) if one["metadata"]["name"] == name)
    assert (after["metadata"]["uid"], container_of(after)) == (uid, container_of(pod))


# --- too little grace -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(real_lab: RealLab) -> Iterator[Serving]:
    """Three replicas whose preStop hook takes longer than their grace period, under a budget that is a number."""
    bound = load("lab-evict-one-replica-graceful", **{"lab.pre_stop": "30s", "lab.grace": "3s"})
    spec = lab_process.lab_spec(bound) | {"pdb": {"min_available": 2}}
    with serving(real_lab.state, spec) as made:
        yield made


def test_a_pre_stop_hook_beyond_the_grace_period(hasty: Serving, real_lab: RealLab, tmp_path: Path) -> None:
    """And, while the victim is on its way out, a budget that counts it with the others."""
    containers = {pod["metadata"]["uid"]: container_of(pod) for pod in pods(real_lab, hasty)}
    openai = {"ignore_eos": True, "prompt": "Count from {{ nonce }}."}
    probes = [
        {"name": "chat", "openai": openai | {"max_tokens": 16}, **load_of(2)},
        {"name": "long", "openai": openai | {"max_tokens": 400}, **load_of(3)},
    ]
    steps = [
        BASELINE,
        {"evict": {"pods": 1, "when": "in_flight(target) >= 2", "within": "10s"}},
        {"evict": {"pods": 1, "dry_run": True, "expect": "blocked_by_budget"}},
        {"wait": {"until": "ready_endpoints >= 3", "timeout": "40s"}, "name": "replaced"},
        hold(5),
    ]
    path = drills.write(tmp_path, hasty.ready, steps, playbook={"probes": probes})
    plans: list[Plan] = []

    async def plan() -> None:
        async with connect(hasty.config, Clock()) as cluster:
            plans.append(await make_plan(load_drill(str(path)), cluster))

    planning = threading.Thread(target=anyio.run, args=(plan,))

    def on_row(row: rows.Row) -> None:
        if isinstance(row, rows.Pdb) and (row.expected or 0) > 3 and planning.ident is None:
            planning.start()

    ran = drills.run(path, hasty.ready, tmp_path, on_row=on_row, request_timeout=30.0)
    planning.join()
    facts, zero = ran.facts, anchor(ran)
    (victim,) = facts.exposure.victims
    ended, code = Truth(real_lab.state).ended(containers[victim.uid])
    assert code == 137
    # The kubelet gives a hook two seconds more than there are, then SIGKILL.
    assert 5 - 0.1 <= ended - zero - victim.fault_at <= 5 + 2 * SLACK
    found = only(facts, "grace_exceeded")
    assert "exceeded its grace period of 3 s: model got SIGKILL (exit 137)" in found.text
    assert "its preStop hook had not ended by then (FailedPreStopHook)" in found.text
    low, high = instants(r"SIGKILL \(exit 137\) (\S+) to (\S+) s after the deletion", found.text)
    asked = next(row.at for row in ran.of(rows.Pod) if row.uid == victim.uid and row.deletion_time)
    assert low - 0.1 <= ended - zero - asked <= high + 0.1
    hooks = [row for row in ran.of(rows.Event) if row.reason == "FailedPreStopHook"]
    assert {row.id for row in hooks} & set(found.evidence)
    # Long streams on it were cut by that.
    lost = [one for one in facts.lost_requests if one.pod == victim.pod]
    assert lost
    assert {one.row for one in lost} <= set(found.evidence)
    assert {one.probe for one in lost} == {"long"}
    # The disruption controller counts Pods that are on their way out (minAvailable is a number): no drift.
    budgets = ran.of(rows.Pdb)
    assert max(row.expected or 0 for row in budgets) == 4
    for row in budgets:
        assert (row.desired, row.min_available) == (2, "2")
        if not row.disrupted_times:  # an eviction spends first, and the controller counts later
            assert row.allowed == budget.allowed({"minAvailable": 2}, row.expected or 0, row.current or 0)
    assert not [one for one in facts.findings if "budget" in one.code]
    assert [one.answer for one in facts.evictions] == ["accepted", "blocked_by_budget"]
    (made,) = plans
    assert not made.refused
    assert {one.code for one in made.problems if "budget" in one.code} <= {"blocked_by_budget"}
    assert facts.success_rate[ALL].value < 1


# --- past the gateway -------------------------------------------------------------------------------------------------


def test_a_cluster_ip_places_connections_not_requests(graceful: Serving, tmp_path: Path) -> None:
    """Who connects anew never meets the victim again; who keeps a connection goes there until it refuses."""
    ready = graceful.ready
    assert ready.service is not None
    openai = {"ignore_eos": True, "prompt": "Count from {{ nonce }}.", "max_tokens": 32}
    probes = [
        {"name": "anew", "openai": openai, "connection": "new", **load_of(3)},
        {"name": "kept", "openai": openai, "connection": "reused", **load_of(6)},
    ]
    checks = ["loss_on_victim == 0", {"check": "success_rate >= 99.9%", "probe": "anew"}]
    steps = [
        BASELINE,
        {"evict": {"pods": 1, "when": "in_flight(target) >= 3", "within": "10s"}},
        {"wait": {"until": "endpoints_back and replacement.first_complete", "timeout": "60s"}},
        hold(1),
    ]
    endpoint = {"url": ready.service, "pod_header": "x-served-by"}
    path = drills.write(tmp_path, ready, steps, playbook={"probes": probes, "checks": checks}, endpoint=endpoint)
    ran = run(path, graceful, tmp_path)
    facts = ran.facts
    assert facts.verdict == "passed"
    sent = [row for row in ran.of(rows.Request) if not row.once]
    assert {row.remote for row in sent} == {f"{ready.service.removeprefix('http://')}:80"}
    (victim,) = facts.exposure.victims
    assert victim.exposed >= 1
    assert (victim.lost, victim.unplaced) == (0, 0)
    lost = facts.lost_requests
    assert lost
    assert {(one.probe, one.straddles) for one in lost} == {("kept", False)}
    # The replica that drains refuses what comes on connections that are open, and then closes them.
    assert {one.pod for one in lost if one.status is not None} == {victim.pod}
    assert {(one.outcome, one.status) for one in lost} <= {
        ("http_error", 500),
        ("no_response", None),
        ("connect_reset", None),
    }
    late = [row.probe for row in sent if row.pod == victim.pod and row.sent > victim.fault_at + SLACK]
    assert set(late) == {"kept"}


def test_a_drill_straight_to_one_pod(graceful: Serving, real_lab: RealLab, tmp_path: Path) -> None:
    """Its address tells who served, where no response names the Pod. When it leaves, nobody takes its place there."""
    pod = pods(real_lab, graceful)[0]
    url = f"http://{pod['status']['podIP']}:8000"
    steps = [
        BASELINE,
        {"evict": {"pods": 1, "when": "in_flight(target) >= 2", "within": "10s"}},
        {"wait": {"until": "endpoints_back", "timeout": "40s"}},
        hold(3),
    ]
    playbook = {"checks": ["loss_on_victim == 0", "success_rate >= 99.9%"]}
    probe = load_of(2, timeouts={"connect": "2s"})
    probe["load"]["closed"]["pause"] = "100ms"
    path = drills.write(
        tmp_path, graceful.ready, steps, playbook=playbook, probe=probe, max_tokens=48, endpoint={"url": url}
    )
    ran = run(path, graceful, tmp_path)
    facts = ran.facts
    (victim,) = facts.exposure.victims
    assert victim.pod == pod["metadata"]["name"]
    assert victim.exposed >= 1
    assert (victim.lost, facts.exposure.unplaced_total) == (0, 0)
    assert {check.check: check.verdict for check in facts.checks} == {
        "loss_on_victim == 0": "passed", "success_rate >= 99.9%": "failed"
    }  # fmt: skip
    # It drains and refuses, then nobody listens there, then nobody has the address.
    seen = list(dict.fromkeys(row.outcome for row in sorted(ran.of(rows.Request), key=lambda row: row.sent)))
    way = ["complete", "http_error", "connect_refused", "connect_timeout"]
    assert [outcome for outcome in seen if outcome in way] == [outcome for outcome in way if outcome in seen]
    assert {"complete", "connect_refused"} <= set(seen) <= {*way, "connect_reset", "no_response"}
    assert {one.pod for one in facts.lost_requests} == {victim.pod}
