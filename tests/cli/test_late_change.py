"""Recovery by the command line on a cluster that is there: nothing on it is missed, and nothing of it given up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest
from click.testing import CliRunner, Result

from chaosrunner.cli.main import cli
from chaosrunner.cluster.session import JSON_PATCH
from chaosrunner.errors import Refused
from chaosrunner.faults.base import Context
from chaosrunner.faults.cordon import Cordon
from chaosrunner.journal import fields, lock, process
from chaosrunner.journal.journal import Entry, Field
from chaosrunner.timeline.rows import Target
from tests.faults.world import NAMESPACE, World, running

HERE = process.current()


@asynccontextmanager
async def cordoned(folder: Path) -> AsyncIterator[tuple[World, Context, Entry]]:
    """Node n1, cordoned by a run that is dead, and the run's journal, still open here."""
    async with running(folder) as world:
        node = world.node("n1")
        context = world.context()
        context.journal._owner = process.Process(pid=HERE.pid, started="long ago", host=HERE.host)
        await Cordon([node]).apply(context)
        (entry,) = context.journal.open()
        yield world, context, entry


@pytest.mark.anyio
async def test_recover_from_the_cluster_finds_what_the_journal_took_for_not_applied(tmp_path: Path) -> None:
    async with cordoned(tmp_path) as (world, context, entry):
        await context.journal.mark(entry, "not_applied", "the node was unchanged when the undo looked")
        context.journal.close()
        arguments = ["recover", "--yes", "--timelines", str(tmp_path / "timelines"), "-o", "json"]
        reach = ["--kubeconfig", str(world.connection.kubeconfig), "--context", "lab"]

        def call(*more: str) -> Result:
            return CliRunner().invoke(cli, [*arguments, *reach, *more])

        assert json.loads((await anyio.to_thread.run_sync(call)).stdout) == []
        assert world.unschedulable("n1") is True
        done = await anyio.to_thread.run_sync(call, "--from-cluster")
        assert [result["state"] for result in json.loads(done.stdout)] == ["undone"]
        assert world.unschedulable("n1") is None


@pytest.mark.anyio
async def test_nothing_is_given_up_that_can_be_put_back(tmp_path: Path) -> None:
    async with cordoned(tmp_path) as (world, context, entry):
        context.journal.close()
        arguments = [
            "recover",
            "--yes",
            "--forget",
            entry.run,
            "--timelines",
            str(tmp_path / "timelines"),
            "-o",
            "json",
        ]
        done = await anyio.to_thread.run_sync(CliRunner().invoke, cli, arguments)
        assert [result["state"] for result in json.loads(done.stdout)] == ["undone"]
        assert world.unschedulable("n1") is None


@pytest.mark.anyio
async def test_recover_shows_first_and_changes_nothing_where_nobody_says_yes(tmp_path: Path) -> None:
    async with cordoned(tmp_path) as (world, context, entry):
        context.journal.close()
        arguments = ["recover", "--timelines", str(tmp_path / "timelines")]

        def call(*more: str) -> Result:
            return CliRunner(env={"COLUMNS": "200"}).invoke(cli, [*arguments, *more])

        shown = await anyio.to_thread.run_sync(call)
        assert isinstance(shown.exception, Refused)
        assert "nobody is there to say yes: give --yes" in str(shown.exception)
        assert "would put back /spec/unschedulable from true to absent" in shown.stdout
        found = json.loads((await anyio.to_thread.run_sync(call, "-o", "json")).stdout)
        assert [(one["entry"], one["state"]) for one in found] == [(entry.entry, "applied")]
        assert world.unschedulable("n1") is True
        assert (await anyio.to_thread.run_sync(call, "--yes")).exit_code == 0
        assert world.unschedulable("n1") is None


@pytest.mark.anyio
async def test_what_its_guardian_undoes_is_left_to_it(tmp_path: Path) -> None:
    async with cordoned(tmp_path) as (world, context, _):
        context.journal.close()
        arguments = ["recover", "--yes", "--timelines", str(tmp_path / "timelines"), "-o", "json"]
        with lock.held(context.journal.path):
            done = await anyio.to_thread.run_sync(CliRunner().invoke, cli, arguments)
        (result,) = json.loads(done.stdout)
        assert (done.exit_code, result["state"], result["alive"]) == (0, "left_alone", True)
        assert "its guardian" in result["detail"]
        assert world.unschedulable("n1") is True


@pytest.mark.anyio
async def test_recover_on_another_machine_finds_policies_deployments_and_leases_by_the_objects(tmp_path: Path) -> None:
    async with cordoned(tmp_path) as (world, context, entry):
        context.journal.close()
        (tmp_path / "timelines").rename(tmp_path / "lost")
        chat = world.deployment("chat", 2)["metadata"]["ownerReferences"][0]
        scaled = msgspec.structs.replace(
            entry,
            entry="e2",
            fault="scale",
            target=Target(kind="Deployment", name="chat", namespace=NAMESPACE, uid=chat["uid"]),
            resource=f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/chat",
            fields=(Field(path="/spec/replicas", previous=2, desired=0),),
        )
        read = world.store.get("deployments", "chat", NAMESPACE)
        patch = fields.change(read, scaled)
        answer = await world.cluster.request("PATCH", scaled.resource, body=patch, content_type=JSON_PATCH)
        assert answer.ok
        spec = {"holderIdentity": "r", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z"}
        world.store.create("leases", {"metadata": {"name": "chaosrunner-x"}, "spec": spec}, namespace=NAMESPACE)
        arguments = ["recover", "--from-cluster", "--timelines", str(tmp_path / "t"), "-o", "json"]
        reach = ["--kubeconfig", str(world.connection.kubeconfig), "--context", "lab"]

        def call(*more: str) -> Result:
            return CliRunner().invoke(cli, [*arguments, *reach, *more])

        shown = await anyio.to_thread.run_sync(call)
        assert isinstance(shown.exception, Refused)
        kinds = {one["target"]["kind"] for one in json.loads(shown.stdout)}
        assert kinds == {"Node", "Deployment", "Lease"}
        done = await anyio.to_thread.run_sync(call, "--yes")
        assert (done.exit_code, [one["state"] for one in json.loads(done.stdout)]) == (0, ["undone"] * 3)
        assert world.unschedulable("n1") is None
        now = world.store.get("deployments", "chat", NAMESPACE)
        assert (now["spec"]["replicas"], fields.notes_of(now)) == (2, [])
        assert world.store.find("leases", "chaosrunner-x", NAMESPACE) is None
