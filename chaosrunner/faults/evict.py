"""evict: Pods taken away through the Eviction API, as a drain does; budgets are honoured."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from chaosrunner.cluster.actions import target_of
from chaosrunner.cluster.answers import meets
from chaosrunner.cluster.drain import RETRY_EVERY, next_move
from chaosrunner.cluster.eviction import EvictionAnswer
from chaosrunner.cluster.resources import Object, meta
from chaosrunner.faults.base import (
    Context,
    FaultResult,
    PlanContext,
    Preview,
    Problem,
    TargetResult,
    touch,
    would_meet,
)
from chaosrunner.faults.taking import TakesPods


class Evict(TakesPods):
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
        super().__init__(pods, expect)
        self.dry_run = dry_run
        self.grace_period = grace_period
        self.retry_for = retry_for
        self.retry_every = retry_every
        self._deadline = 0.0

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
        """Sends the evictions, concurrently; each is tried again for `retry_for` while a budget refuses it, or
        nobody says what became of it."""
        self._deadline = context.now + self.retry_for
        return await super().apply(context)

    async def verify(self, context: Context) -> FaultResult:
        """Whether each accepted eviction shows: the Pod is terminating or gone, and was not before.

        Raises Unreachable.
        """
        return self._applied if self.dry_run else await super().verify(context)

    async def take(self, context: Context, pod: Object) -> TargetResult:
        attempts = 0
        while True:
            attempts += 1
            answer = await context.evict(pod, expect=self.expect, dry_run=self.dry_run, grace_period=self.grace_period)
            result = taken(pod, answer, attempts, expect=self.expect)
            pause = min(answer.retry_after or self.retry_every, self._deadline - context.now)
            move = next_move(answer.answer, was_terminating=False)
            if result.expected or not (result.unknown or move == "retry") or pause <= 0:
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
        # A budget that our own lost call holds does not show that it protects anything.
        expected=bool(meets(expect, answer.answer, answer.status)) and not answer.self_inflicted,
        status=answer.status,
        attempts=attempts,
        sent=answer.sent if answer.ok else None,
        pdbs=list(answer.pdbs or ()),
        detail=answer.message,
        self_inflicted=answer.self_inflicted,
        unknown=answer.passing or answer.lost,
    )
