"""Recovery by the command line on a cluster that is there: nothing on it is missed, and nothing of it given up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner, Result

from chaosrunner.cli.main import cli
from chaosrunner.faults.base import Context
from chaosrunner.faults.cordon import Cordon
from chaosrunner.journal import process
from chaosrunner.journal.journal import Entry
from tests.faults.world import World, running

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
        arguments = ["recover", "--timelines", str(tmp_path / "timelines"), "-o", "json"]
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
        arguments = ["recover", "--forget", entry.run, "--timelines", str(tmp_path / "timelines"), "-o", "json"]
        done = await anyio.to_thread.run_sync(CliRunner().invoke, cli, arguments)
        assert [result["state"] for result in json.loads(done.stdout)] == ["undone"]
        assert world.unschedulable("n1") is None
