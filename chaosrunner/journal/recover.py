"""Undoes what runs left behind whose process is gone."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path

import anyio
import msgspec
import structlog

from chaosrunner.cluster.session import Cluster, Unreachable
from chaosrunner.errors import UserError
from chaosrunner.journal import lock, process
from chaosrunner.journal.finding import annotated
from chaosrunner.journal.journal import Connection, Created, Entry, Injected, Ran, Reopened, State, Toxic
from chaosrunner.journal.undo import UndoResult, mark, result, undo_entry
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Emit

log = structlog.get_logger()

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
        failed: list[UndoResult] = []
        busy: set[Path] = set()
        for path in journals:
            try:
                try:
                    locks.enter_context(lock.held(path))
                except lock.Busy:
                    busy.add(path)
                ledgers.append(Reopened(path))
            except OSError as error:
                failed.append(unreadable(path, error))
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
                said = error.told if isinstance(error, Unreachable) else str(error)
                for entry, ledger in items:
                    if entry.entry not in results:
                        await mark(ledger, entry, "undo_failed", said)
                        results[entry.entry] = result(entry, "undo_failed", said)
        return [*(results[entry.entry] for entry, _ in work), *failed]


async def recover_annotated(
    cluster: Cluster,
    connection: Connection,
    *,
    known: Collection[str] = (),
    emit: Emit = _nowhere,
    foreign: bool = False,
) -> list[UndoResult]:
    """Undoes what the cluster's objects tell of where the journal is not at hand, newest first.

    `known` are entries that a journal at hand answers for. A run on another host is left alone unless `foreign`.
    Raises Unreachable, or UserError if nothing can be listed.
    """
    entries, unseen = await annotated(cluster, connection)
    for what in unseen:
        log.warning("not looked at", what=what)
    return await recover_found(cluster, [e for e in entries if e.entry not in known], emit=emit, foreign=foreign)


async def recover_found(
    cluster: Cluster, entries: Iterable[Entry], *, emit: Emit = _nowhere, foreign: bool = False
) -> list[UndoResult]:
    """Undoes entries that no journal at hand holds, in this order."""
    return [left_alone(entry, foreign) or await undo_entry(cluster, _Unwritten(), entry, emit) for entry in entries]


class _Unwritten:
    """The ledger of entries that only an annotation tells of; the annotation itself is the record."""

    def open(self) -> list[Entry]:
        return []

    def state(self, _: Entry) -> State:
        return "applied"

    async def mark(self, entry: Entry, state: State, detail: str | None = None) -> None:
        pass


def wanted(entry: Entry) -> str:
    """What an undo of the entry would do, in words."""
    match entry.made:
        case Injected(container=name):
            return f"end what its container {name} does"
        case Created():
            return "delete it"
        case Toxic(proxy=proxy):
            return f"remove its toxics from proxy {proxy}"
        case Ran(undo=None):
            return "nothing: its command has no undo"
        case Ran(undo=argv):
            return f"run: {shlex.join(argv or ())}"
        case None:
            changes = (f"{field.path} from {_said(field.desired)} to {_said(field.previous)}" for field in entry.fields)
            return "put back " + ", ".join(changes)


def _said(value: object) -> str:
    return "absent" if value is None else msgspec.json.encode(value).decode()


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


def unreadable(path: Path, error: OSError) -> UndoResult:
    return UndoResult(
        entry="",
        run=path.parent.name,
        drill=path.parent.parent.name,
        fault="unknown",
        target=rows.Target(kind="Journal", name=path.name),
        state="undo_failed",
        detail=f"{path} cannot be read: {error.strerror}",
    )
