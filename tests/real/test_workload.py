"""The workload as Pods of a real Kubernetes: the ways to it, what is noted of it, and that nothing of it stays."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.errors import UserError
from chaosrunner.lab import spec as specs
from chaosrunner.lab.manifests import Places
from chaosrunner.lab.objects import Json, is_ready
from chaosrunner.lab.real import workload
from chaosrunner.lab.real.api import Api, NotAvailable
from tests.labs import RealLab, real_lab_command

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]

SPEC: dict[str, Any] = {
    "replicas": 2,
    "startup": "1s",
    "pdb": {"max_unavailable": 1},
    "model": {"tokens_per_second": 100, "sigterm": "drain"},
    "pre_stop": 1.5,
    "warmup": {"first_token": "3s"},
}
COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "stream": True}


@pytest.fixture(scope="module")
def api(real_lab: RealLab) -> Api:
    return Api.of_kubeconfig(real_lab.kubeconfig)


def places(lab: RealLab, name: str, image: str | None = None) -> Places:
    return Places.real(image or lab.image, lab.state / "requests" / name, name, f"{name}-system")


@dataclass
class Served:
    api: Api
    found: workload.Serving

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.found.namespace}/pods"

    def pods(self) -> list[Json]:
        return self.api.items(self.path, labelSelector="app=model")

    def rows(self, pod: str | None = None) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self.found.log.read_text().splitlines()]
        return [row for row in rows if pod in (None, row.get("pod"))]

    def instants(self, pod: str) -> dict[str, float]:
        """The first of each kind."""
        return {row["what"]: row["wall"] for row in reversed(self.rows(pod))}

    def evict(self, pod: str) -> float:
        """Returns when it was asked for."""
        meta = {"name": pod, "namespace": self.found.namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        asked = time.time()
        self.api.request("POST", f"{self.path}/{pod}/eviction", eviction)
        return asked


@contextmanager
def serving(lab: RealLab, api: Api, name: str, folder: Path, **entries: Any) -> Iterator[Served]:
    spec = specs.build(SPEC | entries)
    log, events = folder / f"{name}.jsonl", lab.state / "events"
    there = places(lab, name)
    with (
        workload.noted(api, (name, f"{name}-system"), there.requests, log=log, events=events),
        workload.serving(api, spec, there, log=log, tell=lambda doing: None) as found,
    ):
        yield Served(api, found)


@pytest.fixture(scope="module")
def served(real_lab: RealLab, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(real_lab, api, "ways", tmp_path_factory.mktemp("ways")) as found:
        yield found


def complete(url: str) -> tuple[str, float]:
    """Stream a completion; the Pod that served it, and how long it took in seconds."""
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(COMPLETION).encode(), {"Content-Type": "application/json"}
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.read().endswith(b"data: [DONE]\n\n")
        return str(answer.headers["x-served-by"]), time.monotonic() - began


def until(holds: Callable[[], Any], seconds: float = 30) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def test_there_are_three_ways_to_the_model_and_it_is_warm(served: Served) -> None:
    pods = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in served.pods()}
    assert {served.api.find(f"{served.path}/{name}")["spec"]["nodeName"] for name in pods} <= {  # type: ignore[index]
        "node1",
        "node2",
        "node3",
    }
    for url in (served.found.url, served.found.service, *(f"http://{address}:8000" for address in pods.values())):
        pod, took = complete(url)
        assert pod in pods
        assert took < 2
    assert {complete(served.found.url)[0] for _ in range(20)} == pods.keys()


def test_the_alert_source_knows_the_gateway_and_the_endpoints(served: Served) -> None:
    complete(served.found.url)

    def value(figure: str) -> float:
        with urllib.request.urlopen(f"{served.found.prometheus}/api/v1/query?query={figure}") as answer:
            result = json.load(answer)["data"]["result"]
        return float(result[0]["value"][1]) if result else -1

    until(lambda: value("ready_endpoints") == 2)
    until(lambda: value("gateway_requests") >= 1)


def test_what_is_noted_agrees_with_the_kubelet_and_containerd(served: Served) -> None:
    before = {pod["metadata"]["name"] for pod in served.pods()}
    victim = sorted(before)[0]
    asked = served.evict(victim)
    (new,) = until(lambda: [pod for pod in served.pods() if pod["metadata"]["name"] not in before and is_ready(pod)])
    name = new["metadata"]["name"]
    until(lambda: complete(served.found.url)[0] == name)
    until(lambda: "deleted" in served.instants(victim))
    until(lambda: "first_complete" in served.instants(name))

    started = served.instants(name)["started"]
    told = new["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    assert 0 <= started - datetime.fromisoformat(told).timestamp() < 1.1

    order = ["created", "scheduled", "started", "ready", "endpoint_ready", "first_request", "first_complete"]
    walls = served.instants(name)
    assert sorted(walls.keys() & set(order), key=lambda what: walls[what]) == order
    order = ["evicted", "deleting", "endpoint_not_ready", "exited", "endpoint_gone", "deleted"]
    walls = served.instants(victim) | {
        row["what"]: row["wall"] for row in served.rows(victim) if row["wall"] > asked - 0.1
    }
    assert sorted(order, key=lambda what: walls[what]) == order
    # The hook sleeps for 1.5 s before SIGTERM; then the process drains nothing and ends.
    assert 1.5 <= walls["terminated"] - walls["deleting"] < 6
    (exited,) = (row for row in served.rows(victim) if row["what"] == "exited")
    assert (exited["container"], exited["exit_code"]) == ("model", 0)


def test_a_killed_container_is_noted_as_such(served: Served, real_lab: RealLab) -> None:
    pod = next(pod for pod in served.pods() if is_ready(pod))
    name = pod["metadata"]["name"]
    killed = time.time()
    real_lab.kill(pod)
    until(lambda: sum(row["what"] == "started" for row in served.rows(name)) == 2)
    (exited,) = (row for row in served.rows(name) if row["what"] == "exited")
    assert exited["exit_code"] == 137
    assert killed <= exited["wall"] < killed + 2
    assert "terminated" not in served.instants(name)
    until(lambda: any(is_ready(one) for one in served.pods() if one["metadata"]["name"] == name))


def test_the_gateway_and_the_log_go_on_when_the_api_server_comes_back(served: Served, real_lab: RealLab) -> None:
    until(lambda: sum(map(is_ready, served.pods())) == 2)
    real_lab_command("kill", "kube-apiserver", state=real_lab.state)
    gone = time.time()
    assert complete(served.found.url)
    real_lab_command("start", "kube-apiserver", state=real_lab.state)
    until(lambda: any(row["what"] == "gap" and row["resource"] == "pods" for row in served.rows()))
    (gap,) = (row for row in served.rows() if row["what"] == "gap" and row["resource"] == "nodes")
    assert gap["since"] <= gone + 0.1 <= gap["wall"]
    before = {pod["metadata"]["name"] for pod in served.pods()}
    served.evict(sorted(before)[1])

    def new_one_serves() -> bool:
        try:
            return complete(served.found.url)[0] not in before
        except urllib.error.HTTPError:
            # Controllers come back to the API server later than the gateway, and tell it late who leaves.
            return False

    until(new_one_serves, 60)


def test_namespaces_that_are_there_are_refused(served: Served, real_lab: RealLab, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="namespace ways exists"), serving(real_lab, served.api, "ways", tmp_path):
        pass
    assert complete(served.found.url)


def config_map(name: str, namespace: str | None = None) -> Json:
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name} | where}


def test_all_of_a_workload_goes_and_nothing_else(api: Api, real_lab: RealLab, tmp_path: Path) -> None:
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "x"}, "value": 1}
    given = [config_map("inside"), config_map("outside", "default"), priority]
    outside = [api.path(obj) for obj in given[1:]]
    api.create(config_map("other", "default"))
    try:
        with serving(real_lab, api, "goes", tmp_path, replicas=1, sleepers=1, manifests=given):
            assert api.find("/api/v1/namespaces/goes/configmaps/inside")
            assert all(map(api.find, outside))
        assert not any(map(api.find, [*outside, "/api/v1/namespaces/goes", "/api/v1/namespaces/goes-system"]))
        # What was there before is neither changed nor removed.
        with pytest.raises(UserError, match=r"lab.manifests\[0\]: .*already exists"):
            workload.deploy(api, specs.build({"manifests": [config_map("other", "default")]}), places(real_lab, "goes"))
        assert "labels" not in (api.find("/api/v1/namespaces/default/configmaps/other") or {})["metadata"]
        assert api.find("/api/v1/namespaces/goes") is None
    finally:
        api.delete("/api/v1/namespaces/default/configmaps/other")


def test_what_is_left_of_a_dead_session_can_be_removed(api: Api, real_lab: RealLab) -> None:
    given = [config_map("left", "default")]
    left = places(real_lab, "left")
    workload.deploy(api, specs.build({"manifests": given, "replicas": 0}), left)
    workload.remove(api, left, force=True)
    assert api.find(api.path(given[0])) is None
    workload.remove(api, left)


def test_what_a_killed_rehearsal_left_is_told_and_cleared_by_the_next(
    api: Api, real_lab: RealLab, tmp_path: Path
) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"replicas": 1, "startup": "200ms"}))
    command = [sys.executable, "-m", "chaosrunner.lab.real", "serve", "--state", str(real_lab.state)]
    command += ["--spec", str(tmp_path / "spec.json"), "--until-stdin-closes"]

    def served() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return process, str(json.loads(process.stdout.readline())["namespace"])

    def told() -> list[str]:
        return list(real_lab_command("status", state=real_lab.state)["abandoned"])

    with served()[0] as killed:
        assert told() == []
        killed.kill()
    (left,) = told()
    assert api.find(f"/api/v1/namespaces/{left}") is not None
    process, namespace = served()
    with process:
        assert told() == []
        assert api.find(f"/api/v1/namespaces/{left}") is None
        assert api.find(f"/api/v1/namespaces/{left.replace('lab-', 'lab-system-')}") is None
        assert api.find(f"/api/v1/namespaces/{namespace}") is not None
    assert process.returncode == 0
    assert told() == []


def test_an_image_that_no_node_has_is_told_at_once(api: Api, real_lab: RealLab) -> None:
    spec, there = specs.build(SPEC), places(real_lab, "noimage", "localhost/none:1")
    workload.deploy(api, spec, there)
    try:
        with pytest.raises(NotAvailable, match=r"(model|gateway): ErrImageNeverPull: .*localhost/none:1"):
            workload.wait(api, spec, there, Path("log"), 30)
    finally:
        workload.remove(api, there, force=True)


def test_a_workload_on_a_node_that_is_cut_off_is_removed_in_bounded_time(
    api: Api, real_lab: RealLab, tmp_path: Path
) -> None:
    try:
        with serving(real_lab, api, "cutoff", tmp_path, anti_affinity=True) as found:
            # The end of the block raises NotRemoved after `workload.REMOVAL` seconds.
            real_lab.cut(found.pods()[0]["spec"]["nodeName"])
        assert api.find("/api/v1/namespaces/cutoff") is None
    finally:
        for node in real_lab.nodes:
            real_lab.heal(node)
        until(lambda: all(map(is_ready, api.items("/api/v1/nodes"))))
