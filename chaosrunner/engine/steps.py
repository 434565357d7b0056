"""Runs the steps of a playbook, one after the other, and says how each ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal, TypeVar

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup

from chaosrunner.analysis import Live
from chaosrunner.cluster import ApiError, Unreachable
from chaosrunner.cluster.lease import Lease
from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import ENDPOINT_SLICES, PODS, meta
from chaosrunner.engine.conditions import Conditions
from chaosrunner.engine.exposure import missed
from chaosrunner.engine.traffic import overrides_of
from chaosrunner.errors import UserError
from chaosrunner.faults.base import Context, Fault
from chaosrunner.journal.journal import JournalLost
from chaosrunner.plan.aim import FaultStep, Means, NodeStep, PodStep, WorkloadStep, node_fault
from chaosrunner.plan.limits import Guard
from chaosrunner.plan.plan import Plan, fewer
from chaosrunner.plan.targets import Candidate, NodeCandidate, choose, choose_nodes, narrow
from chaosrunner.playbook.expressions import Expression, reads_target
from chaosrunner.playbook.steps import (
    LASTING,
    Baseline,
    Drain,
    Evict,
    Heal,
    Hold,
    NodeTarget,
    OnceExpect,
    PodTarget,
    ProbeOnce,
    RolloutRestart,
    Scale,
    Step,
    Taint,
    Uncordon,
    Wait,
)
from chaosrunner.probes.attempt import Expect
from chaosrunner.probes.once import probe_once
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Emit

log = structlog.get_logger()

SEEN = (PODS.plural, ENDPOINT_SLICES.plural)
"""Without these no fault is started: what a drill is about would not be seen."""

MOMENT = 1.0
"""Longest time out of sight, in seconds, that does not excuse what did not come in time."""

Result = Literal["ok", "failed", "inconclusive"]

Taken = TypeVar("Taken", Candidate, NodeCandidate)


@dataclass(frozen=True)
class Ended:
    """How a step ended. Anything but `ok` keeps the later steps from running."""

    result: Result = "ok"
    reason: str | None = None


@dataclass
class Standing:
    """A fault that is there until something ends it."""

    step: Step
    fault: Fault
    context: Context
    pods: frozenset[str]
    """UIDs of those that it hit."""
    ended: bool = False
    ending: anyio.Lock = field(default_factory=anyio.Lock)


@dataclass
class Stage:
    """What the steps of a run work with."""

    steps: list[Step]
    plan: Plan
    live: Live
    conditions: Conditions
    context: Context
    probes: Mapping[str, ProbeSpec]
    lease: Lease
    guard: Guard
    means: Means
    clock: Clock
    emit: Emit
    abort: Callable[[str], None]
    random: Random
    baseline_done: anyio.Event = field(default_factory=anyio.Event)
    """Set when a baseline was accepted."""
    standing: list[Standing] = field(default_factory=list)
    """Faults that were made and last, in the order of their steps."""

    async def run(self) -> None:
        """Runs all steps. After one that did not end `ok` the rest is skipped. Cancellation means abort.

        Faults whose time is over are ended meanwhile; those that still stand in the end are the caller's to undo.
        """
        async with anyio.create_task_group() as timers:
            await self._run(timers)
            timers.cancel_scope.cancel()

    async def _run(self, timers: TaskGroup) -> None:
        over = False
        for index, step in enumerate(self.steps):
            if over:
                self._row(index, step, "ended", "skipped", "an earlier step did not end well")
                continue
            self._row(index, step, "started")
            try:
                ended = await self._step(index, step, timers)
            except BaseException as error:  # an abort, or a bug, for which the run is aborted
                bug = f"a bug in chaosrunner: {error!r}" if isinstance(error, Exception) else None
                self._row(index, step, "ended", "aborted", bug)
                for later in range(index + 1, len(self.steps)):
                    self._row(later, self.steps[later], "ended", "skipped", "the run was aborted")
                raise
            self._row(index, step, "ended", ended.result, ended.reason)
            over = ended.result != "ok"

    async def _step(self, index: int, step: Step, timers: TaskGroup) -> Ended:
        match step.body:
            case Baseline() as body:
                return await self._baseline(body)
            case Hold() as body:
                return await self._hold(body)
            case Wait() as body:
                return await self._wait(body)
            case ProbeOnce() as body:
                return await self._once(body)
            case Heal() as body:
                return await self._heal(body)
            case body:
                ended = await self._fault(index, step, body)
                made = self.standing[-1] if self.standing and self.standing[-1].step is step else None
                if made is not None and isinstance(body, LASTING) and body.for_ is not None:
                    timers.start_soon(self._end_after, made, body.for_)
                return ended

    # --- watching ---------------------------------------------------------------------------------------

    async def _baseline(self, step: Baseline) -> Ended:
        await anyio.sleep(step.for_)
        if await self.conditions.until(step.until, step.timeout):
            self.emit(rows.Run(at=self.clock.now(), event="baseline_accepted"))
            self.baseline_done.set()
            return Ended()
        return Ended("inconclusive", f"the baseline is not healthy: not {step.until} within {step.timeout:g} s")

    async def _hold(self, step: Hold) -> Ended:
        await anyio.sleep(step.for_)
        return Ended()

    async def _wait(self, step: Wait) -> Ended:
        began = self.clock.now()
        if await self.conditions.until(step.until, step.timeout):
            return Ended()
        reason = f"not {step.until} within {step.timeout:g} s"
        if blind := self._blind(began):
            # A cluster that is away mends nothing, and nobody saw what it did: no fault of the workload's.
            return Ended("inconclusive", f"{reason}, but {blind}")
        return Ended("failed", reason)

    async def _once(self, step: ProbeOnce) -> Ended:
        wanted = step.expect.outcome
        outcomes = frozenset([wanted] if isinstance(wanted, str) else wanted or ())
        row = await probe_once(
            self.probes[step.probe],
            overrides_of(step),
            Expect(status=step.expect.status, outcomes=outcomes),
            self.emit,
            self.clock,
        )
        if row.expected:
            return Ended()
        said = f"{row.outcome}, HTTP {row.status}" if row.status else row.outcome
        return Ended("failed", f"expected {_expectation(step.expect)}, got {said}")

    # --- faults -----------------------------------------------------------------------------------------

    async def _fault(self, index: int, named: Step, step: FaultStep) -> Ended:
        changes = not (isinstance(step, Evict) and step.dry_run)
        if changes and not self.baseline_done.is_set():
            return Ended("inconclusive", "no baseline was accepted before this fault, so it was not started")
        try:
            fault = await self._aimed(step)
            if isinstance(fault, Ended):
                return fault
            context = replace(self.context, step=index)
            if isinstance(step, LASTING):
                hit = frozenset(str(meta(pod)["uid"]) for pod in getattr(fault, "pods", ()))
                self.standing.append(Standing(named, fault, context, hit))
            done = await fault.apply(context)
            if done.result == "ok":
                done = await fault.verify(context)
        except UserError as error:
            return Ended("inconclusive", str(error))
        except Unreachable as error:
            return Ended("inconclusive", error.told)
        except ApiError as error:
            if self.context.cluster.passing(error.answer):
                return Ended("inconclusive", f"{error.server} is not up to it: {error}")
            return Ended("failed", str(error))
        except JournalLost as error:
            self.abort(f"the journal cannot be written: {error}")
            await anyio.sleep_forever()  # the abort ends the step
        return Ended(done.result, done.reason)

    async def _heal(self, step: Heal) -> Ended:
        """Ends a fault before its time."""
        for standing in self.standing:
            if standing.step.title == step.step:
                return await self._end(standing)
        return Ended("inconclusive", f"step {step.step} made no fault that could be ended")

    async def _end_after(self, standing: Standing, seconds: float) -> None:
        await anyio.sleep(seconds)
        ended = await self._end(standing)
        if ended.result != "ok":
            log.warning("a fault was not ended in time", step=standing.step.title, reason=ended.reason)

    async def _end(self, standing: Standing) -> Ended:
        """Takes a fault back, and looks whether it is gone; once. Whoever comes second waits for the first."""
        async with standing.ending:
            return Ended() if standing.ended else await self._undone(standing)

    async def _undone(self, standing: Standing) -> Ended:
        with anyio.CancelScope(shield=True):  # an abort must not stop it half-way
            results = await standing.fault.undo(standing.context)
        if wrong := [f"{result.target.name}: {result.detail}" for result in results if not result.ok]:
            return Ended("failed", f"not undone: {'; '.join(wrong)}")
        standing.ended = True
        return await self._gone(standing)

    async def verify_undone(self) -> None:
        """Looks whether the faults that stood until the end are gone, after somebody undid them."""
        for standing in self.standing:
            if not standing.ended:
                await self._gone(standing)

    async def _gone(self, standing: Standing) -> Ended:
        try:
            healed = await standing.fault.verify_undone(standing.context)
        except (Unreachable, ApiError, UserError) as error:
            log.info("not known whether a fault is gone", step=standing.step.title, error=str(error))
            return Ended("inconclusive", f"not known whether it is gone: {error}")
        return Ended() if healed else Ended("failed", "it was undone, but is still there")

    async def _aimed(self, step: FaultStep) -> Fault | Ended:
        """The step's fault, aimed, with the cluster in sight and the target locked; waits for both while the API
        server is away. Raises what `_aim` does."""
        backoff, until = Backoff(), self.clock.now() + self.context.patience
        while True:
            reason = self._in_the_dark()
            if reason is None and await self._locked():
                fault = await self._aim(step)  # which may take its time: until exposure is reached
                if isinstance(fault, Ended) or await self._locked():
                    return fault
            pause = backoff.next()
            if self.clock.now() + pause > until:
                return Ended(
                    "inconclusive",
                    f"{reason or 'the lease on the target cannot be confirmed'}, so no fault was started",
                )
            await anyio.sleep(pause)

    def _in_the_dark(self) -> str | None:
        """Why a fault begun now would be aimed at what may not be there any more; None where all is in sight."""
        open_ = (self.live.observations.watches.open(resource) for resource in SEEN)
        gap = next((gap for gap in open_ if gap is not None), None)
        return None if gap is None else f"nothing is known of {gap.resource} since {gap.begin:.1f} s ({gap.reason})"

    def _blind(self, since: float) -> str | None:
        """When the cluster was out of sight since then, in words; None where it was not, or for a moment only."""
        now, watches = self.clock.now(), self.live.observations.watches
        for resource in SEEN:
            for gap in watches.overlapping(resource, since, now):
                until = "now" if gap.end is None else f"{gap.end:.1f} s"
                if gap.end is None or gap.end - max(gap.begin, since) > MOMENT:
                    return f"nothing was known of {resource} from {gap.begin:.1f} s to {until} ({gap.reason})"
        return None

    async def _locked(self) -> bool:
        """Whether the target is locked by us: confirmed within the Lease's duration, or now."""
        lease = self.lease
        fresh = lease.confirmed is not None and self.clock.now() - lease.confirmed < lease.duration
        return (lease.state == "held" and fresh) or await lease.renew() == "held"

    async def _aim(self, step: FaultStep) -> Fault | Ended:
        """The step's fault, aimed, once the step's condition holds; Ended where it never did."""
        match step:
            case NodeTarget():
                return await self._aim_at_nodes(step)
            case PodTarget():
                return await self._aim_at_pods(step)
            case Scale() | RolloutRestart():
                return await self._aim_at_workload(step)

    async def _aim_at_workload(self, step: WorkloadStep) -> Fault | Ended:
        if step.when is not None and not await self.conditions.until(step.when, step.within):
            return Ended("inconclusive", f"not {step.when} within {step.within:g} s; nothing was changed")
        if isinstance(step, Scale) and (too_many := self._too_many(fewer(step, self.plan.workload.replicas))):
            return too_many
        return self.means.workload_fault(step)

    async def _aim_at_nodes(self, step: NodeStep) -> Fault | Ended:
        began = self.clock.now()
        when, within = (step.when, step.within) if isinstance(step, Drain) else (None, 0.0)
        nodes = await self._when(lambda: self._nodes(step, when), when, within)
        if isinstance(nodes, Ended):
            return self._explained(nodes, when, self.candidates(), began)
        throws_out = isinstance(step, Drain) or (isinstance(step, Taint) and step.effect == "NoExecute")
        taken = sum(len(node.pods) for node in nodes) if throws_out else 0
        if not isinstance(step, Uncordon):
            cordoned = self._cordoned() | {node.name for node in nodes}
            if reason := self.guard.off_limits_nodes(cordoned):
                return Ended("inconclusive", f"{reason}; nothing was changed")
        return self._too_many(taken) or node_fault(step, [node.target for node in nodes], self.guard)

    async def _aim_at_pods(self, step: PodStep) -> Fault | Ended:
        began = self.clock.now()
        pods = await self._when(lambda: self._pods(step), step.when, step.within)
        if isinstance(pods, Ended):
            candidates = narrow(step.from_, self.candidates(replacements=step.including == "replacements"))
            return self._explained(pods, step.when, candidates, began)
        asks_only = isinstance(step, Evict) and step.dry_run
        hit = self._hit
        if too_many := self._too_many(0 if asks_only else sum(pod.uid not in hit for pod in pods)):
            return too_many
        objects = []
        for pod in pods:
            answer = await self.context.cluster.get(PODS, pod.name, pod.namespace, patience=self.context.patience)
            if not answer.ok:
                return Ended("inconclusive", f"Pod {pod.name} cannot be read: {answer.status} {answer.message}")
            if meta(answer.body).get("uid") != pod.uid:
                return Ended("inconclusive", f"Pod {pod.name} is another one now; nothing was changed")
            if reason := self.guard.off_limits(answer.body):
                return Ended("inconclusive", f"Pod {pod.name} must not be taken: {reason}; nothing was changed")
            objects.append(answer.body)
        return self.means.pod_fault(step, objects)

    @property
    def _hit(self) -> frozenset[str]:
        """UIDs of Pods that a fault keeps from serving; one that several hit is one."""
        return frozenset().union(*(standing.pods for standing in self.standing if not standing.ended))

    def _too_many(self, taken: int) -> Ended | None:
        """Refuses to take or hit Pods beyond the drill's limits: those of earlier steps count too that nobody replaces
        yet, or that a fault still keeps from serving."""
        pairs = self.live.picture().pairs
        away = sum(pair.replacement is None or not pair.replacement.ready for pair in pairs)
        away += len(self._hit)
        broken = self.guard.too_many(away + taken) if taken else None
        return Ended("inconclusive", f"{broken[1]}; nothing was changed") if broken else None

    def _pods(self, step: PodStep) -> list[Candidate]:
        """The Pods that the step takes now. Raises UserError where there are not enough."""
        narrowing = step.from_.expression if step.from_ is not None else None
        conditions = [expression for expression in (narrowing, step.when) if expression is not None]
        return choose(
            narrow(step.from_, self.candidates(replacements=step.including == "replacements")),
            pods=step.pods,
            pick=step.pick,
            in_flight=self._in_flight(),
            random=self.random,
            matches=lambda pod: all(self.conditions.holds(expression, pod.uid) for expression in conditions),
        )

    def _nodes(self, step: NodeStep, when: Expression | None) -> list[NodeCandidate]:
        """The nodes that the step takes now. Raises UserError where there are not enough."""
        pods = self.candidates(everyone=True)
        nodes = [
            msgspec.structs.replace(node, pods=[pod for pod in pods if pod.node == node.name])
            for node in self.plan.nodes
        ]
        if when is not None:
            nodes = [node for node in nodes if any(self.conditions.holds(when, pod.uid) for pod in node.pods)]
        return choose_nodes(step, nodes, in_flight=self._in_flight(), random=self.random, cordoned=self._cordoned())

    def _cordoned(self) -> set[str]:
        """Nodes that this run cordoned and has not put back."""
        return {entry.target.name for entry in self.context.journal.open() if entry.target.kind == "Node"}

    async def _when(
        self, take: Callable[[], list[Taken]], when: Expression | None, within: float
    ) -> list[Taken] | Ended:
        """Takes targets as soon as enough of them meet the condition.

        Raises UserError where there are not enough and no condition to wait for.
        """
        if when is None:
            return take()
        with anyio.move_on_after(within):
            while True:
                try:
                    return take()
                except UserError:
                    await self.conditions.news()
        return Ended("inconclusive", f"exposure not reached: not {when} within {within:g} s; nothing was changed")

    def _explained(self, ended: Ended, when: Expression | None, candidates: list[Candidate], since: float) -> Ended:
        """What a step says that waited for streams on its target in vain."""
        if when is None or not reads_target(when):
            return ended
        why = missed(self.live, candidates, self.probes.values(), since=since, now=self.clock.now())
        return ended if why is None else replace(ended, reason=f"{ended.reason}: {why}")

    def _in_flight(self) -> dict[str, int]:
        """Streams in flight by the Pod's name, for the workload's Pods."""
        counts = self.live.in_flight_by_pod()
        return {pod.name: counts.get(pod.uid, 0) for pod in self.live.pods()}

    def candidates(self, *, replacements: bool = False, everyone: bool = False) -> list[Candidate]:
        """Pods of the workload that run now: those that the plan froze; with `replacements`, those too that came for
        Pods that this run took; or everyone, whatever the plan said of them."""
        known = {candidate.uid for candidate in self.plan.candidates}
        if replacements:
            known |= {pod.uid for pod in self.live.replacements()}
        return [
            Candidate(
                name=pod.name,
                namespace=pod.namespace or "",
                uid=pod.uid,
                node=pod.node,
                ip=pod.ip,
                created=pod.created_time or "",
                labels=pod.labels,
            )
            for state in self.live.pods()
            if (pod := state.last) is not None
            and pod.phase == "Running"
            and pod.deletion_time is None
            and (everyone or pod.uid in known)
        ]

    def _row(
        self,
        index: int,
        step: Step,
        event: Literal["started", "ended"],
        result: Literal["ok", "failed", "inconclusive", "skipped", "aborted"] | None = None,
        reason: str | None = None,
    ) -> None:
        self.emit(
            rows.Step(
                at=self.clock.now(),
                index=index,
                step=step.kind,
                name=step.title,
                event=event,
                result=result,
                reason=reason,
            )
        )
        log.info(f"step {event}", step=step.title, result=result, reason=reason)


def _expectation(expect: OnceExpect) -> str:
    wanted = [expect.outcome] if isinstance(expect.outcome, str) else expect.outcome or []
    parts = ([" or ".join(wanted)] if wanted else []) + ([f"HTTP {expect.status}"] if expect.status else [])
    return ", ".join(parts)
