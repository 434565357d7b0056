"""Undoes what runs left behind whose process is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path

import anyio

from chaosrunner.cluster.resources import NODES
from chaosrunner.cluster.session import ApiError, Cluster, Unreachable
from chaosrunner.errors import UserError
from chaosrunner.journal import fields, lock, process
from chaosrunner.journal.journal import Connection, Entry, Reopened, State
from chaosrunner.journal.undo import UndoResult, mark, result, undo_entry
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Emit

Connect = Callable[[Connection], AbstractAsyncContextManager[Cluster]]
"""Opens the cluster that an entry names. May raise Unreachable or UserError."""


def _nowhere(_: rows.Row) -> None:
    """The place of rows where nothing records."""


async def recover(
    journals: Iterable[Path],
    connect: Connect,
    *,
    emit: Emit = _nowhere,
    foreign: bool = False,
    patience: float = 0.0,
) -> list[UndoResult]:
    """Undoes every open entry of the journals, newest first, each also when another fails. Idempotent.

    Entries of a run that is alive are left alone; those of a run on another host too, since nobody here can
    tell whether it is alive, unless `foreign` says that it is not; and those that somebody else undoes at this moment.
    A journal that cannot be read is a failed result of its own, the last, and keeps no other from being undone. For
    `patience` seconds a cluster that is away is asked again.
    """
    until = anyio.current_time() + patience
    with ExitStack() as locks:
        ledgers: list[Reopened] = []
        unreadable: list[UndoResult] = []
        busy: set[Path] = set()
        for path in journals:
            try:
                try:
                    locks.enter_context(lock.held(path))
                except lock.Busy:
                    busy.add(path)
                ledgers.append(Reopened(path))
            except OSError as error:
                unreadable.append(_unreadable(path, error))
        work = [(entry, ledger) for ledger in ledgers for entry in ledger.open()]
        work.sort(key=lambda item: item[0].wall, reverse=True)
        results: dict[str, UndoResult] = {}
        by_cluster: dict[Connection, list[tuple[Entry, Reopened]]] = {}
        for entry, ledger in work:
            if left := left_alone(entry, foreign, busy=ledger.path in busy):
                results[entry.entry] = left
            else:
                by_cluster.setdefault(entry.connection, []).append((entry, ledger))
        for connection, items in by_cluster.items():
            try:
                async with connect(connection) as cluster:
                    for entry, ledger in items:
                        results[entry.entry] = await undo_entry(cluster, ledger, entry, emit, until=until)
            except (Unreachable, UserError) as error:
                for entry, ledger in items:
                    if entry.entry not in results:
                        await mark(ledger, entry, "undo_failed", str(error))
                        results[entry.entry] = result(entry, "undo_failed", str(error))
        return [*(results[entry.entry] for entry, _ in work), *unreadable]


async def recover_annotated(
    cluster: Cluster,
    connection: Connection,
    *,
    known: Collection[str] = (),
    emit: Emit = _nowhere,
    foreign: bool = False,
) -> list[UndoResult]:
    """Undoes what annotations on nodes tell where the journal is not at hand, newest first.

    `known` are entries that a journal at hand answers for. A run on another host is left alone unless `foreign`.
    Raises Unreachable, or UserError if nodes cannot be listed.
    """
    entries = [e for e in await annotated(cluster, connection) if e.entry not in known]
    entries.sort(key=lambda entry: entry.wall, reverse=True)
    results = []
    for entry in entries:
        results.append(left_alone(entry, foreign) or await undo_entry(cluster, _Unwritten(), entry, emit))
    return results


async def annotated(cluster: Cluster, connection: Connection) -> list[Entry]:
    """Entries as the undo annotations of the cluster's nodes tell them.

    Raises Unreachable, or UserError if nodes cannot be listed.
    """
    try:
        nodes = (await cluster.list(NODES)).items
    except ApiError as error:
        raise UserError(str(error)) from error
    entries = []
    for node in nodes:
        name = node["metadata"]["name"]
        target = rows.Target(kind="Node", name=name, uid=node["metadata"]["uid"])
        entries += [fields.entry(note, target, NODES.path(name=name), connection) for note in fields.notes_of(node)]
    return entries


class _Unwritten:
    """The ledger of entries that only an annotation tells of; the annotation itself is the record."""

    def open(self) -> list[Entry]:
        return []

    def state(self, _: Entry) -> State:
        return "applied"

    async def mark(self, entry: Entry, state: State, detail: str | None = None) -> None:
        pass


def same_cluster(cluster: Cluster, connection: Connection) -> None:
    """Raises UserError where this is not the run's cluster: an object that is not there would count as undone."""
    if connection.server not in (None, cluster.server):
        raise UserError(
            f"the run was on {connection.server}, and context {cluster.context} is {cluster.server} now; "
            "give the --kubeconfig and --context that lead there"
        )


def left_alone(entry: Entry, foreign: bool, *, busy: bool = False) -> UndoResult | None:
    """The result of an entry that is not to be undone now; None where it is."""
    owner = entry.owner
    match process.liveness(owner):
        case "alive":
            return result(entry, "left_alone", f"its run is alive (process {owner.pid})", alive=True)
        case "unknown" if not foreign:
            reason = f"its run was started on {owner.host}; nobody here can tell whether it is alive"
            return result(entry, "left_alone", reason)
        case _ if busy:
            return result(
                entry, "left_alone", "its guardian, or another `recover`, undoes it at this moment", alive=True
            )
        case _:
            return None


def _unreadable(path: Path, error: OSError) -> UndoResult:
    return UndoResult(
        entry="",
        run=path.parent.name,
        drill=path.parent.parent.name,
        fault="unknown",
        target=rows.Target(kind="Journal", name=path.name),
        state="undo_failed",
        detail=f"{path} cannot be read: {error.strerror}",
    )
