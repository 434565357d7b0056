"""evict: Pods taken away through the Eviction API, as a drain does; budgets are honoured."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from chaosrunner.cluster.actions import target_of
from chaosrunner.cluster.answers import meets
from chaosrunner.cluster.drain import RETRY_EVERY, gone, next_move
from chaosrunner.cluster.eviction import EvictionAnswer, evict
from chaosrunner.cluster.resources import PODS, meta, terminating
from chaosrunner.faults.base import (
    Context,
    FaultResult,
    Object,
    PlanContext,
    Preview,
    Problem,
    TargetResult,
    touch,
    would_meet,
)
from chaosrunner.journal.undo import UndoResult


class Evict:
    """Evicts Pods, all at once. An eviction cannot be undone; the controller replaces the Pod."""

    name = "evict"

    def __init__(
        self,
        pods: Sequence[Object],
        *,
        dry_run: bool = False,
        grace_period: float | None = None,
        expect: int | str = "accepted",
        retry_for: float = 0.0,
        retry_every: float = RETRY_EVERY,
    ) -> None:
        """`pods`: name, namespace and UID suffice. `expect`: HTTP status or class of the answer. Times in seconds."""
        self.pods = list(pods)
        self.dry_run = dry_run
        self.grace_period = grace_period
        self.expect = expect
        self.retry_for = retry_for
        self.retry_every = retry_every
        self._applied = FaultResult()

    async def plan(self, context: PlanContext) -> Preview:
        preview = Preview()
        for pod in self.pods:
            predicted = await context.predict(pod, spend=not self.dry_run)
            preview.touches.append(touch(self.name, pod, predicted))
            if not would_meet(self.expect, predicted.answer):
                # Two budgets on one Pod are refused for good; what a budget allows may change until the step comes.
                permanent = predicted.answer == "multiple_budgets"
                preview.problems.append(
                    Problem(
                        severity="refuse" if permanent else "warn",
                        code=predicted.answer,
                        text=f"Pod {meta(pod)['name']}: the step expects {self.expect}, predicted is "
                        f"{predicted.answer}: {predicted.reason}",
                        how="make the selectors of its budgets disjoint" if permanent else None,
                    )
                )
        return preview

    async def apply(self, context: Context) -> FaultResult:
        """Sends the evictions, concurrently; each is tried again for `retry_for` while a budget refuses it."""
        results: dict[int, TargetResult] = {}
        deadline = context.now + self.retry_for

        async def one(index: int, pod: Object) -> None:
            results[index] = await self._evict(context, pod, deadline)

        async with anyio.create_task_group() as tasks:
            for index, pod in enumerate(self.pods):
                tasks.start_soon(one, index, pod)
        self._applied = FaultResult(targets=[results[index] for index in range(len(self.pods))])
        judge(self._applied, self.expect)
        return self._applied

    async def verify(self, context: Context) -> FaultResult:
        """Whether each accepted eviction shows: the Pod is terminating or gone, and was not before.

        Raises Unreachable.
        """
        if not self.dry_run:
            await verify_taken(context, self.pods, self._applied)
        return self._applied

    async def undo(self, context: Context) -> list[UndoResult]:
        """Nothing: an eviction cannot be undone."""
        return []

    async def verify_undone(self, context: Context) -> bool:
        return True

    async def _evict(self, context: Context, pod: Object, deadline: float) -> TargetResult:
        attempts = 0
        while True:
            attempts += 1
            with anyio.CancelScope(shield=True):  # an abort waits for the answer: whether the Pod went is evidence
                answer = await evict(
                    context.cluster,
                    pod,
                    emit=context.emit,
                    dry_run=self.dry_run,
                    grace_period=self.grace_period,
                    step=context.step,
                    expect=self.expect,
                )
            result = taken(pod, answer, attempts, expect=self.expect)
            pause = min(answer.retry_after or self.retry_every, deadline - context.now)
            move = next_move(answer.answer, was_terminating=False)
            if result.expected or move != "retry" or pause <= 0:
                break
            await anyio.sleep(pause)
        if answer.answer == "accepted" and not self.dry_run:
            await context.announce(result.target, self.name, "evicted")
        return result


def taken(pod: Object, answer: EvictionAnswer, attempts: int, *, expect: int | str) -> TargetResult:
    """An eviction's answer as the result of a target."""
    return TargetResult(
        target=target_of(pod),
        answer=answer.answer,
        expected=bool(meets(expect, answer.answer, answer.status)),
        status=answer.status,
        attempts=attempts,
        sent=answer.sent if answer.ok else None,
        pdbs=list(answer.pdbs or ()),
        detail=answer.message,
        self_inflicted=answer.self_inflicted,
    )


def judge(result: FaultResult, expect: int | str) -> None:
    """Makes `result` failed if an answer is not the expected one, inconclusive if there only was none."""
    wrong = [target for target in result.targets if not target.expected]
    if wrong:
        result.result = "inconclusive" if all(target.answer == "unreachable" for target in wrong) else "failed"
        result.reason = "; ".join(
            f"{t.target.name}: expected {expect}, got {t.answer}" + (f" ({t.detail})" if t.detail else "")
            for t in wrong
        )


async def verify_taken(context: Context, pods: Sequence[Object], result: FaultResult) -> None:
    """Looks whether each Pod whose removal was accepted is terminating or gone, and was not so before.

    Raises Unreachable.
    """
    for pod, target in zip(pods, result.targets, strict=True):
        if target.answer == "already_terminating":
            target.bitten, target.detail = False, "it was terminating before: this took nothing away"
        elif target.answer == "accepted":
            answer = await context.cluster.get(PODS, meta(pod)["name"], meta(pod)["namespace"])
            target.bitten = gone(pod, answer) or (answer.ok and terminating(answer.body))
            if not target.bitten:
                target.detail = "accepted, but the Pod is not terminating"
    unbitten = [target for target in result.targets if target.bitten is False]
    if unbitten and result.result == "ok":
        result.result = "inconclusive"
        result.reason = "; ".join(f"{target.target.name}: {target.detail}" for target in unbitten)
