"""Undoes what runs left behind whose process is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from chaosrunner.cluster.resources import NODES
from chaosrunner.cluster.session import ApiError, Cluster, Unreachable
from chaosrunner.errors import UserError
from chaosrunner.journal import fields, process
from chaosrunner.journal.journal import Connection, Entry, Reopened, State
from chaosrunner.journal.undo import UndoResult, mark, result, undo_entry
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Emit

Connect = Callable[[Connection], AbstractAsyncContextManager[Cluster]]
"""Opens the cluster that an entry names. May raise Unreachable or UserError."""


def _nowhere(_: rows.Row) -> None:
    """The place of rows where nothing records."""


async def recover(
    journals: Iterable[Path], connect: Connect, *, emit: Emit = _nowhere, foreign: bool = False
) -> list[UndoResult]:
    """Undoes every open entry of the journals, newest first, each also when another fails. Idempotent.

    Entries of a run that is alive are left alone; those of a run on another host too, since nobody here can
    tell whether it is alive, unless `foreign` says that it is not. A journal that cannot be read is a failed result
    of its own, the last, and keeps no other from being undone.
    """
    ledgers: list[Reopened] = []
    unreadable: list[UndoResult] = []
    for path in journals:
        try:
            ledgers.append(Reopened(path))
        except OSError as error:
            unreadable.append(_unreadable(path, error))
    work = [(entry, ledger) for ledger in ledgers for entry in ledger.open()]
    work.sort(key=lambda item: item[0].wall, reverse=True)
    results: dict[str, UndoResult] = {}
    by_cluster: dict[Connection, list[tuple[Entry, Reopened]]] = {}
    for entry, ledger in work:
        if left := _left_alone(entry, foreign):
            results[entry.entry] = left
        else:
            by_cluster.setdefault(entry.connection, []).append((entry, ledger))
    for connection, items in by_cluster.items():
        try:
            async with connect(connection) as cluster:
                for entry, ledger in items:
                    results[entry.entry] = await undo_entry(cluster, ledger, entry, emit)
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
        results.append(_left_alone(entry, foreign) or await undo_entry(cluster, _Unwritten(), entry, emit))
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
        note = fields.note_of(node)
        if note is not None:
            name = node["metadata"]["name"]
            target = rows.Target(kind="Node", name=name, uid=node["metadata"]["uid"])
            entries.append(fields.entry(note, target, NODES.path(name=name), connection))
    return entries


class _Unwritten:
    """The ledger of entries that only an annotation tells of; the annotation itself is the record."""

    def open(self) -> list[Entry]:
        return []

    def state(self, _: Entry) -> State:
        return "applied"

    async def mark(self, entry: Entry, state: State, detail: str | None = None) -> None:
        pass


def _left_alone(entry: Entry, foreign: bool) -> UndoResult | None:
    """The result of an entry that is not to be undone now; None where it is."""
    owner = entry.owner
    match process.liveness(owner):
        case "alive":
            return result(entry, "left_alone", f"its run is alive (process {owner.pid})", alive=True)
        case "unknown" if not foreign:
            reason = f"its run was started on {owner.host}; nobody here can tell whether it is alive"
            return result(entry, "left_alone", reason)
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
