"""Undoes what killed runs left, for the command line."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click
import structlog
from rich.console import Console

from chaosrunner.cli.leftovers import crashed, journals
from chaosrunner.cli.options import TIMELINES, cluster_config
from chaosrunner.cli.output import out, print_json
from chaosrunner.cluster import Cluster, Unreachable, connect
from chaosrunner.cluster import lease as leases
from chaosrunner.errors import Refused, UserError
from chaosrunner.journal.journal import NAME as JOURNAL
from chaosrunner.journal.journal import Connection, Entry, Reopened, open_entries
from chaosrunner.journal.journal import read as read_journal
from chaosrunner.journal.recover import Connect, recover_annotated
from chaosrunner.journal.recover import recover as undo
from chaosrunner.journal.undo import UndoResult
from chaosrunner.reports.document import Cell, Style, Table
from chaosrunner.reports.terminal import print_table
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.manifest import Manifest
from chaosrunner.timeline.rows import Target

log = structlog.get_logger()

ROLLBACK_FAILED = 5
UNCLEAR = 3


def recover(timelines: Path, from_cluster: bool, foreign: bool, forget: str | None, output: str, **flags: Any) -> int:
    if forget is None:
        results = anyio.run(partial(recover_below, timelines, flags, from_cluster=from_cluster, foreign=foreign))
    elif from_cluster:
        raise UserError("--forget is about a cluster that is gone, and --from-cluster reads one: give one of them")
    else:
        results = anyio.run(_give_up, timelines, forget, flags, foreign)
    if output == "json":
        print_json(results)
    elif not results:
        where = f"below {timelines}" + (" or on the cluster" if from_cluster else "")
        click.echo(f"nothing to recover {where}" if forget is None else f"nothing is left of run {forget}")
    else:
        show(out(), results)
        for run in dict.fromkeys(result.run for result in results if result.state == "undo_failed" and result.entry):
            click.echo(f"if its cluster is gone for good: {command(timelines)} --forget {run}", err=True)
    return exit_code(results)


def exit_code(results: list[UndoResult]) -> int:
    """5 if something could not be put back, else 3 if something was left that nobody here can judge."""
    if any(result.state == "undo_failed" for result in results):
        return ROLLBACK_FAILED
    return UNCLEAR if any(result.state == "left_alone" and not result.alive for result in results) else 0


def show(console: Console, results: list[UndoResult]) -> None:
    columns = ("object", "fault", "run", "result", "detail")
    print_table(console, Table(columns, [_row(result) for result in results], wrap=frozenset({0, 4})))
    for result in results:
        if result.command and not result.alive:
            console.print(f"by hand: {result.command}", soft_wrap=True)
    for run in dict.fromkeys(result.run for result in results if result.state == "forgotten"):
        said = f"given up: what run {run} left stays as it is, should its cluster be there after all"
        console.print(said, soft_wrap=True)


def command(timelines: Path, kubeconfig: str | None = None) -> str:
    """What to type to recover."""
    words = ["chaosrunner", "recover"]
    words += ["--timelines", str(timelines)] if timelines != TIMELINES else []
    words += ["--kubeconfig", kubeconfig] if kubeconfig else []
    return shlex.join(words)


async def recover_below(
    timelines: Path, flags: dict[str, Any], *, from_cluster: bool = False, foreign: bool = False
) -> list[UndoResult]:
    """Undoes what dead runs below `timelines` left, then removes the Leases that they still hold.

    `flags` of the command line (see `options.CLUSTER`) win over what the journals say. Raises Refused where
    `from_cluster` asks for a cluster that cannot be reached.
    """

    reach = _reach(flags)
    paths = journals(timelines)
    results = await undo(paths, reach, foreign=foreign)
    if from_cluster:
        # A closed entry whose annotation is on an object all the same was carried out after it was closed: a call
        # whose answer never came may still arrive.
        known = {entry.entry for path in paths for entry in _open(path)}
        here = Connection(kubeconfig=flags["kubeconfig"], context=flags["context"], namespace=flags["namespace"])
        try:
            async with reach(here) as cluster:
                results += await recover_annotated(cluster, here, known=known, foreign=foreign)
        except Unreachable as error:
            raise Refused(f"the cluster cannot be reached: {error}") from error
    held: dict[Connection, list[Manifest]] = {}
    for folder, manifest in crashed(timelines):
        held.setdefault(_connection(folder, manifest), []).append(manifest)
    for connection, dead in held.items():
        try:
            async with reach(connection) as cluster:
                for manifest in dead:
                    results += await _free(cluster, manifest)
        except (Unreachable, UserError) as error:
            # A Lease that nobody renews expires by itself: no reason to fail.
            log.info("leases of dead runs cannot be looked for", context=connection.context, error=str(error))
    return results


def _reach(flags: dict[str, Any]) -> Connect:
    """Opens a cluster as a run did, unless the command line says otherwise."""

    @asynccontextmanager
    async def reach(connection: Connection) -> AsyncIterator[Cluster]:
        config = cluster_config(flags, context=connection.context, namespace=connection.namespace)
        config = replace(
            config,
            kubeconfig=config.kubeconfig or connection.kubeconfig,
            as_user=config.as_user or connection.as_user,
            as_groups=config.as_groups or connection.as_group,
        )
        async with connect(config, Clock()) as cluster:
            if connection.server not in (None, cluster.server):
                # On another cluster an object that is not there would count as undone.
                raise UserError(
                    f"the run was on {connection.server}, and context {cluster.context} is {cluster.server} now; "
                    "give the --kubeconfig and --context that lead there"
                )
            yield cluster

    return reach


async def _give_up(timelines: Path, run: str, flags: dict[str, Any], foreign: bool) -> list[UndoResult]:
    """Undoes what one run left, and marks what cannot be undone as not to be tried again.

    A run that is alive, or of which nobody here can tell, loses nothing. Raises UserError where there is no such run.
    """
    paths = [path for path in journals(timelines) if path.parent.name == run]
    if not paths:
        raise UserError(f"no run {run} with a journal below {timelines}; see: chaosrunner runs list")
    results = await undo(paths, _reach(flags), foreign=foreign)
    failed = {result.entry: result for result in results if result.state == "undo_failed"}
    for path in paths:
        ledger = Reopened(path)
        for entry in ledger.open():
            if result := failed.get(entry.entry):
                await ledger.mark(entry, "forgotten", result.detail)
                result.state = "forgotten"
    return results


def _open(path: Path) -> list[Entry]:
    """Entries of a journal that ask for an undo; none where it cannot be read."""
    try:
        return open_entries(path)
    except OSError:
        return []


def _entries(path: Path) -> dict[str, Connection]:
    """Entries of a journal and how they were reached; none where it cannot be read."""
    try:
        return {entry.entry: entry.connection for entry, _ in read_journal(path)}
    except OSError:
        return {}


def _connection(folder: Path, manifest: Manifest) -> Connection:
    """How a run reached its cluster: by its journal where that has an entry, else by the manifest's context."""
    path = folder / JOURNAL
    known = list(_entries(path).values())
    return known[0] if known else Connection(context=manifest.context, namespace=manifest.workload.namespace)


async def _free(cluster: Cluster, manifest: Manifest) -> list[UndoResult]:
    """Removes the Lease on a dead run's target, if it is still that run's. Raises Unreachable."""
    workload = manifest.workload
    name = leases.name_for(workload.controller or workload.selector)
    if not await leases.remove(cluster, workload.namespace, name, manifest.run):
        return []
    target = Target(kind="Lease", name=name, namespace=workload.namespace)
    run, drill = manifest.run, manifest.drill
    return [UndoResult(entry="", run=run, drill=drill, fault="lock", target=target, state="undone")]


def _row(result: UndoResult) -> tuple[Cell | str, ...]:
    styles: dict[str, Style] = {"undo_failed": "bad", "left_alone": "warn", "forgotten": "warn"}
    name = f"{result.target.kind.lower()}/{result.target.name}"
    return (
        name,
        result.fault,
        result.run,
        Cell(result.state.replace("_", " "), styles.get(result.state, "good")),
        result.detail or "",
    )
