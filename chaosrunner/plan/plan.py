"""The plan of a drill: what it would touch, in which order, what would be answered, what is missing. Reads only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from chaosrunner.cluster.access import review
from chaosrunner.cluster.drain import RETRY_EVERY
from chaosrunner.cluster.resources import Object
from chaosrunner.cluster.session import ApiError, Cluster
from chaosrunner.errors import Refused, UserError
from chaosrunner.faults import network
from chaosrunner.faults.base import Fault, PlanContext, Preview, Problem, Touch
from chaosrunner.plan import access, reach, routing
from chaosrunner.plan.access import Right
from chaosrunner.plan.aim import Means, NodeStep, PodStep, WorkloadStep, node_fault
from chaosrunner.plan.limits import Guard, protected
from chaosrunner.plan.runner import Place, here, located
from chaosrunner.plan.targets import Candidate, NodeCandidate, choose, choose_nodes, narrow, node_pool
from chaosrunner.plan.workload import Resolved, resolve
from chaosrunner.playbook.drill import Drill
from chaosrunner.playbook.load import BoundDrill
from chaosrunner.playbook.steps import (
    Baseline,
    Command,
    Cordon,
    DeletePod,
    Drain,
    Evict,
    Freeze,
    Heal,
    Hold,
    Kill,
    Network,
    NodeTarget,
    PodFault,
    PodTarget,
    ProbeOnce,
    ProcessFault,
    RolloutRestart,
    Scale,
    Step,
    Taint,
    Trigger,
    Uncordon,
    Wait,
)
from chaosrunner.timeline import manifest


class StepPlan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One step of the playbook."""

    index: int
    step: str
    name: str
    text: str
    """What it does, in words."""
    touches: list[Touch] = []
    """What it would touch, in this order, if it had to choose now. Answers are predicted."""
    alternatives: list[Touch] = []
    """Candidates that it may choose instead when it fires, each as if it were the first."""
    undo: str = "none"
    stays: str | None = None


class ProbePlan(msgspec.Struct, kw_only=True):
    """The load of one probe."""

    name: str
    text: str
    """How much it sends, in words."""


class Plan(msgspec.Struct, kw_only=True):
    """A drill, as it would go."""

    drill: str
    playbook: str
    context: str
    cluster: str
    """The cluster's name in the kubeconfig; `in-cluster` where there is none."""
    server: str
    workload: manifest.Workload
    candidates: list[Candidate] = []
    """Frozen by UID: steps choose among these."""
    targets: list[manifest.TargetPod] = []
    """The same with what explanations will need of their specs."""
    nodes: list[NodeCandidate] = []
    size: int = 0
    """Pods of the workload that were neither finished nor terminating: what percentages refer to."""
    ready_endpoints: int | None = None
    probes: list[ProbePlan] = []
    steps: list[StepPlan] = []
    problems: list[Problem] = []
    rbac: list[Right] = []
    runner: Place
    """Where chaosrunner itself runs."""
    refused: bool = False
    """Whether a problem keeps the drill from starting."""


async def make_plan(
    bound: BoundDrill, cluster: Cluster, *, environ: Mapping[str, str] = os.environ, host: str | None = None
) -> Plan:
    """Plans a drill. Sends nothing that changes anything: reads, access reviews, and dry-run evictions; and opens
    connections to Pods to which a probe will send.

    `environ` and `host` tell where the runner is. Raises Refused where the workload cannot be read at all, with the
    rights that are missing for it; Unreachable.
    """
    drill, playbook = bound.drill, bound.playbook
    try:
        resolved = await resolve(drill, cluster)
    except Refused as error:
        rights = await _rights(bound, cluster, drill.namespace or cluster.namespace)
        missing = [f"  {problem.text}" for problem in access.problems(rights)]
        raise Refused("\n".join([str(error), *missing])) from error
    workload = resolved.workload
    target = workload.controller or workload.selector
    answered = await _rights(bound, cluster, workload.namespace, target=target, owners=resolved.owners)
    place = here(environ, host)
    if any(isinstance(step.body, NodeTarget) for step in playbook.steps):
        place = await located(place, cluster)
    simulation = _Simulation(drill, resolved, cluster, place)
    steps = [await simulation.step(index, step) for index, step in enumerate(playbook.steps)]
    routed = routing.problems(drill, playbook, resolved.service)
    if reason := protected(workload.namespace, drill.limits):
        simulation.problems.append(Problem(severity="refuse", code="protected_namespace", text=reason))
    reached = await reach.problems(drill, playbook, workload.namespace, resolved.pods, cluster)
    problems = _sorted([*resolved.problems, *routed, *reached, *simulation.problems, *access.problems(answered)])
    return Plan(
        drill=drill.metadata.name,
        playbook=playbook.metadata.name,
        context=cluster.context,
        cluster=cluster.name,
        server=cluster.server,
        workload=resolved.workload,
        candidates=resolved.candidates,
        targets=resolved.targets,
        nodes=resolved.nodes,
        size=resolved.size,
        ready_endpoints=resolved.ready_endpoints,
        probes=[ProbePlan(name=probe.name, text=probe.describe()) for probe in playbook.probes],
        steps=steps,
        problems=problems,
        rbac=answered,
        runner=place,
        refused=any(problem.severity == "refuse" for problem in problems),
    )


async def _rights(bound: BoundDrill, cluster: Cluster, namespace: str, **known: Any) -> list[Right]:
    """What the drill needs, with the server's word on each; `known` as for `access.needs`."""
    rights = access.needs(bound.drill, bound.playbook, namespace, **known)
    return access.answer(rights, await review(cluster, list(rights)))


@dataclass
class _Disturbed:
    """Pods whose network an earlier step disturbs still."""

    step: str
    uids: set[str]
    effect: network.NetworkEffect
    left: float
    """For how long at the most, seconds."""


class _Simulation:
    """Goes through the steps as they would go: budgets are spent, candidates taken, nodes cordoned."""

    def __init__(self, drill: Drill, resolved: Resolved, cluster: Cluster, place: Place) -> None:
        self.problems: list[Problem] = []
        self._resolved = resolved
        self._place = place
        self._guard = Guard(drill.limits, resolved.workload.namespace, resolved.size, place)
        self._production = drill.production
        self._means = Means(drill, resolved.workload)
        self._context = PlanContext(cluster=cluster, pdbs=resolved.pdbs)
        self._left = list(resolved.candidates)
        self._away = 0
        """Pods of the workload taken away and not awaited."""
        self._taken = 0
        """Pods of the workload taken away since the beginning."""
        self._cordoned: set[str] = set()
        self._disturbed: list[_Disturbed] = []

    async def step(self, index: int, step: Step) -> StepPlan:
        planned = StepPlan(index=index, step=step.kind, name=step.title, text=describe(step))
        before = len(self.problems)
        match step.body:
            case PodTarget() as body:
                await self._pods(planned, body)
            case NodeTarget() as body:
                await self._nodes(planned, body)
            case Scale() | RolloutRestart() as body:
                await self._workload(planned, body)
            case Wait():
                self._context.recovered()
                self._away = 0
                self._disturbed.clear()  # nobody knows how long it takes
            case Hold() as body:
                for disturbed in self._disturbed:
                    disturbed.left -= body.for_
                self._disturbed = [each for each in self._disturbed if each.left > 0]
            case Heal() as body:
                self._disturbed = [each for each in self._disturbed if each.step != body.step]
        where = f"step {index + 1} ({step.title}): "
        self.problems[before:] = [
            msgspec.structs.replace(problem, text=where + problem.text) for problem in self.problems[before:]
        ]
        return planned

    async def _pods(self, planned: StepPlan, body: PodStep) -> None:
        pool = narrow(body.from_, self._left)
        try:
            chosen = choose(pool, pods=body.pods, pick=body.pick, in_flight={}, random=Random(0))
        except UserError as error:
            if body.including == "replacements" and body.pods.of(len(pool) + self._taken) <= len(pool) + self._taken:
                planned.text += " (replacements that do not exist yet)"
            else:
                self._refuse("too_few_candidates", str(error))
            return
        resolved = self._resolved
        if len(chosen) < len(pool):
            for c in pool:
                planned.alternatives += await self._alone(body, resolved.pod(c.uid))
        await self._preview(planned, lambda: self._aimed(planned, body, chosen))
        for c in pool:  # whichever of them it takes when it fires
            if self._place.is_pod(c.name, c.namespace):
                text = f"chaosrunner itself runs in Pod {c.name}, which is a candidate"
                self._refuse("runner_is_target", text, "choose labels for it that the drill's selector does not find")
        if isinstance(body, Evict) and body.dry_run:
            return
        if isinstance(body, PodFault):
            self._take(chosen)
        else:
            self._hit(chosen)

    def _aimed(self, planned: StepPlan, body: PodStep, chosen: Sequence[Candidate]) -> Fault:
        """The fault of a step; one of the network knows of those that stand by then."""
        fault = self._means.pod_fault(body, [self._resolved.pod(c.uid) for c in chosen])
        if isinstance(fault, network.Network):
            uids = {c.uid for c in chosen}
            fault.before = {uid: [each.effect for each in self._disturbed if uid in each.uids] for uid in uids}
            self._disturbed.append(_Disturbed(planned.name, uids, fault.effect, fault.effect.duration))
        return fault

    async def _alone(self, body: PodStep, pod: Object) -> list[Touch]:
        """What a step would do to one candidate alone; nothing where that cannot be planned: it is told elsewhere."""
        try:
            return (await self._means.pod_fault(_as_dry_run(body), [pod]).plan(self._context)).touches
        except (ApiError, UserError):
            return []

    async def _workload(self, planned: StepPlan, body: WorkloadStep) -> None:
        await self._preview(planned, lambda: self._means.workload_fault(body))
        if isinstance(body, Scale):
            self._within(self._away + fewer(body, self._resolved.workload.replicas))

    async def _nodes(self, planned: StepPlan, body: NodeStep) -> None:
        nodes = [
            msgspec.structs.replace(node, pods=[c for c in self._left if c.node == node.name])
            for node in self._resolved.nodes
        ]
        try:
            pool = node_pool(body, nodes, cordoned=self._cordoned)
            chosen = choose_nodes(body, nodes, in_flight={}, random=Random(0), cordoned=self._cordoned)
        except UserError as error:
            self._refuse("no_such_node", str(error))
            return
        if isinstance(body, Uncordon):
            ours = [node for node in chosen if node.name in self._cordoned]
            planned.touches += [
                Touch(action="uncordon", target=n.target, predicted="accepted", reason="undoes this run's cordon")
                for n in ours
            ]
            self._cordoned -= {node.name for node in ours}
            chosen = [node for node in chosen if node not in ours]
        if not chosen:
            return
        await self._preview(planned, lambda: node_fault(body, [node.target for node in chosen], self._guard))
        if isinstance(body, Uncordon):
            return
        self._spare_own_node([node.name for node in pool])
        self._cordoned |= {node.name for node in chosen}
        if reason := self._guard.too_many_nodes(self._cordoned):
            self._refuse("max_nodes", reason)
        if isinstance(body, Drain) or (isinstance(body, Taint) and body.effect == "NoExecute"):
            self._take([c for node in chosen for c in node.pods])

    def _spare_own_node(self, pool: Sequence[str]) -> None:
        """Refuses a step that may take the runner's own node: whichever of the pool it takes when it fires."""
        place = self._place
        if own := self._guard.own_node(pool):
            how = "run it on another node, or leave that node out by the step's selector"
            self._refuse("runner_on_node", f"chaosrunner itself runs on node {own}, which the step may take", how)
        elif place.pod is not None and place.node is None:
            text = f"it cannot be told on which node chaosrunner itself (Pod {place.pod}) runs"
            how = "set NODE_NAME by the downward API, or let it get its own Pod"
            self.problems.append(Problem(severity="warn", code="runner_unknown", text=text, how=how))
        elif any(place.is_node(name) for name in pool):
            text = f"chaosrunner itself runs on node {place.host}, though not in a Pod"
            self.problems.append(Problem(severity="warn", code="runner_on_node", text=text))

    async def _preview(self, planned: StepPlan, fault: Callable[[], Fault]) -> None:
        try:
            preview: Preview = await fault().plan(self._context)
        except (ApiError, UserError) as error:
            self._refuse("cannot_be_planned", f"cannot be planned: {error}")
            return
        planned.touches += preview.touches
        planned.undo, planned.stays = preview.undo, preview.stays
        name = preview.by or planned.step
        if self._production and preview.undo == "restore" and preview.stays and not self._guard.may_stay(name):
            text = f"{name} does not end by itself, and this is a production drill: {preview.stays}"
            self._refuse("stays_until_undone", text, f"name {name} in limits.allow_until_undone")
        self.problems += [*preview.problems, *self._context.problems]
        self._context.problems.clear()

    def _hit(self, chosen: Sequence[Candidate]) -> None:
        """Pods do not serve for a while; they count as away, and stay."""
        self._within(self._away + len(chosen))

    def _take(self, chosen: Sequence[Candidate]) -> None:
        """Pods leave the workload; the limits say how many may be away at once."""
        self._away += len(chosen)
        self._taken += len(chosen)
        self._left = [c for c in self._left if c not in chosen]
        self._within(self._away)

    def _within(self, away: int) -> None:
        broken = self._guard.too_many(away)
        if broken and not any(problem.code == broken[0] for problem in self.problems):
            self._refuse(*broken)

    def _refuse(self, code: str, text: str, how: str | None = None) -> None:
        self.problems.append(Problem(severity="refuse", code=code, text=text, how=how))


def fewer(step: Scale, replicas: int | None) -> int:
    """By how many Pods a step makes a workload of so many smaller."""
    if step.by is not None or replicas is None:
        return max(0, -(step.by or 0))
    return max(0, replicas - (step.replicas or 0))


def describe(step: Step) -> str:
    """A step in words; durations in seconds."""
    match step.body:
        case Baseline() as body:
            return f"watch for {body.for_:g} s until {body.until}"
        case Evict() as body:
            verb = "ask (dry run) to evict" if body.dry_run else "evict"
            retry = f", again for {body.retry_for:g} s every {RETRY_EVERY:g} s" if body.retry_for else ""
            return f"{verb} {_which(body)}{retry}; expect {body.expect}"
        case DeletePod() as body:
            return f"{'force-' if body.force else ''}delete {_which(body)}; expect {body.expect}"
        case Cordon() | Uncordon() as body:
            return f"{step.kind} {_which_nodes(body)}"
        case Drain() as body:
            return f"drain {_which_nodes(body)}{_when(body)}, {body.timeout:g} s each at most"
        case Network() as body:
            peer = body.peer if isinstance(body.peer, str) else "its peers"
            return f"network of {_which(body)}, {peer}: {body.effect} for {body.for_:g} s"
        case Freeze() as body:
            return f"freeze {_process(body)} of {_which(body)} for {body.for_:g} s"
        case Kill() as body:
            return f"send SIG{body.signal} to {_process(body)} of {_which(body)}"
        case Taint() as body:
            taint = f"{body.key}={body.value}:{body.effect}"
            return f"taint {_which_nodes(body)} with {taint}{_for(body.for_)}"
        case Scale() as body:
            how = f"to {body.replicas} replicas" if body.replicas is not None else f"by {body.by:+d} replicas"
            return f"scale the workload {how}{_for(body.for_)}{_when(body)}"
        case RolloutRestart() as body:
            return f"restart the workload by a rollout{_when(body)}"
        case Command() as body:
            return f"run {body.apply[0]} for {_which(body)}{_for(body.for_) if body.undo else ', never undone'}"
        case Heal() as body:
            return f"end {body.step}"
        case Wait() as body:
            return f"wait until {body.until}, {body.timeout:g} s at most"
        case Hold() as body:
            return f"hold the load for {body.for_:g} s"
        case ProbeOnce() as body:
            wanted = body.expect.outcome or f"HTTP {body.expect.status}"
            either = wanted if isinstance(wanted, str) else " or ".join(wanted)
            return f"one request of probe {body.probe}; expect {either}"


def _process(body: ProcessFault) -> str:
    where = f" in container {body.container}" if body.container else ""
    return (f"process {body.process}" if body.process else "the main process") + where


def _for(seconds: float | None) -> str:
    return f" for {seconds:g} s" if seconds is not None else " until the end of the run"


def _which(body: PodTarget) -> str:
    text = f"{body.pods} of the candidates ({body.pick})"
    if body.from_ is not None:
        source = body.from_
        where = source.selector or (f"node {source.node}" if source.node else f"where {source.expression}")
        text += f" from {where}"
    return text + (", replacements included" if body.including else "") + _when(body)


def _which_nodes(body: NodeTarget) -> str:
    if body.node is not None:
        return f"node {body.node}"
    default = "all" if isinstance(body, Uncordon) else "one"
    of = body.of or ("cordoned" if isinstance(body, Uncordon) else "workload")
    text = f"{body.nodes or default} of the nodes " + (
        "that this run cordoned" if of == "cordoned" else "of the workload"
    )
    return text + (f" with {body.selector}" if body.selector else "")


def _when(body: Trigger) -> str:
    return f" when {body.when} (within {body.within:g} s)" if body.when is not None else ""


def _as_dry_run(body: PodStep) -> PodStep:
    """The same step for a look at one candidate alone: it spends no budget of the plan."""
    return body.model_copy(update={"dry_run": True}) if isinstance(body, Evict) else body


def _sorted(problems: Sequence[Problem]) -> list[Problem]:
    """Refusals first, each once."""
    order = {"refuse": 0, "warn": 1, "info": 2}
    return sorted(dict.fromkeys(problems), key=lambda problem: order[problem.severity])
