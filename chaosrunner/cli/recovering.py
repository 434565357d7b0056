"""Undoes what killed runs left, for the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click

from chaosrunner.cli.options import cluster_config
from chaosrunner.cli.output import out, print_json
from chaosrunner.cluster import Cluster, Unreachable, connect
from chaosrunner.errors import Refused
from chaosrunner.journal.journal import Connection, find_journals
from chaosrunner.journal.journal import read as read_journal
from chaosrunner.journal.recover import recover as undo
from chaosrunner.journal.recover import recover_annotated
from chaosrunner.journal.undo import UndoResult
from chaosrunner.reports.document import Cell, Style, Table
from chaosrunner.reports.terminal import print_table
from chaosrunner.timeline.clock import Clock

ROLLBACK_FAILED = 5


def recover(timelines: Path, from_cluster: bool, foreign: bool, output: str, **flags: Any) -> int:
    results = anyio.run(partial(_recover, timelines, from_cluster, foreign, flags))
    if output == "json":
        print_json(results)
    elif not results:
        where = f"below {timelines}" + (" or on the cluster" if from_cluster else "")
        click.echo(f"nothing to recover {where}")
    else:
        columns = ("object", "fault", "run", "result", "detail")
        print_table(out(), Table(columns, [_row(result) for result in results], wrap=frozenset({0, 4})))
        for result in results:
            if not result.ok and result.command:
                click.echo(f"by hand: {result.command}")
    return ROLLBACK_FAILED if any(result.state == "undo_failed" for result in results) else 0


def _row(result: UndoResult) -> tuple[Cell | str, ...]:
    style: Style = "good" if result.ok else "bad" if result.state == "undo_failed" else "warn"
    name = f"{result.target.kind.lower()}/{result.target.name}"
    return name, result.fault, result.run, Cell(result.state.replace("_", " "), style), result.detail or ""


async def _recover(timelines: Path, from_cluster: bool, foreign: bool, flags: dict[str, Any]) -> list[UndoResult]:
    @asynccontextmanager
    async def reach(connection: Connection) -> AsyncIterator[Cluster]:
        """As the run did, unless the command line says otherwise."""
        config = cluster_config(flags, context=connection.context, namespace=connection.namespace)
        config = replace(
            config,
            kubeconfig=config.kubeconfig or connection.kubeconfig,
            as_user=config.as_user or connection.as_user,
            as_groups=config.as_groups or connection.as_group,
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
