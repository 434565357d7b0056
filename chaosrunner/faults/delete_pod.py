"""delete-pod: Pods deleted directly, past every budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import anyio

from chaosrunner.cluster.actions import delete_pod, target_of
from chaosrunner.cluster.answers import EvictionClass, classify, meets, settled
from chaosrunner.cluster.budget import budgets_of
from chaosrunner.cluster.drain import gone
from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import Object, meta, terminating
from chaosrunner.cluster.session import Answer, Unreachable
from chaosrunner.faults.base import (
    Context,
    PlanContext,
    Preview,
    TargetResult,
    Touch,
)
from chaosrunner.faults.taking import TakesPods
from chaosrunner.timeline import rows


class _Said(NamedTuple):
    """What was heard of a call that told nothing of its outcome."""

    answer: EvictionClass
    detail: str
    status: int | None = None


class DeletePod(TakesPods):
    """Deletes Pods, all at once, each only if it still is that Pod. Cannot be undone; the controller replaces them."""

    name = "delete_pod"

    def __init__(
        self,
        pods: Sequence[Object],
        *,
        grace_period: float | None = None,
        force: bool = False,
        expect: int | str = "accepted",
    ) -> None:
        """`grace_period` in seconds. `force` removes the object at once, while its processes may live on."""
        super().__init__(pods, expect)
        self.grace_period = grace_period
        self.force = force

    async def plan(self, context: PlanContext) -> Preview:
        preview = Preview()
        for pod in self.pods:
            pdbs = [str(meta(pdb)["name"]) for pdb in budgets_of(pod, context.pdbs)]
            going = terminating(pod)
            preview.touches.append(
                Touch(
                    action=self.name,
                    target=target_of(pod),
                    predicted="already_terminating" if going else "accepted",
                    reason=f"past {', '.join(pdbs)}: a delete asks no budget" if pdbs else "no budget matches",
                    pdbs=pdbs,
                )
            )
        if self.force:
            preview.stays = "processes of force-deleted Pods may live on until their kubelet ends them"
        return preview

    async def take(self, context: Context, pod: Object) -> TargetResult:
        """Sends the delete, again while the API server is away or not up to it; it only ever takes this UID."""
        target, backoff, until = target_of(pod), Backoff(), context.now + context.patience
        lost: _Said | None = None
        attempts = 0
        while True:
            try:
                before = await context.look(pod)
            except Unreachable as error:
                return self._unknown(target, attempts, lost or _Said("unreachable", str(error)))
            if not before.ok and not gone(pod, before):
                kind, said = classify(before.status, before.body, before.headers), f"not sent: {_said(before)}"
                if context.cluster.passing(before):
                    return self._unknown(target, attempts, lost or _Said(kind, said, before.status))
                return self._answered(target, kind, before.status, attempts, said)
            going = gone(pod, before) or terminating(before.body)
            if lost and going:
                said = "its answer was lost, but the Pod is seen to go"
                done = self._answered(target, "accepted", None, attempts, said)
                break
            if gone(pod, before):
                return self._answered(target, "not_found", 404, attempts, "not sent: it is gone")
            attempts += 1
            sent = context.now
            try:
                with anyio.CancelScope(shield=True):  # an abort waits for the answer: whether the Pod went is evidence
                    answer = await delete_pod(
                        context.cluster,
                        pod,
                        emit=context.emit,
                        grace_period=self.grace_period,
                        force=self.force,
                        step=context.step,
                        expect=self.expect,
                    )
            except Unreachable as error:
                last, known, asked = _Said("unreachable", str(error)), not error.sent, None
            else:
                kind = classify(answer.status, answer.body, answer.headers)
                kind = "already_terminating" if kind == "accepted" and going else kind
                last, asked = _Said(kind, _said(answer), answer.status), answer.retry_after
                done = self._answered(target, kind, answer.status, attempts, None if answer.ok else answer.message)
                known = settled(answer.status, answer.body)
                if done.expected or (known and not context.cluster.passing(answer)):
                    break
            if not (known or going):
                lost = lost or last
            pause = backoff.next(asked)
            if context.now + pause > until:
                return self._unknown(target, attempts, lost or last)
            await anyio.sleep(pause)
        if done.answer == "accepted":
            done.sent = sent
            await context.announce(target, self.name, "force-deleted" if self.force else "deleted")
        return done

    def _answered(
        self, target: rows.Target, answer: EvictionClass, status: int | None, attempts: int, detail: str | None
    ) -> TargetResult:
        expected = bool(meets(self.expect, answer, status))
        return TargetResult(
            target=target, answer=answer, expected=expected, status=status, attempts=attempts, detail=detail
        )

    def _unknown(self, target: rows.Target, attempts: int, said: _Said) -> TargetResult:
        return TargetResult(
            target=target,
            answer=said.answer,
            expected=False,
            status=said.status,
            attempts=attempts,
            detail=said.detail,
            unknown=True,
        )


def _said(answer: Answer) -> str:
    return f"the API server answered {answer.status} {answer.message}"
