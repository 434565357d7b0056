"""Undoes what killed runs left, for the command line."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import click
import structlog
from rich.console import Console

from chaosrunner.cli.leftovers import crashed, journals
from chaosrunner.cli.options import CLUSTER, TIMELINES, cluster_config
from chaosrunner.cli.output import err, out, print_json
from chaosrunner.cluster import ApiError, Cluster, Unreachable, connect
from chaosrunner.cluster import lease as leases
from chaosrunner.cluster.resources import Object
from chaosrunner.errors import Refused, UserError
from chaosrunner.journal import lock, toxic
from chaosrunner.journal.finding import annotated
from chaosrunner.journal.journal import NAME as JOURNAL
from chaosrunner.journal.journal import Connection, Entry, Reopened, State, open_entries
from chaosrunner.journal.journal import read as read_journal
from chaosrunner.journal.recover import Connect, left_alone, recover_found, same_cluster, unreadable, wanted
from chaosrunner.journal.recover import recover as undo
from chaosrunner.journal.undo import UndoResult
from chaosrunner.journal.undo import result as described
from chaosrunner.reports.document import Cell, Style, Table
from chaosrunner.reports.terminal import print_table
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.manifest import Manifest
from chaosrunner.timeline.rows import Target

log = structlog.get_logger()

ROLLBACK_FAILED = 5
UNCLEAR = 3


def recover(timelines: Path, yes: bool, output: str, **given: Any) -> int:
    flags = {name: given.pop(name) for name in CLUSTER}
    work = _Work(timelines, flags, **given)
    if not yes:
        found = anyio.run(work.look)
        if any(result.state != "left_alone" for result in found):
            _confirm(found, output)
    results = anyio.run(work.do)
    if output == "json":
        print_json(results)
    elif not results:
        click.echo(work.nothing)
    else:
        show(out(), results)
        for run in dict.fromkeys(result.run for result in results if result.state == "undo_failed" and result.entry):
            gone = "if its cluster, or its Toxiproxy, is gone for good"
            click.echo(f"{gone}: {command(timelines)} --forget {run}", err=True)
    return exit_code(results)


def _confirm(found: list[UndoResult], output: str) -> None:
    """Shows what would be done and asks. Raises Refused where the answer is no, or nobody is there to answer."""
    if sys.stdin.isatty():
        show(err(), found)
        if agreed("Put it back?"):
            return
        raise Refused("not confirmed; nothing was changed")
    if output == "json":
        print_json(found)
    else:
        show(out(), found)
    raise Refused("nothing was changed, as nobody is there to say yes: give --yes")


def agreed(question: str) -> bool:
    """Asks on the terminal; Ctrl-C is a no."""
    try:
        with _interruptible():
            return click.confirm(question, err=True)
    except click.Abort:
        return False


def asked(question: str) -> str:
    """What is typed on the terminal; nothing where that is interrupted."""
    try:
        with _interruptible():
            return str(click.prompt(question, err=True))
    except click.Abort:
        return ""


@contextmanager
def _interruptible() -> Iterator[None]:
    """The event loop's own handler would only note a Ctrl-C, and a question would go on waiting."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


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


async def recover_below(timelines: Path, flags: dict[str, Any]) -> list[UndoResult]:
    """Undoes what dead runs below `timelines` left, then removes the Leases that they still hold.

    `flags` of the command line (see `options.CLUSTER`) win over what the journals say.
    """
    return await _Work(timelines, flags).do()


@dataclass(frozen=True)
class _Work:
    """What is to be recovered."""

    timelines: Path
    flags: dict[str, Any]
    """Of the command line (see `options.CLUSTER`); they win over what the journals say."""
    from_cluster: bool = False
    foreign: bool = False
    forget: str | None = None
    toxiproxy: str | None = None

    def __post_init__(self) -> None:
        if self.forget is not None and (self.from_cluster or self.toxiproxy):
            raise UserError(
                "--forget is about a cluster that is gone, and --from-cluster and --toxiproxy read what is there: "
                "give one of them"
            )

    @property
    def nothing(self) -> str:
        """Said where there is nothing to do."""
        if self.forget is not None:
            return f"nothing is left of run {self.forget}"
        looked = [f"below {self.timelines}"]
        looked += ["on the cluster"] if self.from_cluster else []
        looked += [f"on {self.toxiproxy}"] if self.toxiproxy else []
        return "nothing to recover " + " or ".join(looked)

    @property
    def _paths(self) -> list[Path]:
        """Journals. Raises UserError where there is none of the run to forget."""
        paths = journals(self.timelines)
        if self.forget is None:
            return paths
        if mine := [path for path in paths if path.parent.name == self.forget]:
            return mine
        raise UserError(f"no run {self.forget} with a journal below {self.timelines}; see: chaosrunner runs list")

    async def look(self) -> list[UndoResult]:
        """What `do` would do, without any change. Raises Refused where a cluster that is to be read is away."""
        found: list[UndoResult] = []
        for path in self._paths:
            found += survey(path, foreign=self.foreign)
        found += [_pending(entry, "applied", self.foreign) for entry in await self._elsewhere()]
        if self.forget is None:
            found += await self._leases(free=False)
        return found

    async def do(self) -> list[UndoResult]:
        """Undoes everything, then removes Leases. Raises Refused where a cluster that is to be read is away."""
        paths = self._paths
        results = await undo(paths, _reach(self.flags), foreign=self.foreign)
        if self.forget is not None:
            return await _give_up(paths, results)
        if found := await self._elsewhere():
            async with self._here() as cluster:
                results += await recover_found(cluster, found, foreign=self.foreign)
        return results + await self._leases(free=True)

    @asynccontextmanager
    async def _here(self) -> AsyncIterator[Cluster]:
        """The cluster of the command line. Raises Refused where it is away."""
        try:
            async with _reach(self.flags)(self._connection) as cluster:
                yield cluster
        except Unreachable as error:
            raise Refused(f"the cluster cannot be reached: {error}") from error

    @property
    def _connection(self) -> Connection:
        flags = self.flags
        return Connection(kubeconfig=flags["kubeconfig"], context=flags["context"], namespace=flags["namespace"])

    async def _elsewhere(self) -> list[Entry]:
        """Entries that no journal holds, as the cluster's objects and the proxy's toxics tell them."""
        # A closed entry whose note is on an object all the same was carried out after it was closed: a call whose
        # answer never came may still arrive.
        known = {entry.entry for path in self._paths for entry in _open(path)}
        found: list[Entry] = []
        if self.from_cluster:
            async with self._here() as cluster:
                entries, unseen = await annotated(cluster, self._connection)
            found += entries
            for what in unseen:
                log.warning("not looked at", what=what)
        if self.toxiproxy:
            try:
                found += await toxic.left(self.toxiproxy, Clock(), self._connection)
            except Unreachable as error:
                raise Refused(error.told) from error
            except ApiError as error:
                raise Refused(f"{error.server} cannot be read: {error}") from error
        return [entry for entry in found if entry.entry not in known]

    async def _leases(self, *, free: bool) -> list[UndoResult]:
        """Leases that dead runs hold; `free` removes them."""
        results: list[UndoResult] = []
        held: dict[Connection, list[Manifest]] = {}
        for folder, manifest in crashed(self.timelines):
            held.setdefault(_connection(folder, manifest), []).append(manifest)
        for connection, dead in held.items():
            try:
                async with _reach(self.flags)(connection) as cluster:
                    for manifest in dead:
                        results += await _free(cluster, manifest, free=free)
            except (Unreachable, UserError) as error:
                # A Lease that nobody renews expires by itself: no reason to fail.
                log.info("leases of dead runs cannot be looked for", context=connection.context, error=str(error))
        if self.from_cluster:
            known = {(result.target.namespace, result.target.name) for result in results}
            async with self._here() as cluster:
                try:
                    expired = await leases.expired(cluster, cluster.namespace)
                except ApiError as error:
                    log.warning("not looked at", what=str(error))
                    expired = []
                for lease in expired:
                    if (lease["metadata"]["namespace"], lease["metadata"]["name"]) not in known:
                        results += await _expire(cluster, lease, free=free)
        return results


def survey(path: Path, *, foreign: bool = False) -> list[UndoResult]:
    """What is still to be undone by a journal, with what an undo would do; of runs that are alive too."""
    try:
        ledger = Reopened(path)
        try:
            os.close(lock.take(path))
            busy = False
        except lock.Busy:
            busy = True
    except OSError as error:
        return [unreadable(path, error)]
    return [_pending(entry, ledger.state(entry), foreign, busy=busy) for entry in ledger.open()]


def _pending(entry: Entry, state: State, foreign: bool, *, busy: bool = False) -> UndoResult:
    if left := left_alone(entry, foreign, busy=busy):
        return left
    result = described(entry, state, f"would {wanted(entry)}")
    result.command = None
    return result


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
            same_cluster(cluster, connection)
            yield cluster

    return reach


async def _give_up(paths: list[Path], results: list[UndoResult]) -> list[UndoResult]:
    """Marks what could not be undone as not to be tried again.

    A run that is alive, or of which nobody here can tell, loses nothing.
    """
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


async def _free(cluster: Cluster, manifest: Manifest, *, free: bool) -> list[UndoResult]:
    """Removes the Lease on a dead run's target, if it is still that run's; with `free` false only tells of it.

    Raises Unreachable.
    """
    workload = manifest.workload
    name = leases.name_for(workload.controller or workload.selector)
    take = leases.remove if free else leases.holds
    if not await take(cluster, workload.namespace, name, manifest.run):
        return []
    return [_freed(name, workload.namespace, manifest.run, manifest.drill, free)]


async def _expire(cluster: Cluster, lease: Object, *, free: bool) -> list[UndoResult]:
    """Removes a Lease that has expired; with `free` false only tells of it. Raises Unreachable."""
    name, namespace = lease["metadata"]["name"], lease["metadata"]["namespace"]
    holder = lease["spec"].get("holderIdentity") or ""
    if free and not await leases.remove(cluster, namespace, name, holder):
        return []
    return [_freed(name, namespace, holder, "unknown", free)]


def _freed(name: str, namespace: str, run: str, drill: str, done: bool) -> UndoResult:
    return UndoResult(
        entry="",
        run=run,
        drill=drill,
        fault="lock",
        target=Target(kind="Lease", name=name, namespace=namespace),
        state="undone" if done else "applied",
        detail=None if done else "would remove it: the run that holds it is dead",
    )


def _row(result: UndoResult) -> tuple[Cell | str, ...]:
    styles: dict[str, Style] = {"undo_failed": "bad", "left_alone": "warn", "forgotten": "warn"}
    name = f"{result.target.kind.lower()}/{result.target.name}"
    words = {"intent": "to be undone", "applied": "to be undone"}
    return (
        name,
        result.fault,
        result.run,
        Cell(words.get(result.state, result.state.replace("_", " ")), styles.get(result.state, "good")),
        result.detail or "",
    )
