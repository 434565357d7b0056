"""A drill does not take its own runner away: what a Pod knows of itself, and the runner as a Pod of the lab."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from chaosrunner.cluster.resources import PODS
from chaosrunner.faults.base import Problem
from chaosrunner.plan.limits import Guard
from chaosrunner.plan.runner import Place, here
from chaosrunner.playbook.limits import Limits
from chaosrunner.playbook.locate import resolve
from tests.faults.world import NAMESPACE, running
from tests.plan.conftest import Standing
from tests.plan.test_plan import EVICT, chat, codes, planned

INSIDE = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


# --- what a process knows of its place ----------------------------------------------------------------------


def test_the_downward_api_tells_pod_namespace_and_node(tmp_path: Path) -> None:
    environ = INSIDE | {"POD_NAME": "p", "POD_NAMESPACE": "ns", "NODE_NAME": "n1"}
    assert here(environ, "host", tmp_path) == Place(host="host", pod="p", namespace="ns", node="n1")


def test_without_it_the_hostname_and_the_token_s_folder_tell_the_pod(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("ns")
    place = here(INSIDE, "job-x7k2", tmp_path)
    assert place == Place(host="job-x7k2", pod="job-x7k2", namespace="ns")
    assert place.is_pod("job-x7k2", "ns")
    assert not place.is_pod("job-x7k2", "other")
    assert here({}, "job-x7k2", tmp_path) == Place(host="job-x7k2")


def test_a_hostname_is_a_pod_name_cut_off() -> None:
    # A kubelet cuts hostnames at 63 characters, and what then ends in a dash or a dot before that.
    long = "a" * 61 + "-" * 2 + "b" * 20
    assert Place(host="", pod="a" * 61).is_pod(long, None)
    assert not Place(host="", pod="a" * 60).is_pod(long, None)


# --- plans ------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("step", "refusals"),
    [
        ("cordon: {node: n2}", ["runner_on_node"]),
        ("cordon: {node: n1}", []),
        # Which node it takes is known when it fires: any of those of the workload.
        ("cordon: {nodes: 1}", ["runner_on_node"]),
        ('cordon: {nodes: 1, selector: "pool!=ops"}', []),
        ("drain: {nodes: 1}", ["runner_on_node"]),
    ],
)
@pytest.mark.parametrize("told", [True, False])
async def test_a_step_that_may_take_the_runners_node_is_refused(
    tmp_path: Path, step: str, refusals: list[str], told: bool
) -> None:
    async with running(tmp_path) as world:
        owner = await chat(world)
        world.store.mutate("nodes", "n2", None, _label)
        world.pod("runner", owner=owner, node="n2", labels={"app": "runner"})
        environ = INSIDE | {"POD_NAME": "runner", "POD_NAMESPACE": NAMESPACE} | ({"NODE_NAME": "n2"} if told else {})
        plan = await planned(world, step, environ=environ, limits="{max_pods: 2}")
        assert codes(plan, "refuse") == refusals
        assert plan.runner.node == "n2"


def _label(node: dict[str, Any]) -> None:
    node["metadata"].setdefault("labels", {})["pool"] = "ops"


@pytest.mark.anyio
async def test_a_runner_that_is_a_candidate_is_refused_whichever_is_chosen_now(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await chat(world)
        for name in ("chat-1", "chat-3"):
            environ = INSIDE | {"POD_NAME": name, "POD_NAMESPACE": NAMESPACE}
            assert codes(await planned(world, EVICT, environ=environ), "refuse") == ["runner_is_target"]
        assert codes(await planned(world, "evict: {pods: 1, from: {node: n1}}", environ=environ), "refuse") == []


@pytest.mark.anyio
async def test_a_pod_whose_node_cannot_be_told_is_a_warning(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await chat(world)
        environ = INSIDE | {"POD_NAME": "elsewhere", "POD_NAMESPACE": "ops"}
        plan = await planned(world, "cordon: {nodes: 1}", environ=environ)
        assert codes(plan, "warn") == ["runner_unknown"]
        (problem,) = plan.problems
        assert problem == Problem(
            severity="warn",
            code="runner_unknown",
            text="step 2 (cordon): it cannot be told on which node chaosrunner itself (Pod elsewhere) runs",
            how="set NODE_NAME by the downward API, or let it get its own Pod",
        )


def test_what_came_to_the_runners_node_later_is_held_off_when_a_step_fires() -> None:
    guard = Guard(Limits(max_nodes=3), "demo", 3, Place(host="h", pod="runner", namespace="demo", node="n2"))
    assert guard.off_limits_nodes(["n1", "n2"]) == "chaosrunner itself runs on node n2"
    assert guard.off_limits_nodes(["n1", "n3"]) is None
    own = {"metadata": {"name": "runner", "namespace": "demo"}}
    assert guard.off_limits(own) == "chaosrunner itself runs in it"
    # A process outside of Pods is not evicted, whatever its host is called.
    assert Guard(Limits(), "demo", 3, Place(host="n2")).off_limits_nodes(["n2"]) is None


# --- a runner that is a Pod -------------------------------------------------------------------------------------


@contextmanager
def ran(standing: Standing, drill: str, node: str, labels: dict[str, str], *, told: bool) -> Iterator[dict[str, Any]]:
    """`chaosrunner plan` as a Pod of the lab: exit code and log."""
    lab = standing.lab
    name = f"runner-{secrets.token_hex(3)}"
    words = ["--kubeconfig", lab.kubeconfig, "--context", lab.context, "-n", lab.namespace]
    container = {
        "name": "runner",
        "image": "lab/workload:1",
        "command": ["python", "-m", "chaosrunner", "plan", drill, *words, "-o", "json"],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}] if told else [],
    }
    spec = {"nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    pod = {"metadata": {"name": name, "labels": labels}, "spec": spec}

    async def run() -> dict[str, Any]:
        answer = await standing.admin.create(PODS, pod, lab.namespace)
        assert answer.ok, answer.message
        with anyio.fail_after(90):
            while True:
                now = (await standing.admin.get(PODS, name, lab.namespace)).body
                if now["status"].get("phase") in ("Succeeded", "Failed"):
                    break
                await anyio.sleep(0.1)
        code = now["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        log = await standing.admin.request("GET", PODS.path(lab.namespace, name, "log"))
        return {"code": code, **(log.body or {"log": log.text})}

    try:
        yield standing.portal.call(run)
    finally:
        standing.portal.call(lambda: standing.admin.delete(PODS, name, lab.namespace, grace_period=0))


@pytest.mark.lab
@pytest.mark.parametrize(
    ("drill", "node", "labels", "refusals", "told"),
    [
        pytest.param(*case, told, id=f"{name}-{'downward' if told else 'own-pod'}", marks=[pytest.mark.slow] * slow)
        for name, told, slow, case in [
            ("on-its-node", True, False, ("lab-drain-node", "node2", {"app": "runner"}, {"runner_on_node"})),
            ("on-its-node", False, True, ("lab-drain-node", "node2", {"app": "runner"}, {"runner_on_node"})),
            ("elsewhere", True, True, ("lab-drain-node", "infra", {"app": "runner"}, set())),
            ("elsewhere", False, True, ("lab-drain-node", "infra", {"app": "runner"}, set())),
            ("target", True, True, ("lab-evict-one-replica", "node2", {"app": "model"}, {"runner_is_target"})),
            ("target", False, False, ("lab-evict-one-replica", "node2", {"app": "model"}, {"runner_is_target"})),
            ("no-node", True, True, ("lab-evict-one-replica", "node2", {"app": "runner"}, set())),
            ("no-node", False, False, ("lab-evict-one-replica", "node2", {"app": "runner"}, set())),
        ]
    ],
)
def test_a_runner_in_a_pod_of_the_lab(
    standing: Standing, drill: str, node: str, labels: dict[str, str], refusals: set[str], told: bool, tmp_path: Path
) -> None:
    file = tmp_path / "drill.yaml"
    source = yaml.safe_load(resolve(drill, "drills").read_text())
    source["endpoint"]["url"] = standing.lab.url
    source["prometheus"]["url"] = standing.lab.prometheus
    file.write_text(json.dumps(source))
    with ran(standing, str(file), node, labels, told=told) as found:
        assert "problems" in found, found
        refused = {problem["code"] for problem in found["problems"] if problem["severity"] == "refuse"}
        assert refusals <= refused
        assert (found["code"] == 6) == bool(refusals)
        # A drill that takes no node does not ask on which one its runner is.
        assert found["runner"].get("node") == (node if told or drill == "lab-drain-node" else None)
