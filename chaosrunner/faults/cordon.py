"""cordon and uncordon: whether the scheduler may put Pods on a node."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from chaosrunner.cluster.actions import target_of
from chaosrunner.cluster.answers import classify, settled
from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import NODES, Object
from chaosrunner.cluster.session import Answer, ApiError, Unreachable
from chaosrunner.errors import UserError
from chaosrunner.faults.base import (
    Context,
    FaultResult,
    PlanContext,
    Preview,
    Problem,
    TargetResult,
    Touch,
    verdict_of,
)
from chaosrunner.journal import fields
from chaosrunner.journal.journal import Entry, Field
from chaosrunner.journal.undo import CONFLICTS, UndoResult, send_patch, undo_entry
from chaosrunner.timeline import rows

POINTER = "/spec/unschedulable"


class Cordon:
    """Marks nodes unschedulable. A node that is already so is left alone, and stays so when the drill ends."""

    name = "cordon"
    desired = True

    def __init__(self, nodes: Sequence[rows.Target]) -> None:
        self.nodes = list(nodes)
        self._entries: list[Entry] = []

    async def plan(self, context: PlanContext) -> Preview:
        preview = Preview(undo="restore")
        for target in self.nodes:
            answer = await context.cluster.get(NODES, target.name)
            if answer.status == 404:
                preview.problems.append(_refuse("no_such_node", f"node {target.name} does not exist"))
                continue
            if not answer.ok:
                raise UserError(f"node {target.name}: {answer.status} {answer.message}")
            note = fields.note_of(answer.body)
            if note is not None:
                text = f"node {target.name} carries the undo of run {note.run} ({note.drill})"
                preview.problems.append(_refuse("undo_pending", text, "chaosrunner recover --from-cluster"))
            changes = not fields.same(fields.get(answer.body, POINTER), self.desired)
            preview.touches.append(
                Touch(
                    action=self.name if changes else "skip",
                    target=target,
                    predicted="accepted" if changes else None,
                    reason=None if changes else f"is {self.name}ed already: nothing to do, and nothing to undo",
                )
            )
        if any(touch.action == self.name for touch in preview.touches):
            preview.stays = f"{self.name}ed nodes stay so until undone: at the run's end, or by chaosrunner recover"
        return preview

    async def apply(self, context: Context) -> FaultResult:
        """Changes one node after the other; the first that fails ends it, what was changed waits for undo.

        Raises Unreachable.
        """
        result = FaultResult()
        for target in self.nodes:
            done = await self._apply(context, target)
            result.targets.append(done)
            if not done.expected:
                result.result, result.reason = verdict_of([done]), f"{self.name} of node {target.name}: {done.detail}"
                break
        return result

    async def verify(self, context: Context) -> FaultResult:
        """Raises Unreachable, and ApiError where the server does not say."""
        result = FaultResult()
        for target in self.nodes:
            node = await context.cluster.get(NODES, target.name, patience=context.patience)
            if not node.ok and node.status != 404:
                raise ApiError(f"look at node {target.name}", node)
            bitten = node.ok and fields.same(fields.get(node.body, POINTER), self.desired)
            result.targets.append(TargetResult(target=target, answer="seen", expected=bitten, bitten=bitten))
            if not bitten:
                result.result, result.reason = "inconclusive", f"node {target.name} is not {self.name}ed"
        return result

    async def undo(self, context: Context) -> list[UndoResult]:
        """Newest first; each is tried even when another fails."""
        mine = {entry.entry for entry in self._entries}
        pending = [entry for entry in context.journal.open() if entry.entry in mine]
        return [await undo_entry(context.cluster, context.journal, entry, context.emit) for entry in pending]

    async def verify_undone(self, context: Context) -> bool:
        """Raises Unreachable."""
        mine = {entry.entry for entry in self._entries}
        for entry in self._entries:
            node = await context.cluster.get(NODES, entry.target.name)
            note = fields.note_of(node.body) if node.ok else None
            if note is not None and note.entry in mine:
                return False
        return True

    async def _apply(self, context: Context, target: rows.Target) -> TargetResult:
        """Changes one node; waits for a cluster that is away or not up to it. Raises Unreachable, JournalLost."""
        attempts, conflicts, backoff, until = 0, 0, Backoff(), context.now + context.patience
        lost: Entry | None = None
        while conflicts < CONFLICTS:
            node = await context.cluster.get(NODES, target.name, patience=context.patience)
            if node.status == 404 or (node.ok and target.uid not in (None, fields.get(node.body, "/metadata/uid"))):
                return _failed(target, "not_found", "the node is gone", node.status)
            if not node.ok:
                return _refused(context, target, node)
            note = fields.note_of(node.body)
            if note is not None and note.run == context.run:
                held = next((e for e in context.journal.open() if e.entry == note.entry), None)
                if lost is not None and held is not None and held.entry == lost.entry:
                    await context.journal.mark(held, "applied", "its answer was lost, but the change is there")
                    return await self._done(context, lost, attempts, None)
                if held is not None and not fields.same(held.fields[0].desired, self.desired):
                    return await self._put_back(context, target, held)
            elif note is not None:
                return _failed(target, "rejected", f"carries the undo of run {note.run}; run chaosrunner recover", None)
            previous = fields.get(node.body, POINTER)
            if fields.same(previous, self.desired):
                return TargetResult(
                    target=target, answer="unchanged", expected=True, detail=f"was {self.name}ed already"
                )
            attempts += 1
            # A call without an answer is sent again as it was announced: both test the node's version, so only one of
            # them can be carried out.
            entry = lost or await self._announce(context, target_of(node.body, "Node"), previous)
            answer: Answer | None = None
            try:
                answer = await self._change(context, node.body, entry)
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
                if answer.status in (409, 422):  # the node changed since it was read
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
        return _failed(target, "rejected", f"the node changed {CONFLICTS} times between read and patch", None)

    async def _done(self, context: Context, entry: Entry, attempts: int, status: int | None) -> TargetResult:
        await context.announce(entry.target, self.name, f"{self.name}ed")
        return TargetResult(target=entry.target, answer="accepted", expected=True, status=status, attempts=attempts)

    async def _announce(self, context: Context, target: rows.Target, previous: object) -> Entry:
        """Writes the intent. Raises JournalLost."""
        entry = await context.journal.intend(
            fault=self.name,
            target=target,
            resource=NODES.path(name=target.name),
            fields=[Field(path=POINTER, previous=previous, desired=self.desired)],
        )
        self._entries.append(entry)
        return entry

    async def _change(self, context: Context, node: Object, entry: Entry) -> Answer:
        """Sends the patch. Raises Unreachable and JournalLost.

        An abort waits for the answer: a patch that is cancelled on its way may reach the server after the undo has
        looked, and then nobody would put the node back.
        """
        operations = fields.change(node, entry)
        with anyio.CancelScope(shield=True):
            answer = await send_patch(context.cluster, context.emit, entry, operations, self.name, step=context.step)
            if answer.ok:
                await context.journal.mark(entry, "applied")
        return answer

    async def _put_back(self, context: Context, target: rows.Target, held: Entry) -> TargetResult:
        undone = await undo_entry(context.cluster, context.journal, held, context.emit)
        return TargetResult(target=target, answer=undone.state, expected=undone.ok, detail=undone.detail, attempts=1)


class Uncordon(Cordon):
    """Marks nodes schedulable. Where this run cordoned the node, that is the undo of the cordon."""

    name = "uncordon"
    desired = False


def _failed(
    target: rows.Target, answer: str, detail: str, status: int | None, *, unknown: bool = False
) -> TargetResult:
    return TargetResult(target=target, answer=answer, expected=False, detail=detail, status=status, unknown=unknown)


def _refused(context: Context, target: rows.Target, answer: Answer) -> TargetResult:
    detail, passing = f"{answer.status} {answer.message}".strip(), context.cluster.passing(answer)
    return _failed(target, "rejected", detail, answer.status, unknown=passing)


def _refuse(code: str, text: str, how: str | None = None) -> Problem:
    return Problem(severity="refuse", code=code, text=text, how=how)
