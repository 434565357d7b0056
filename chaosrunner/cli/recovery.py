"""`recover`: puts back what a run left changed whose process is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click

from chaosrunner.cli.options import cluster_options, read_timeout, timelines_option
from chaosrunner.cli.output import output_option, print_json, show_table
from chaosrunner.cluster import Cluster, ClusterConfig, Unreachable, connect
from chaosrunner.errors import Refused
from chaosrunner.journal.journal import Connection, find_journals
from chaosrunner.journal.journal import read as read_journal
from chaosrunner.journal.recover import recover as undo
from chaosrunner.journal.recover import recover_annotated
from chaosrunner.journal.undo import UndoResult
from chaosrunner.reports.sections import Cell, Style, Table
from chaosrunner.timeline.clock import Clock

ROLLBACK_FAILED = 5


@click.command()
@timelines_option
@cluster_options
@click.option("--from-cluster", is_flag=True, help="Also look for changes that only the cluster's objects tell of.")
@click.option("--foreign", is_flag=True, help="Also undo runs of other hosts; you know that they are no longer alive.")
@output_option("text", "json")
def recover(timelines: Path, from_cluster: bool, foreign: bool, output: str, **flags: Any) -> None:
    """Put back what a killed run left changed, as it was before.

    Reads the journals below --timelines; runs that are alive are left alone. What somebody changed since is left as
    they want it. Doing it twice changes nothing. With --from-cluster the annotations that chaosrunner leaves on what
    it changes are read too, so that a lost journal loses nothing. Exit code 5 if something could not be put back.

    \b
    chaosrunner recover
    chaosrunner recover --from-cluster --context staging
    """
    timeout = read_timeout(flags["request_timeout"])
    results = anyio.run(partial(_recover, timelines, from_cluster, foreign, flags, timeout))
    if output == "json":
        print_json(results)
    elif not results:
        click.echo("nothing to recover")
    else:
        show_table(Table(("object", "fault", "run", "result", "detail"), [_row(r) for r in results]))
        for result in results:
            if not result.ok and result.command:
                click.echo(f"by hand: {result.command}")
    if any(result.state == "undo_failed" for result in results):
        raise click.exceptions.Exit(ROLLBACK_FAILED)


def _row(result: UndoResult) -> tuple[Cell | str, ...]:
    style: Style = "good" if result.ok else "bad" if result.state == "undo_failed" else "warn"
    name = f"{result.target.kind.lower()}/{result.target.name}"
    return name, result.fault, result.run, Cell(result.state.replace("_", " "), style), result.detail or ""


async def _recover(
    timelines: Path, from_cluster: bool, foreign: bool, flags: dict[str, Any], timeout: float | None
) -> list[UndoResult]:
    @asynccontextmanager
    async def reach(connection: Connection) -> AsyncIterator[Cluster]:
        """As the run did, unless the command line says otherwise."""
        config = ClusterConfig(
            kubeconfig=flags["kubeconfig"] or connection.kubeconfig,
            context=flags["context"] or connection.context,
            namespace=flags["namespace"] or connection.namespace,
            as_user=flags["as_user"] or connection.as_user,
            as_groups=tuple(flags["as_groups"]) or connection.as_group,
            **({} if timeout is None else {"request_timeout": timeout}),
        )
        async with connect(config, Clock()) as cluster:
            yield cluster

    journals = find_journals(timelines)
    results = await undo(journals, reach, foreign=foreign)
    if from_cluster:
        known = {entry.entry for path in journals for entry, _ in read_journal(path)}
        here = Connection(kubeconfig=flags["kubeconfig"], context=flags["context"], namespace=flags["namespace"])
        try:
            async with reach(here) as cluster:
                results += await recover_annotated(cluster, here, known=known, foreign=foreign)
        except Unreachable as error:
            raise Refused(f"the cluster cannot be reached: {error}") from error
    return results
