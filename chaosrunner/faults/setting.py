"""What faults that set fields of objects have in common: journaled, made in one patch with its undo, put back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import anyio

from chaosrunner.cluster.actions import target_of
from chaosrunner.cluster.answers import classify, settled
from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import Object, Resource
from chaosrunner.cluster.session import Answer, ApiError, Unreachable
from chaosrunner.errors import UserError
from chaosrunner.faults.base import Context, FaultResult, PlanContext, Preview, TargetResult, Touch, refuse, verdict_of
from chaosrunner.journal import fields
from chaosrunner.journal.journal import Entry, Field
from chaosrunner.journal.undo import CONFLICTS, UndoResult, send_patch, undo_entry
from chaosrunner.timeline import rows


class Setting(ABC):
    """Gives one field of each target another value. One that has it already is left alone, and stays so in the end."""

    name: str
    done: str
    """The target afterwards, in a word: `cordoned`."""
    resource: Resource

    def __init__(self, targets: Sequence[rows.Target]) -> None:
        self.targets = list(targets)
        self._entries: list[Entry] = []

    @abstractmethod
    def field(self, obj: Object) -> Field:
        """What is to be changed on the object as it is. Raises UserError where it cannot be."""

    async def plan(self, context: PlanContext) -> Preview:
        preview = Preview(undo="restore")
        for target in self.targets:
            what = self._called(target)
            answer = await context.cluster.get(self.resource, target.name, target.namespace)
            if answer.status == 404:
                code = f"no_such_{self.resource.kind.lower()}"
                preview.problems.append(refuse(code, f"{what} does not exist"))
                continue
            if not answer.ok:
                raise UserError(f"{what}: {answer.status} {answer.message}")
            field = self.field(answer.body)
            for note in fields.notes_of(answer.body):
                if any(other.path == field.path and other.keys == field.keys for other in note.fields):
                    text = f"{what} carries the undo of run {note.run} ({note.drill})"
                    preview.problems.append(refuse("undo_pending", text, "chaosrunner recover --from-cluster"))
            changes = not fields.same(field.previous, field.desired)
            preview.touches.append(
                Touch(
                    action=self.name if changes else "skip",
                    target=target,
                    predicted="accepted" if changes else None,
                    reason=self.told(field) if changes else f"is {self.done} already: nothing to do or to undo",
                )
            )
        if any(touch.action == self.name for touch in preview.touches):
            kinds = self.resource.plural
            preview.stays = f"{self.done} {kinds} stay so until undone: at the run's end, or by chaosrunner recover"
        return preview

    def told(self, field: Field) -> str | None:
        """The change in words, for the plan."""
        return None

    async def apply(self, context: Context) -> FaultResult:
        """Changes one target after the other; the first that fails ends it, what was changed waits for undo.

        Raises Unreachable.
        """
        result = FaultResult()
        for target in self.targets:
            done = await self._apply(context, target)
            result.targets.append(done)
            if not done.expected:
                result.result, result.reason = (
                    verdict_of([done]),
                    f"{self.name} of {self._called(target)}: {done.detail}",
                )
                break
        return result

    async def verify(self, context: Context) -> FaultResult:
        """Raises Unreachable, and ApiError where the server does not say."""
        result = FaultResult()
        for target in self.targets:
            seen = await context.cluster.get(self.resource, target.name, target.namespace, patience=context.patience)
            if not seen.ok and seen.status != 404:
                raise ApiError(f"look at {self._called(target)}", seen)
            bitten = seen.ok and self._is_set(seen.body)
            result.targets.append(TargetResult(target=target, answer="seen", expected=bitten, bitten=bitten))
            if not bitten:
                result.result, result.reason = "inconclusive", f"{self._called(target)} is not {self.done}"
        return result

    async def undo(self, context: Context) -> list[UndoResult]:
        return await context.undo(self._entries)

    async def verify_undone(self, context: Context) -> bool:
        """Raises Unreachable."""
        for entry in self._entries:
            seen = await context.cluster.request("GET", entry.resource)
            if seen.ok and fields.noted(seen.body, entry):
                return False
        return True

    def _is_set(self, obj: Object) -> bool:
        field = self.field(obj)
        return fields.same(field.previous, field.desired)

    def _path(self, target: rows.Target) -> str:
        return self.resource.path(target.namespace, target.name)

    def _called(self, target: rows.Target) -> str:
        return f"{self.resource.kind.lower()} {target.name}"

    async def _apply(self, context: Context, target: rows.Target) -> TargetResult:
        """Changes one target; waits for a cluster that is away or not up to it. Raises Unreachable, JournalLost."""
        attempts, conflicts, backoff, until = 0, 0, Backoff(), context.now + context.patience
        lost: Entry | None = None
        what = self._called(target)
        while conflicts < CONFLICTS:
            obj = await context.cluster.get(self.resource, target.name, target.namespace, patience=context.patience)
            if obj.status == 404 or (obj.ok and target.uid not in (None, fields.get(obj.body, "/metadata/uid"))):
                return _failed(target, "not_found", f"the {self.resource.kind.lower()} is gone", obj.status)
            if not obj.ok:
                return _refused(context, target, obj)
            field = self.field(obj.body)
            if lost is not None and fields.noted(obj.body, lost):
                await context.journal.mark(lost, "applied", "its answer was lost, but the change is there")
                return await self._done(context, lost, attempts, None)
            for note in fields.notes_of(obj.body):
                if not any(other.path == field.path and other.keys == field.keys for other in note.fields):
                    continue
                if note.run != context.run:
                    said = f"carries the undo of run {note.run}; run chaosrunner recover"
                    return _failed(target, "rejected", said, None)
                held = next((e for e in context.journal.open() if e.entry == note.entry), None)
                if held is not None and fields.same(held.fields[0].previous, field.desired):
                    return await self._put_back(context, target, held)
            if fields.same(field.previous, field.desired):
                return TargetResult(target=target, answer="unchanged", expected=True, detail=f"was {self.done} already")
            attempts += 1
            # A call without an answer is sent again as it was announced: both test the object's version, so only one
            # of them can be carried out.
            entry = lost or await self._announce(context, target_of(obj.body, self.resource.kind), field)
            answer: Answer | None = None
            try:
                answer = await self._change(context, obj.body, entry)
            except Unreachable as error:
                said, known = str(error), not error.sent
            else:
                if answer.ok:
                    return await self._done(context, entry, attempts, answer.status)
                said, known = answer.message, settled(answer.status, answer.body)
            if not known:
                lost = entry
            elif lost is None:
                await context.journal.mark(entry, "not_applied", said)
            if answer is not None and known:
                if answer.status in (409, 422):  # the object changed since it was read
                    conflicts += 1
                    continue
                if not context.cluster.passing(answer):
                    return _refused(context, target, answer)
            pause = backoff.next(answer.retry_after if answer else None)
            if context.now + pause > until:
                if answer is None:
                    return _failed(target, "unreachable", said, None, unknown=True)
                kind = classify(answer.status, answer.body, answer.headers)
                return _failed(target, kind, f"{answer.status} {said}".strip(), answer.status, unknown=True)
            await anyio.sleep(pause)
        return _failed(target, "rejected", f"{what} changed {CONFLICTS} times between read and patch", None)

    async def _done(self, context: Context, entry: Entry, attempts: int, status: int | None) -> TargetResult:
        await context.announce(entry.target, self.name, self.done)
        return TargetResult(target=entry.target, answer="accepted", expected=True, status=status, attempts=attempts)

    async def _announce(self, context: Context, target: rows.Target, field: Field) -> Entry:
        """Writes the intent. Raises JournalLost."""
        entry = await context.journal.intend(
            fault=self.name,
            target=target,
            resource=self._path(target),
            fields=[field],
        )
        self._entries.append(entry)
        return entry

    async def _change(self, context: Context, obj: Object, entry: Entry) -> Answer:
        """Sends the patch. Raises Unreachable and JournalLost.

        An abort waits for the answer: a patch that is cancelled on its way may reach the server after the undo has
        looked, and then nobody would put the object back.
        """
        operations = fields.change(obj, entry)
        with anyio.CancelScope(shield=True):
            answer = await send_patch(context.cluster, context.emit, entry, operations, self.name, step=context.step)
            if answer.ok:
                await context.journal.mark(entry, "applied")
        return answer

    async def _put_back(self, context: Context, target: rows.Target, held: Entry) -> TargetResult:
        undone = await undo_entry(context.cluster, context.journal, held, context.emit)
        return TargetResult(target=target, answer=undone.state, expected=undone.ok, detail=undone.detail, attempts=1)


def _failed(
    target: rows.Target, answer: str, detail: str, status: int | None, *, unknown: bool = False
) -> TargetResult:
    return TargetResult(target=target, answer=answer, expected=False, detail=detail, status=status, unknown=unknown)


def _refused(context: Context, target: rows.Target, answer: Answer) -> TargetResult:
    detail, passing = f"{answer.status} {answer.message}".strip(), context.cluster.passing(answer)
    return _failed(target, "rejected", detail, answer.status, unknown=passing)
