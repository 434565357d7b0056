"""drain: nodes cordoned and their Pods evicted, by the rules of `kubectl drain`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import anyio

from chaosrunner.cluster.actions import target_of
from chaosrunner.cluster.answers import EvictionClass
from chaosrunner.cluster.drain import RETRY_EVERY, DrainDecision, DrainOptions, gone, leaving, next_move, select
from chaosrunner.cluster.resources import DAEMON_SETS, PODS, Object, controller, meta, terminating
from chaosrunner.cluster.session import ApiError, Cluster, Unreachable
from chaosrunner.faults.base import (
    Context,
    FaultResult,
    PlanContext,
    Preview,
    Problem,
    TargetResult,
    Touch,
    touch,
    verdict_of,
)
from chaosrunner.faults.cordon import Cordon
from chaosrunner.faults.evict import taken
from chaosrunner.journal.undo import UndoResult
from chaosrunner.timeline import rows

POLL = 1.0
"""Seconds between two looks whether a Pod is gone, as kubectl has it."""


class Drain:
    """Drains nodes, one after the other, after all of them were cordoned. The cordon is undone, the evictions stay."""

    name = "drain"

    def __init__(
        self,
        nodes: Sequence[rows.Target],
        *,
        timeout: float,
        options: DrainOptions,
        grace_period: float | None = None,
        retry_every: float = RETRY_EVERY,
        off_limits: Callable[[Object], str | None] = lambda _: None,
        too_many: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        """Times in seconds; `timeout` is for each node.

        `off_limits`: why a Pod must not be evicted, None if it may; like everything that blocks, such a Pod keeps the
        nodes from being cordoned. `too_many`: the same for a number of Pods, over all nodes.
        """
        self.nodes = list(nodes)
        self.timeout = timeout
        self.options = options
        self.grace_period = grace_period
        self.retry_every = retry_every
        self.off_limits = off_limits
        self.too_many = too_many
        self._cordon = Cordon(nodes)

    async def plan(self, context: PlanContext) -> Preview:
        """Judges every Pod of the nodes; one that blocks refuses the drain, with everything that blocks named.

        Raises Unreachable, ApiError.
        """
        preview = await self._cordon.plan(context)
        evictions = 0
        for node in self.nodes:
            for decision in await self._decide(context.cluster, node, 0.0):
                if decision.verdict == "evict":
                    evictions += 1
                    predicted = await context.predict(decision.pod, spend=True)
                    preview.touches.append(touch("evict", decision.pod, predicted))
                    if next_move(predicted.answer, was_terminating=False) in ("fail", "retry"):
                        preview.problems.append(self._slow(decision, predicted.answer, predicted.reason))
                    continue
                preview.touches.append(
                    Touch(action=decision.verdict, target=target_of(decision.pod), reason=decision.reason)
                )
                if decision.verdict == "block":
                    preview.problems.append(_blocked(node, decision))
        if reason := self.too_many(evictions):
            preview.problems.append(Problem(severity="refuse", code="max_pods", text=reason))
        return preview

    async def apply(self, context: Context) -> FaultResult:
        """Cordons, evicts, waits until the Pods are gone. Nothing is cordoned if a Pod blocks.

        A Pod whose eviction fails for good does not keep the others from being evicted; a Pod that is still there
        at the timeout is a failure, whatever the reason. Raises Unreachable, ApiError.
        """
        evictions = 0
        for node in self.nodes:
            decisions = await self._decide(context.cluster, node, context.patience)
            evictions += sum(d.verdict == "evict" for d in decisions)
            if blocks := [d for d in decisions if d.verdict == "block"]:
                reason = "; ".join(f"{d.name}: {d.reason}" for d in blocks)
                return FaultResult(result="failed", reason=f"node {node.name} not cordoned, not drained: {reason}")
        if (limit := self.too_many(evictions)) is not None:
            return FaultResult(result="failed", reason=f"not cordoned, not drained: {limit}")
        result = await self._cordon.apply(context)
        if result.result != "ok":
            return result
        # Pods may have come before the cordons were set: what is evicted is judged once more, and is only this.
        decided = [(await self._decide(context.cluster, node, context.patience)) for node in self.nodes]
        evictions = sum(decision.verdict == "evict" for decisions in decided for decision in decisions)
        if (limit := self.too_many(evictions)) is not None:
            result.result, result.reason = "failed", f"not drained: {limit}"
            return result
        for decisions in decided:
            result.targets += await self._drain(context, decisions)
        wrong = [target for target in result.targets if not target.expected]
        if wrong:
            result.result = verdict_of(wrong)
            result.reason = "; ".join(f"{t.target.name}: {t.answer}: {t.detail}" for t in wrong)
        return result

    async def verify(self, context: Context) -> FaultResult:
        """Whether the nodes are cordoned and nothing that a drain takes is left on them. Raises Unreachable."""
        result = await self._cordon.verify(context)
        for node in self.nodes:
            left = [d for d in await self._decide(context.cluster, node, context.patience) if d.verdict != "skip"]
            result.targets += [
                TargetResult(
                    target=target_of(d.pod), answer="present", expected=False, bitten=False, detail="still on the node"
                )
                for d in left
            ]
            if left and result.result == "ok":
                names = ", ".join(d.name for d in left)
                result.result, result.reason = "inconclusive", f"still on node {node.name}: {names}"
        return result

    async def undo(self, context: Context) -> list[UndoResult]:
        """Puts the nodes' schedulability back; evicted Pods do not come back."""
        return await self._cordon.undo(context)

    async def verify_undone(self, context: Context) -> bool:
        """Raises Unreachable."""
        return await self._cordon.verify_undone(context)

    async def _decide(self, cluster: Cluster, node: rows.Target, patience: float) -> list[DrainDecision]:
        pods = (await cluster.list(PODS, field_selector=f"spec.nodeName={node.name}", patience=patience)).items
        decisions = select(pods, self.options, await _existing_daemonsets(cluster, pods))
        return [self._guarded(decision) for decision in decisions]

    def _guarded(self, decision: DrainDecision) -> DrainDecision:
        reason = self.off_limits(decision.pod) if decision.verdict == "evict" else None
        return DrainDecision(pod=decision.pod, verdict="block", reason=reason) if reason else decision

    async def _drain(self, context: Context, decided: Sequence[DrainDecision]) -> list[TargetResult]:
        decisions = [decision for decision in decided if decision.verdict != "skip"]
        results: dict[int, TargetResult] = {}
        deadline = context.now + self.timeout

        async def one(index: int, decision: DrainDecision) -> None:
            results[index] = await self._remove(context, decision, deadline)

        async with anyio.create_task_group() as tasks:
            for index, decision in enumerate(decisions):
                tasks.start_soon(one, index, decision)
        return [results[index] for index in range(len(decisions))]

    async def _remove(self, context: Context, decision: DrainDecision, deadline: float) -> TargetResult:
        """Evicts one Pod until the cluster takes it, then waits until it is gone."""
        pod = decision.pod
        if decision.verdict == "block":  # it came to the node between the first look and the cordon
            return TargetResult(target=target_of(pod), answer="blocked", expected=False, detail=decision.reason)
        result = TargetResult(target=target_of(pod), answer="already_terminating", expected=True)
        attempts = 0
        while decision.verdict == "evict":
            attempts += 1
            answer = await context.evict(
                pod, expect="accepted", grace_period=self.grace_period, deadline=deadline - self.retry_every
            )
            result = taken(pod, answer, attempts, expect="accepted")
            move = next_move(answer.answer, was_terminating=terminating(pod))
            match "retry" if result.unknown else move:
                case "done":
                    result.answer, result.expected, result.bitten = "gone", True, None
                    return result
                case "fail":
                    return result
                case "wait":
                    await context.announce(result.target, self.name, "evicted for a drain of its node")
                    break
                case "retry":
                    pause = max(answer.retry_after or 0.0, self.retry_every)
                    if context.now + pause >= deadline:
                        await anyio.sleep(max(0.0, deadline - context.now))
                        result.detail = f"not evicted in {self.timeout:g} s: {answer.message or answer.answer}"
                        return result
                    await anyio.sleep(pause)
        return await self._await_gone(context, pod, result, deadline)

    async def _await_gone(self, context: Context, pod: Object, result: TargetResult, deadline: float) -> TargetResult:
        name, namespace = meta(pod)["name"], meta(pod)["namespace"]
        last, blind = pod, None
        while True:
            try:
                answer = await context.cluster.get(PODS, name, namespace)
            except Unreachable as error:
                blind = str(error)
            else:
                if gone(pod, answer):
                    result.bitten = result.answer == "accepted"
                    result.detail = None
                    return result
                last, blind = (answer.body, None) if answer.ok else (last, f"{answer.status} {answer.message}")
            if context.now + POLL > deadline:
                break
            await anyio.sleep(POLL)
        if blind is not None:
            result.expected, result.unknown = False, True
            result.detail = f"whether it is gone after {self.timeout:g} s is not known: {blind}"
            return result
        left = leaving(last, context.cluster.clock.wall(context.now))
        why = f"held by finalizers {', '.join(left.finalizers)}" if left.finalizers else "its containers still run"
        if left.stopped and not left.finalizers:
            why = "its containers have ended, but its kubelet has not removed it"
        overdue = f", {left.overdue:.0f} s past its deadline" if left.overdue and left.overdue > 0 else ""
        result.expected, result.bitten = False, False
        result.detail = f"stuck_terminating after {self.timeout:g} s: {why}{overdue}"
        return result

    def _slow(self, decision: DrainDecision, answer: EvictionClass, reason: str) -> Problem:
        permanent = next_move(answer, was_terminating=False) == "fail"
        return Problem(
            severity="refuse" if permanent else "warn",
            code=answer,
            text=f"Pod {decision.name}: predicted {answer}: {reason}"
            + ("" if permanent else f"; the drain will ask again every {self.retry_every:g} s"),
        )


async def _existing_daemonsets(cluster: Cluster, pods: Sequence[Object]) -> Collection[tuple[str, str]] | None:
    """Which of the DaemonSets that own `pods` exist; None (all of them) where they may not be listed."""
    if not any((controller(pod) or {}).get("kind") == "DaemonSet" for pod in pods):
        return None
    try:
        found = (await cluster.list(DAEMON_SETS)).items
    except ApiError:
        return None
    return {(str(meta(item)["namespace"]), str(meta(item)["name"])) for item in found}


def _blocked(node: rows.Target, decision: DrainDecision) -> Problem:
    return Problem(
        severity="refuse",
        code="drain_blocked",
        text=f"node {node.name} cannot be drained: {decision.name}: {decision.reason}",
        how="give the drain what it needs, or move the Pod away",
    )
