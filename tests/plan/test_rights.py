"""Least rights on the embedded lab: a plan names every rule that is missing, before anything is changed, and a drill
runs with exactly the rights that are printed, of which it needs every one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from chaosrunner.cli import lab_process
from chaosrunner.cluster import Cluster, ClusterConfig, connect
from chaosrunner.cluster.resources import DAEMON_SETS, NODES, PODS
from chaosrunner.engine import Options, run_drill
from chaosrunner.errors import Refused
from chaosrunner.plan.plan import make_plan
from chaosrunner.playbook import BoundDrill, load_drill
from chaosrunner.timeline.clock import Clock
from tests.drills.rehearsal import load
from tests.engine import drills
from tests.engine.lab import wait_for
from tests.plan import rights
from tests.plan.conftest import Standing
from tests.plan.rights import Missing, each_rule, granted

NAMESPACE = "lab"
USER = f"system:serviceaccount:{NAMESPACE}:{rights.ACCOUNT}"
DRILLS = ("lab-evict-one-replica", "lab-delete-pod", "lab-cordon-and-rollback", "lab-drain-node")
"""One of each shipped playbook."""
READS = {"get", "list", "watch"}


def _cases() -> list[Any]:
    """Each rule of each drill; rules that an earlier drill has as well are slow."""
    known: set[str] = set()
    cases = []
    for drill in DRILLS:
        for missing in each_rule(load_drill(drill), NAMESPACE):
            marks = [pytest.mark.slow] if missing.name in known else []
            cases.append(pytest.param(drill, missing, id=f"{drill}-{missing.name}", marks=marks))
            known.add(missing.name)
    return cases


@pytest.mark.lab
@pytest.mark.parametrize(("drill", "missing"), _cases())
def test_a_plan_names_the_rule_that_is_missing(standing: Standing, drill: str, missing: Missing) -> None:
    bound = load_drill(drill)
    grant = granted(bound, NAMESPACE)
    before = len(standing.trail.read_text().splitlines())

    async def plan() -> tuple[bool, list[str]]:
        async with connect(standing.config, Clock()) as cluster:
            try:
                made = await make_plan(bound, cluster, environ={}, host="laptop")
            except Refused as error:
                return True, str(error).splitlines()
            return made.refused, [problem.text for problem in made.problems if problem.code == "forbidden"]

    with standing.granted(bound, missing):
        refused, said = standing.portal.call(plan)
    rule = missing.of(grant)
    assert refused == (rule.without is None), said
    for right in missing.rights(grant):
        (line,) = [line for line in said if f"not allowed to {right} (" in line]
        assert rule.without is None or line.endswith(f"without it {rule.without}")
    calls = [json.loads(line) for line in standing.trail.read_text().splitlines()[before:]]
    changing = {
        (call["verb"], call["objectRef"]["resource"], call["objectRef"].get("subresource"))
        for call in calls
        if call["user"]["username"] == USER and call["verb"] not in READS
    }
    assert changing <= {("create", "selfsubjectaccessreviews", None), ("create", "pods", "eviction")}


@pytest.mark.lab
def test_nothing_is_missing_with_the_printed_rights(standing: Standing) -> None:
    async def plan(bound: BoundDrill) -> list[str]:
        async with connect(standing.config, Clock()) as cluster:
            made = await make_plan(bound, cluster, environ={}, host="laptop")
            return [problem.text for problem in made.problems if problem.severity != "info"]

    for drill in DRILLS:
        bound = load_drill(drill)
        with standing.granted(bound):
            assert standing.portal.call(plan, bound) == [], drill


async def _daemons(admin: Cluster) -> None:
    """A Pod of a DaemonSet on each node, as every real cluster has them."""
    labels = {"app": "agent"}
    container = {"name": "agent", "image": "lab/sleep:1", "command": ["sleep", "1000"]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    body = {"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    owner = (await admin.create(DAEMON_SETS, body, "kube-system")).body["metadata"]["uid"]
    reference = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": owner, "controller": True}
    for node in (await admin.list(NODES)).items:
        name = node["metadata"]["name"]
        spec = {"nodeName": name, "terminationGracePeriodSeconds": 0, "containers": [container]}
        pod = {"metadata": {"name": f"agent-{name}", "labels": labels, "ownerReferences": [reference]}, "spec": spec}
        answer = await admin.create(PODS, pod, "kube-system")
        assert answer.ok, answer.message


@pytest.mark.lab
def test_what_a_killed_run_left_is_put_back_with_the_same_rights(standing: Standing, tmp_path: Path) -> None:
    drill = drills.write(tmp_path, standing.lab, [drills.BASELINE, {"cordon": {"nodes": 1}}, drills.hold(60)])
    assert standing.config.kubeconfig is not None
    with standing.granted(load_drill(drill)):
        process = drills.start(drill, standing.config.kubeconfig, tmp_path)
        wait_for(lambda: process.poll() is not None or len(standing.lab.cordoned()) == 1)
        assert process.poll() is None, process.communicate()
        drills.kill_with_guardian(process)
        assert standing.lab.leases()
        code, out, err = drills.invoke("recover", "--yes", "--timelines", str(tmp_path))
    assert code == 0, out + err
    assert (standing.lab.cordoned(), standing.lab.leases()) == ([], [])


@pytest.mark.lab
@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "drill", [pytest.param(name, marks=[] if "drain" in name else pytest.mark.slow) for name in DRILLS]
)
def test_a_drill_runs_with_exactly_the_printed_rights_and_uses_each(drill: str, tmp_path: Path) -> None:
    bound = load(drill)

    async def run() -> tuple[str, int, set[str], set[str]]:
        async with lab_process.running_lab(lab_process.lab_spec(bound)) as (ready, state):
            async with connect(ClusterConfig(kubeconfig=ready.kubeconfig), Clock()) as admin:
                if "drain" in drill:
                    await _daemons(admin)
                path = await rights.account(admin, NAMESPACE, ready.kubeconfig, tmp_path)
                async with rights.applied(admin, rights.manifests(granted(bound, NAMESPACE))):
                    aimed, config = lab_process.towards(bound, ready)
                    options = Options(timelines=tmp_path / "timelines", signals=False)
                    finished = await run_drill(aimed, replace(config, kubeconfig=path), options)
            calls = rights.asked(state / "audit.jsonl", USER)
            return finished.facts.verdict, len(calls), *rights.compare(bound, NAMESPACE, calls)

    verdict, calls, uncovered, idle = anyio.run(run)
    assert verdict == ("failed" if drill == "lab-evict-one-replica" else "passed")
    assert calls
    assert (uncovered, idle) == (set(), set())
