"""Least rights on a real Kubernetes: its authorizer, its Roles, a ServiceAccount's own token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from chaosrunner.cli import lab_process
from chaosrunner.cluster import Cluster, connect
from chaosrunner.cluster.access import review
from chaosrunner.cluster.resources import NODES
from chaosrunner.cluster.session import Answer
from chaosrunner.engine import Finished, Options, run_drill
from chaosrunner.errors import Refused
from chaosrunner.plan.access import needs
from chaosrunner.plan.plan import make_plan
from chaosrunner.playbook import BoundDrill, load_drill
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.reader import Recording
from tests.drills.rehearsal import load
from tests.engine.lab import wait_for
from tests.labs import RealLab
from tests.plan import rights
from tests.plan.rights import Missing, each_rule, granted
from tests.real import tokens
from tests.real.serving import Serving, serving

pytestmark = [pytest.mark.real, pytest.mark.slow]

DRILLS = ("lab-evict-one-replica", "lab-delete-pod", "lab-cordon-and-rollback", "lab-drain-node")
CASES = [(drill, missing) for drill in DRILLS for missing in each_rule(load_drill(drill), "lab")]


@pytest.fixture(scope="module")
def workload(real_lab: RealLab) -> Iterator[Serving]:
    """Replicas that end gracefully, for all drills here: each leaves them as they were."""
    with serving(real_lab.state, lab_process.lab_spec(load("lab-drain-node"))) as made:
        yield made


@pytest.fixture(scope="module")
def account(workload: Serving, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A kubeconfig of a ServiceAccount that has no rights yet."""
    folder = tmp_path_factory.mktemp("account")
    return workload.portal.call(rights.account, workload.admin, workload.namespace, workload.ready.kubeconfig, folder)


async def settled(cluster: Cluster, bound: BoundDrill, namespace: str, lost: list[str]) -> None:
    """Waits until the authorizer knows the Roles as they are: its caches follow what is written a little later."""
    wanted = list(needs(bound.drill, bound.playbook, namespace))
    with anyio.fail_after(10):
        while True:
            found = await review(cluster, wanted)
            if {str(one.access) for one in found if not one.allowed} == set(lost):
                return
            await anyio.sleep(0.05)


@pytest.mark.parametrize(("drill", "missing"), CASES, ids=[f"{drill}-{missing.name}" for drill, missing in CASES])
def test_a_plan_names_the_rule_that_is_missing(workload: Serving, account: str, drill: str, missing: Missing) -> None:
    bound, namespace = load_drill(drill), workload.namespace
    grant = granted(bound, namespace)
    lost = missing.rights(grant)

    async def plan() -> tuple[bool, list[str]]:
        objects = rights.manifests(grant, missing)
        config = replace(workload.config, kubeconfig=account)
        async with rights.applied(workload.admin, objects), connect(config, Clock()) as cluster:
            await settled(cluster, bound, namespace, lost)
            try:
                made = await make_plan(bound, cluster, environ={}, host="laptop")
            except Refused as error:
                return True, str(error).splitlines()
            return made.refused, [problem.text for problem in made.problems if problem.code == "forbidden"]

    refused, said = workload.portal.call(plan)
    assert refused == (missing.of(grant).without is None), said
    for right in lost:
        assert any(f"not allowed to {right} (" in line for line in said), said


def run(workload: Serving, kubeconfig: str, drill: str, timelines: Path, **parameters: str) -> Finished:
    """Runs a drill as a ServiceAccount with exactly the printed rights."""
    bound = load(drill, **parameters)

    async def whole() -> Finished:
        aimed, config = lab_process.towards(bound, workload.ready)
        config = replace(config, kubeconfig=kubeconfig)
        async with rights.applied(workload.admin, rights.manifests(granted(bound, workload.namespace))):
            async with connect(config, Clock()) as cluster:
                await settled(cluster, bound, workload.namespace, [])
            return await run_drill(aimed, config, Options(timelines=timelines, signals=False))

    return workload.portal.call(whole)


@pytest.mark.parametrize("drill", DRILLS)
def test_a_drill_passes_with_exactly_the_printed_rights(
    workload: Serving, account: str, drill: str, tmp_path: Path
) -> None:
    finished = run(workload, account, drill, tmp_path)
    failed = [check for check in finished.facts.checks if check.verdict != "passed"]
    assert finished.facts.verdict == "passed", (finished.facts.reason, failed)
    assert gaps(finished) == []
    nodes = workload.portal.call(workload.admin.list, NODES).items
    assert not [node["metadata"]["name"] for node in nodes if node["spec"].get("unschedulable")]


def test_kubectl_takes_what_is_printed(workload: Serving, real_lab: RealLab, tmp_path: Path) -> None:
    for name in DRILLS:
        made = granted(load_drill(name), workload.namespace)
        file = tmp_path / f"{name}.yaml"
        file.write_text(made.text())
        said = real_lab.kubectl("apply", "--dry-run=server", "-f", str(file)).stdout
        assert said.count(" created (server dry run)") == len(made.manifests()), said


@pytest.fixture
def token_file(workload: Serving, account: str, tmp_path: Path) -> tuple[Path, str]:
    """A token's file, and a kubeconfig that names it."""
    file, kubeconfig = tmp_path / "token", tmp_path / "kubeconfig"
    config = json.loads(Path(account).read_text())
    config["users"] = [{"name": user["name"], "user": {"tokenFile": str(file)}} for user in config["users"]]
    kubeconfig.write_text(json.dumps(config))
    return file, str(kubeconfig)


def gaps(finished: Finished) -> list[rows.Watch]:
    found = [row for row in Recording.open(finished.folder).rows() if isinstance(row, rows.Watch)]
    return [row for row in found if row.event in ("gap_opened", "forbidden")]


def test_tokens_that_expire_in_mid_drill_are_replaced(
    workload: Serving, token_file: tuple[Path, str], tmp_path: Path
) -> None:
    file, kubeconfig = token_file
    made = workload.portal.call(workload.admin.get, rights.ACCOUNTS, rights.ACCOUNT, workload.namespace)
    whose = workload.state, workload.namespace, rights.ACCOUNT, made.body["metadata"]["uid"]
    with tokens.renewed(file, *whose, lives=5):
        finished = run(workload, kubeconfig, "lab-cordon-and-rollback", tmp_path)
    assert (finished.facts.verdict, gaps(finished)) == ("passed", []), finished.facts.reason


def test_a_token_that_is_refused_in_mid_drill_is_read_again_at_once(
    workload: Serving, token_file: tuple[Path, str], tmp_path: Path
) -> None:
    """The ServiceAccount is made anew: its old tokens name another UID, however long they live."""
    file, kubeconfig = token_file

    def write(account: Answer) -> None:
        assert account.ok, account.message
        uid = account.body["metadata"]["uid"]
        file.write_text(tokens.sign(workload.state, workload.namespace, rights.ACCOUNT, uid, lives=3600))

    async def make_anew() -> Answer:
        await workload.admin.delete(rights.ACCOUNTS, rights.ACCOUNT, workload.namespace)
        return await workload.admin.create(rights.ACCOUNTS, {"metadata": {"name": rights.ACCOUNT}}, workload.namespace)

    write(workload.portal.call(workload.admin.get, rights.ACCOUNTS, rights.ACCOUNT, workload.namespace))
    with capture_logs() as logged, ThreadPoolExecutor(1) as beside:
        # Long enough for the authenticator to forget that the old token was good.
        running = beside.submit(run, workload, kubeconfig, "lab-cordon-and-rollback", tmp_path, hold="30s")
        wait_for(lambda: "hold" in started(tmp_path), 30)
        write(workload.portal.call(make_anew))
        finished = running.result()
    assert (finished.facts.verdict, gaps(finished)) == ("passed", []), finished.facts.reason
    renewals = [entry for entry in logged if entry["event"] == "credentials renewed after 401"]
    assert [entry["changed"] for entry in renewals] == [True]


def started(timelines: Path) -> list[str]:
    """Steps that a run has begun so far."""
    folders = [path.parent for path in timelines.glob("*/*/manifest.json")]
    found = Recording.open(folders[0]).rows() if folders else []
    return [row.step for row in found if isinstance(row, rows.Step) and row.event == "started"]
