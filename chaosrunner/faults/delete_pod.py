"""delete-pod: Pods deleted directly, past every budget."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from chaosrunner.cluster.actions import delete_pod, target_of
from chaosrunner.cluster.answers import classify, meets
from chaosrunner.cluster.budget import budgets_of
from chaosrunner.cluster.drain import gone
from chaosrunner.cluster.resources import PODS, Object, meta, terminating
from chaosrunner.cluster.session import Unreachable
from chaosrunner.faults.base import (
    Context,
    PlanContext,
    Preview,
    TargetResult,
    Touch,
)
from chaosrunner.faults.taking import TakesPods


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
        target = target_of(pod)
        try:
            before = await context.cluster.get(PODS, target.name, target.namespace)
            if gone(pod, before):
                expected = bool(meets(self.expect, "not_found", 404))
                return TargetResult(target=target, answer="not_found", expected=expected, detail="not sent: it is gone")
            sent = context.now
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
            return TargetResult(target=target, answer="unreachable", expected=False, attempts=1, detail=str(error))
        kind = classify(answer.status, answer.body, answer.headers)
        if kind == "accepted" and before.ok and terminating(before.body):
            kind = "already_terminating"
        if kind == "accepted":
            await context.announce(target, self.name, "force-deleted" if self.force else "deleted")
        return TargetResult(
            target=target,
            answer=kind,
            expected=bool(meets(self.expect, kind, answer.status)),
            status=answer.status,
            attempts=1,
            sent=sent if answer.ok else None,
            detail=None if answer.ok else answer.message,
        )
