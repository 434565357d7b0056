"""What taking Pods away has in common, however it is asked for: all at once, judged by the answers, and for good."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import anyio

from chaosrunner.cluster.drain import gone
from chaosrunner.cluster.resources import Object, terminating
from chaosrunner.cluster.session import ApiError
from chaosrunner.faults.base import Context, FaultResult, TargetResult, verdict_of
from chaosrunner.journal.undo import UndoResult


class TakesPods(ABC):
    """A fault that takes Pods away. It cannot be undone: the controller replaces the Pods."""

    def __init__(self, pods: Sequence[Object], expect: int | str) -> None:
        """`expect`: HTTP status or class of the answer."""
        self.pods = list(pods)
        self.expect = expect
        self._applied = FaultResult()

    @abstractmethod
    async def take(self, context: Context, pod: Object) -> TargetResult:
        """Asks for one Pod to be taken away."""

    async def apply(self, context: Context) -> FaultResult:
        """Asks for all of them, concurrently."""
        results: dict[int, TargetResult] = {}

        async def one(index: int, pod: Object) -> None:
            results[index] = await self.take(context, pod)

        async with anyio.create_task_group() as tasks:
            for index, pod in enumerate(self.pods):
                tasks.start_soon(one, index, pod)
        self._applied = FaultResult(targets=[results[index] for index in range(len(self.pods))])
        self._judge(self._applied)
        return self._applied

    async def verify(self, context: Context) -> FaultResult:
        """Whether each Pod whose removal was accepted is terminating or gone, and was not so before.

        Raises Unreachable, and ApiError where the server does not say.
        """
        result = self._applied
        for pod, target in zip(self.pods, result.targets, strict=True):
            if target.answer == "already_terminating":
                target.bitten, target.detail = False, "it was terminating before: this took nothing away"
            elif target.answer == "accepted":
                answer = await context.look(pod)
                if not answer.ok and not gone(pod, answer):
                    raise ApiError(f"look at Pod {target.target.name}", answer)
                target.bitten = gone(pod, answer) or terminating(answer.body)
                if not target.bitten:
                    target.detail = "accepted, but the Pod is not terminating"
        unbitten = [target for target in result.targets if target.bitten is False]
        if unbitten and result.result == "ok":
            result.result = "inconclusive"
            result.reason = "; ".join(f"{target.target.name}: {target.detail}" for target in unbitten)
        return result

    async def undo(self, context: Context) -> list[UndoResult]:
        """Nothing: what was taken away does not come back by us."""
        return []

    async def verify_undone(self, context: Context) -> bool:
        return True

    def _judge(self, result: FaultResult) -> None:
        """Makes `result` failed if an answer is not the expected one, inconclusive if there only was none; says how it
        is known that one was accepted that never said so."""
        wrong = [target for target in result.targets if not target.expected]
        if wrong:
            result.result = verdict_of(wrong)
            result.reason = "; ".join(
                f"{t.target.name}: expected {self.expect}, got {t.answer}" + (f" ({t.detail})" if t.detail else "")
                for t in wrong
            )
        elif concluded := [target for target in result.targets if target.answer == "accepted" and target.detail]:
            result.reason = "; ".join(f"{target.target.name}: {target.detail}" for target in concluded)
