"""Undoes journal entries on a cluster: at the end of a run, and after a crash."""

from __future__ import annotations

from typing import Literal, Protocol

import anyio
import msgspec
import structlog

from chaosrunner.cluster.actions import change
from chaosrunner.cluster.answers import settled
from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import Object
from chaosrunner.cluster.session import JSON_PATCH, Answer, ApiError, Cluster, Unreachable
from chaosrunner.errors import UserError
from chaosrunner.journal import created, fields, injected, ran
from chaosrunner.journal.journal import Created, Entry, Injected, JournalLost, Ran, State, Toxic
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Emit

log = structlog.get_logger()

ATTEMPTS = 3
"""How often an undo that fails is tried."""

PAUSE = 0.25
"""Seconds before the second attempt; the pause doubles from one to the next."""

LONGEST_PAUSE = 5.0
"""Most seconds between two attempts."""

CONFLICTS = 20
"""How often an object may change under our hands before an attempt counts as failed (a node's status does often)."""


class UndoResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of one entry."""

    entry: str
    run: str
    drill: str
    fault: str
    target: rows.Target
    state: State | Literal["left_alone"]
    """As in the journal; left_alone: its run is alive, or nobody here can tell."""
    alive: bool | None = None
    """Where it was left alone: true if its run is alive; None where nobody here can tell."""
    detail: str | None = None
    command: str | None = None
    """Where the undo failed or was left: the command with which a person can do it."""

    @property
    def ok(self) -> bool:
        return self.state not in ("undo_failed", "left_alone")


class Ledger(Protocol):
    """What undoing needs of a journal."""

    def open(self) -> list[Entry]: ...
    def state(self, entry: Entry) -> State: ...
    async def mark(self, entry: Entry, state: State, detail: str | None = None) -> None: ...


async def send_patch(
    cluster: Cluster,
    emit: Emit,
    entry: Entry,
    operations: list[fields.Operation],
    action: str,
    *,
    step: int | None = None,
    undo: bool = False,
) -> Answer:
    """Sends a JSON Patch to an entry's object under our name as field manager. Raises Unreachable."""
    return await change(
        cluster,
        emit,
        action,
        entry.target,
        "PATCH",
        entry.resource,
        operations,
        content_type=JSON_PATCH,
        query={"fieldManager": fields.MANAGER},
        step=step,
        undo=undo,
    )


async def undo_all(cluster: Cluster, ledger: Ledger, emit: Emit, *, patience: float = 0.0) -> list[UndoResult]:
    """Undoes every open entry, newest first; one that fails does not keep the others from being tried.

    A cluster that is away, or not up to it, is asked again for `patience` seconds in all. Run it inside a shielded
    cancel scope: an abort must not stop it half-way.
    """
    until = anyio.current_time() + patience
    return [await undo_entry(cluster, ledger, entry, emit, until=until) for entry in ledger.open()]


async def undo_entry(cluster: Cluster, ledger: Ledger, entry: Entry, emit: Emit, *, until: float = 0.0) -> UndoResult:
    """Undoes one entry and marks it. Doing it twice changes nothing the second time.

    `until` (of `anyio.current_time`): how long a cluster that is away, or answers by an error that goes by itself
    (`Cluster.passing`), does not count as a failed attempt.
    """
    decision = fields.Decision(state="undo_failed", detail="not tried")
    failures, backoff = 0, Backoff(PAUSE, LONGEST_PAUSE)
    while failures < ATTEMPTS:
        away, asked = True, None
        try:
            decision = await _undo_of(entry)(cluster, entry, ledger.state(entry), emit)
        except Unreachable as error:
            decision = fields.Decision(state="undo_failed", detail=error.told)
        except UserError as error:
            decision = fields.Decision(state="undo_failed", detail=str(error))
        except ApiError as error:
            said = f"{error.server} answers HTTP {error.answer.status} {error.answer.message}".strip()
            decision = fields.Decision(state="undo_failed", detail=said)
            away, asked = cluster.passing(error.answer), error.answer.retry_after
        else:
            away = False
        if decision.state != "undo_failed":
            break
        failures += not away or anyio.current_time() >= until
        if failures < ATTEMPTS:
            await anyio.sleep(backoff.next(asked))
    await mark(ledger, entry, decision.state, decision.detail)
    failed = decision.state == "undo_failed"
    log.log(40 if failed else 20, "undo", target=entry.target.name, state=decision.state, detail=decision.detail)
    return result(entry, decision.state, decision.detail)


async def mark(ledger: Ledger, entry: Entry, state: State, detail: str | None) -> None:
    """Marks an entry. A ledger that cannot be written must not keep other entries from being undone: the object
    itself tells the next undo that nothing is left to do."""
    try:
        await ledger.mark(entry, state, detail)
    except JournalLost as error:
        log.error("the journal cannot be written", target=entry.target.name, state=state, error=str(error))


def result(
    entry: Entry, state: State | Literal["left_alone"], detail: str | None, *, alive: bool | None = None
) -> UndoResult:
    needs_a_person = state in ("undo_failed", "left_alone")
    return UndoResult(
        entry=entry.entry,
        run=entry.run,
        drill=entry.drill,
        fault=entry.fault,
        target=entry.target,
        state=state,
        alive=alive,
        detail=detail,
        command=command(entry) if needs_a_person else None,
    )


def command(entry: Entry) -> str:
    """What a person types to do what undo could not."""
    match entry.made:
        case None:
            return fields.command(entry)
        case Injected():
            return injected.command(entry)
        case Toxic():
            from chaosrunner.journal import toxic

            return toxic.command(entry)
        case Created():
            own = [fields.command(entry)] if entry.fields else []
            return "; ".join([created.command(entry), *own])
        case Ran():
            return ran.command(entry)


class Undo(Protocol):
    """One try to take back what an entry announced, which may be done twice: what it came to. Raises Unreachable,
    ApiError where somebody refuses, and UserError; it is then tried again."""

    async def __call__(self, cluster: Cluster, entry: Entry, state: State, emit: Emit) -> fields.Decision: ...


def _undo_of(entry: Entry) -> Undo:
    match entry.made:
        case None:
            return _put_back
        case Injected():
            return injected.undo
        case Toxic():
            from chaosrunner.journal import toxic  # with an HTTP client, which no other undo waits for

            return toxic.undo
        case Created():
            return _delete_and_put_back
        case Ran():
            return ran.undo


async def _delete_and_put_back(cluster: Cluster, entry: Entry, state: State, emit: Emit) -> fields.Decision:
    """Deletes what was created, then what was changed for it. Raises Unreachable and ApiError."""
    deleted = await created.undo(cluster, entry, state, emit)
    if not entry.fields or deleted.state == "undo_failed":
        return deleted
    restored = await _put_back(cluster, entry, state, emit)
    ranked: tuple[State, ...] = ("undo_failed", "changed_by_others", "undone", "already_undone")
    worst: State = next((each for each in ranked if each in (deleted.state, restored.state)), "not_applied")
    said = [each.detail for each in (deleted, restored) if each.state == worst and each.detail]
    return fields.Decision(state=worst, detail="; ".join(said) or None)


async def _put_back(cluster: Cluster, entry: Entry, state: State, emit: Emit) -> fields.Decision:
    """Gives an object's fields their previous values. Raises Unreachable, and ApiError where the server refuses."""
    for _ in range(CONFLICTS):
        answer = await cluster.request("GET", entry.resource)
        if answer.status == 404:
            return fields.Decision(state="already_undone", detail="undone_by_removal: the object is gone")
        if answer.status != 200:
            raise ApiError("read", answer)
        decision = fields.undo(answer.body, entry, state)
        if not decision.operations:
            if decision.state == "not_applied" and not await _fenced(cluster, entry, answer.body, emit):
                continue
            return decision
        answer = await send_patch(cluster, emit, entry, decision.operations, f"undo_{entry.fault}", undo=True)
        if answer.status == 200:
            return await _verified(cluster, entry, decision)
        if answer.status not in (409, 422):  # the object changed since it was read: read it again
            raise ApiError("put back", answer)
    return fields.Decision(state="undo_failed", detail=f"the object changed {CONFLICTS} times between read and patch")


async def _fenced(cluster: Cluster, entry: Entry, obj: Object, emit: Emit) -> bool:
    """Makes sure that a call of ours whose answer never came is not carried out after all; False if the object
    changed meanwhile. Raises Unreachable, and ApiError where the server is not up to it."""
    operations, fenced = fields.fence(obj, entry), False
    for _ in range(CONFLICTS):
        if not operations:
            break
        answer = await send_patch(cluster, emit, entry, operations, "fence", undo=True)
        if answer.status in (409, 422):
            if not fenced:
                return False
            answer = await cluster.request("GET", entry.resource)
        if cluster.passing(answer) or not settled(answer.status, answer.body):
            raise ApiError("fence", answer)
        if not answer.ok:
            # Without the right to change the object nothing of ours can be on its way either.
            break
        fenced = True
        operations = fields.unfence(answer.body)
    return True


async def _verified(cluster: Cluster, entry: Entry, decision: fields.Decision) -> fields.Decision:
    """The undo as seen from outside: the annotation is gone and no field has our value any more."""
    try:
        answer = await cluster.request("GET", entry.resource)
    except Unreachable:
        return decision  # the patch was accepted
    if answer.status != 200:
        return decision
    if fields.noted(answer.body, entry):
        return fields.Decision(state="undo_failed", detail="the patch was accepted, but the object is as it was")
    return decision
