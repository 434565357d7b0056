"""The driver `ephemeral-container`: effects made inside a Pod by the agent, which ends them by itself.

The agent is put into the Pod as an ephemeral container: beside a container, whose processes it then sees, or with
NET_ADMIN in the Pod's network. It is watched by its state, and by its log where that may be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from itertools import product
from typing import Any

import anyio
import msgspec

from chaosrunner import __version__
from chaosrunner.cluster.actions import target_of
from chaosrunner.cluster.answers import classify, settled
from chaosrunner.cluster.drain import gone
from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import PODS, Object, meta
from chaosrunner.cluster.session import JSON_PATCH, Answer, ApiError, Cluster, Unreachable
from chaosrunner.faults.base import Context, Problem, TargetResult, refuse
from chaosrunner.faults.network import ALONE, CAN, Kind, NetworkEffect, Seen, Standing
from chaosrunner.journal import fields, injected
from chaosrunner.journal.injected import Status
from chaosrunner.journal.journal import Entry, Injected, new_name
from chaosrunner.timeline import rows

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a static Pod's object (https://kubernetes.io/docs/reference/labels-annotations-taints/)."""

DEAD_ENDS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError"}
)
"""Reasons to wait that do not go by themselves (pkg/kubelet/images/types.go, kuberuntime_container.go)."""

UNLOGGED = 1.5
"""How long an agent must have run to count as done with its work, where its log cannot be read, seconds."""

BITE = 5.0
"""How long is waited for the first packet that an effect meets, seconds."""

LOG_LINES = 50


IMAGE = f"chaosrunner/agent:{__version__}"
"""The agent's image of this version, as `chaosrunner agent build` makes it."""


@dataclass(frozen=True)
class Agent:
    """The image of the agent, as the drill names it."""

    image: str = IMAGE
    pull_policy: str = "IfNotPresent"


@dataclass(frozen=True)
class Work:
    """What an agent shall do in a Pod."""

    action: str
    """Of the call's rows."""
    arguments: Callable[[str, float], Sequence[str]]
    """From the entry's id and the Unix time after which it is too late to begin."""
    capabilities: tuple[str, ...]
    target: str | None = None
    """The container whose processes it is about; None: the Pod's network."""
    lasts: bool = True
    """Whether the agent stays for as long as its effect does, and does not end once it is made."""


async def check(cluster: Cluster, pod: Object, agent: Agent, work: Work) -> list[Problem]:
    """Whether the agent can be put into this Pod, by a dry run; a refusal says why not. Raises Unreachable."""
    name = str(meta(pod)["name"])
    if MIRROR in (meta(pod).get("annotations") or {}):
        return [refuse("static_pod", f"{name} is a static Pod: its kubelet takes no ephemeral containers")]
    answer = await cluster.get(PODS, name, meta(pod)["namespace"])
    if gone(pod, answer):
        return [refuse("pod_gone", f"Pod {name} is gone")]
    if answer.ok:
        added = _container(agent, work, new_name(), time.time(), None)
        answer = await cluster.request(
            "PATCH",
            f"{PODS.path(meta(pod)['namespace'], name)}/ephemeralcontainers",
            body=injected.patch(answer.body, added),
            content_type=JSON_PATCH,
            query={"fieldManager": fields.MANAGER, "dryRun": "All"},
        )
    if answer.ok or answer.status == 409 or cluster.passing(answer):
        return []
    said = f"{answer.status} {answer.message}".strip()
    if answer.status == 403 and "PodSecurity" in answer.message:
        capabilities = " and ".join(work.capabilities)
        return [
            refuse(
                "pod_security",
                f"an ephemeral container with {capabilities} may not be put into {name}: {said}",
                "label the namespace pod-security.kubernetes.io/enforce=privileged, or use another driver",
            )
        ]
    if answer.status == 403:
        return [refuse("forbidden", f"no ephemeral container may be put into {name}: {said}")]
    if answer.status in (404, 405):
        return [refuse("no_ephemeral_containers", f"the cluster offers no ephemeral containers: {said}")]
    return [refuse("not_injectable", f"no ephemeral container can be put into {name}: {said}")]


async def put(
    context: Context, pod: Object, agent: Agent, work: Work, fault: str, *, duration: float | None
) -> tuple[TargetResult, Entry | None]:
    """Puts an agent into a Pod and waits until it has done its work, journaled before the call.

    `duration` in seconds: the longest that its effect stays; None for one that leaves nothing, which is not journaled.
    The entry is None where nothing was left. Raises Unreachable and JournalLost.
    """
    target, name, wall = target_of(pod), new_name(), time.time()
    resource = PODS.path(meta(pod)["namespace"], meta(pod)["name"])
    entry: Entry | None = None
    if duration is not None:
        made = Injected(
            container=container_name(name),
            image=agent.image,
            pull_policy=agent.pull_policy,
            target_container=work.target,
        )
        entry = await context.journal.intend(
            fault=fault,
            target=target,
            resource=resource,
            made=made,
            ends=wall + injected.START + duration,
            name=name,
        )
        wall = entry.wall
    added = _container(agent, work, name, wall, fields.note(entry) if entry is not None else None)
    done, sent = await _send(context, pod, target, resource, added, work.action)
    if not sent:
        if entry is not None:
            await context.journal.mark(entry, "not_applied", done.detail)
        return done, None
    if done.unknown:
        return done, entry
    if entry is not None:
        await context.journal.mark(entry, "applied")
    found = await _await_set(context, pod, container_name(name), wall + injected.START, lasts=work.lasts)
    done.detail = found.text
    if found.refused:
        done.answer, done.expected = "rejected", False
        if entry is not None:
            await context.journal.mark(entry, "not_applied", found.text)
        return done, None
    if not found.done:
        done.answer, done.expected, done.unknown = "not_started", False, found.unknown
    return done, entry


def container_name(name: str) -> str:
    return f"chaosrunner-{name}"


def _container(agent: Agent, work: Work, name: str, wall: float, note: str | None) -> dict[str, Any]:
    return injected.container(
        container_name(name),
        work.arguments(name, wall + injected.START),
        image=agent.image,
        pull_policy=agent.pull_policy,
        capabilities=work.capabilities,
        target=work.target,
        note=note,
    )


async def _send(
    context: Context, pod: Object, target: rows.Target, resource: str, added: dict[str, Any], action: str
) -> tuple[TargetResult, bool]:
    """Sends the patch, again while the Pod changes under our hands, or the API server is away or not up to it; it is
    carried out once, as the container's name can be there once. The second value: whether it may have been."""
    backoff, until, maybe = Backoff(), context.now + context.patience, False
    done = TargetResult(target=target, answer="accepted", expected=True)
    for _ in range(injected.CONFLICTS):
        now = await context.look(pod)
        if gone(pod, now):
            return _not(done, "not_found", "the Pod is gone"), False
        if not now.ok:
            return _said(context, done, now), maybe
        if injected.status(now.body, added["name"]).phase != "absent":
            return done, True
        done.attempts += 1
        done.sent = context.now
        try:
            with anyio.CancelScope(shield=True):
                answer = await injected.inject(
                    context.cluster, context.emit, target, resource, now.body, added, action, step=context.step
                )
        except Unreachable as error:
            maybe = maybe or error.sent
            failed, asked = _not(done, "unreachable", str(error), unknown=True), None
        else:
            if answer.ok:
                done.status = answer.status
                return done, True
            if injected.late(answer):
                continue
            maybe = maybe or not settled(answer.status, answer.body)
            failed, asked = _said(context, done, answer), answer.retry_after
            if not context.cluster.passing(answer):
                return failed, maybe
        pause = backoff.next(asked)
        if context.now + pause > until:
            return failed, maybe
        await anyio.sleep(pause)
    return _not(done, "rejected", f"the Pod changed {injected.CONFLICTS} times between read and patch"), maybe


def _not(done: TargetResult, answer: str, detail: str, *, unknown: bool = False) -> TargetResult:
    return msgspec.structs.replace(done, answer=answer, expected=False, detail=detail, sent=None, unknown=unknown)


def _said(context: Context, done: TargetResult, answer: Answer) -> TargetResult:
    kind = classify(answer.status, answer.body, answer.headers)
    failed = _not(done, kind, f"{answer.status} {answer.message}".strip(), unknown=context.cluster.passing(answer))
    failed.status = answer.status
    return failed


@dataclass(frozen=True)
class _Found:
    """What came of waiting for an agent."""

    text: str
    done: bool = False
    refused: bool = False
    """It did nothing, and nothing of it is left."""
    unknown: bool = False


async def _await_set(context: Context, pod: Object, name: str, start_by: float, *, lasts: bool) -> _Found:
    """Waits until an agent has told that its effect is there, or that it cannot be. `start_by` in Unix seconds.

    One that does not last says more at its end.
    """
    running: float | None = None
    log: list[dict[str, Any]] | None = []
    while True:
        answer = await context.look(pod)
        if gone(pod, answer):
            return _Found("the Pod went meanwhile", unknown=True)
        if not answer.ok:
            return _Found(f"{answer.status} {answer.message}", unknown=True)
        found = injected.status(answer.body, name)
        if found.phase == "terminated":
            return _ended(found)
        if found.phase == "running" and lasts:
            running = running or context.now
            log = await events(context.cluster, pod, name)
            told = next((one for one in log or [] if one["event"] == "set"), None)
            if told:
                return _Found(str(told.get("text", "")), done=True)
            if log is None and context.now - running > UNLOGGED:
                return _Found("its container runs; its log cannot be read", done=True)
        if found.reason in DEAD_ENDS:
            return _Found(f"its container does not start: {found.text()}")
        if time.time() > start_by:
            return _Found(f"its container has not done its work within {injected.START:g} s: {found.text()}")
        await anyio.sleep(injected.POLL)


def _ended(found: Status) -> _Found:
    match found.exit_code, found.said.get("event"):
        case 2, _:
            return _Found(found.text(), refused=True)
        case 0, _:
            return _Found(found.text(), done=True)
        case _, "set" | "counted":
            # Ended with what it killed: they share a process namespace.
            return _Found(str(found.said.get("text", found.text())), done=True)
        case _:
            return _Found(f"its agent ended: {found.text()}")


async def events(cluster: Cluster, pod: Object, name: str) -> list[dict[str, Any]] | None:
    """What an agent told so far, as its log has it; None where that cannot be read. Raises Unreachable."""
    answer = await cluster.request(
        "GET",
        f"{PODS.path(meta(pod)['namespace'], meta(pod)['name'])}/log",
        query={"container": name, "tailLines": str(LOG_LINES)},
    )
    if not answer.ok:
        return None
    # A log of one line is one JSON object.
    lines = [answer.body] if answer.body else [injected.event(line) for line in answer.text.splitlines()]
    return [line for line in lines if "event" in line]


class EphemeralContainer:
    """Makes network effects by rules inside the Pod's own network."""

    name = "ephemeral-container"
    can: frozenset[Kind] = CAN["ephemeral-container"]
    needs_addresses = True
    heals_itself = True

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def check(
        self, cluster: Cluster, pod: Object, effect: NetworkEffect, standing: Standing = ALONE
    ) -> list[Problem]:
        """Raises Unreachable."""
        spec, name = pod.get("spec") or {}, meta(pod)["name"]
        if spec.get("hostNetwork"):
            text = f"Pod {name} uses its node's network (hostNetwork): rules there would hit all that runs on the node"
            return [refuse("host_network", text)]
        if (spec.get("os") or {}).get("name") == "windows":
            return [refuse("windows", f"Pod {name} runs on Windows: the agent needs Linux")]
        if effect.kind == "latency" and effect.direction == "in":
            text = f"{self.name} delays packets on their way out of the Pod only"
            return [
                refuse("direction", text, "direction: out delays the Pod's answers, which a caller cannot tell apart")
            ]
        for other in [*_running(pod), *standing.effects]:
            if _exclude(effect, other):
                text = f"{name} is hit already by {other.kind} of the same packets on their way out: each has one fate"
                how = "end the one before, by heal or by a hold as long as it stands, or give each its own ports"
                return [refuse("effects_clash", text, how)]
        return await check(cluster, pod, self.agent, self._work(effect))

    async def apply(
        self, context: Context, pod: Object, effect: NetworkEffect, fault: str
    ) -> tuple[TargetResult, Entry | None]:
        return await put(context, pod, self.agent, self._work(effect), fault, duration=effect.duration)

    def _work(self, effect: NetworkEffect) -> Work:
        def arguments(entry: str, start_by: float) -> list[str]:
            spec = {key: value for key, value in msgspec.to_builtins(effect).items() if value is not None}
            spec.pop("peer", None)  # words, for people
            return ["network", msgspec.json.encode({"entry": entry, "start_by": start_by, **spec}).decode()]

        return Work(f"network_{effect.kind}", arguments, ("NET_ADMIN",))

    async def verify(self, context: Context, pod: Object, effect: NetworkEffect, entry: Entry) -> Seen:
        """By the kernel's counters: whether packets met the rules, and what became of them."""
        assert isinstance(entry.made, Injected)
        by, until = "counters of the rules in the Pod", context.now + min(BITE, effect.duration / 2)
        while True:
            log = await events(context.cluster, pod, entry.made.container)
            if log is None:
                return Seen(None, by, "the agent's log cannot be read")
            told: dict[str, Any] = next((one for one in reversed(log) if "hit" in one), {})
            seen, hit = int(told.get("seen", 0)), int(told.get("hit", 0))
            detail = f"of {seen} packets that it is about, {hit} were hit"
            if hit:
                return Seen(True, by, detail)
            if context.now >= until:
                return Seen(None if seen and effect.kind in ("loss", "rate") else False, by, detail)
            await anyio.sleep(injected.POLL)

    async def verify_healed(self, context: Context, pod: Object, effect: NetworkEffect, entry: Entry) -> Seen:
        """By the state of the agent, which ends well only after it has seen that its rules are gone."""
        return await healed(context, pod, entry)


def _running(pod: Object) -> list[NetworkEffect]:
    """Effects that agents make in the Pod's network just now, by the Pod's object."""
    found = []
    for container in injected.containers(pod):
        if not container["name"].startswith(container_name("")):
            continue  # somebody else's
        match container.get("args"):
            case ["network", str(spec)] if injected.status(pod, container["name"]).phase == "running":
                found.append(msgspec.json.decode(spec, type=NetworkEffect))
    return found


def _exclude(one: NetworkEffect, other: NetworkEffect) -> bool:
    """Whether packets that leave could be meant by both: the agent hands each to one class of a queueing discipline,
    and the rules that come last win. A reset is no class, and packets that come are dropped by whichever rule."""
    classed = all(each.direction != "in" and each.kind != "reject" for each in (one, other))
    same_ports = not one.ports or not other.ports or bool({*one.ports} & {*other.ports})
    networks = [[ip_network(peer, strict=False) for peer in each.peers] for each in (one, other)]
    if all(networks):
        same_peers = any(a.version == b.version and a.overlaps(b) for a, b in product(*networks))
    else:
        same_peers = one.peer == other.peer or "everywhere" in (one.peer, other.peer)
    return classed and same_ports and same_peers


async def healed(context: Context, pod: Object, entry: Entry) -> Seen:
    """Whether an agent's effect is over, by the states of its container and of the one that healed. Raises Unreachable,
    and ApiError where the server does not say."""
    made, by = entry.made, "state of the agent's container"
    assert isinstance(made, Injected)
    answer = await context.look(pod)
    if gone(pod, answer):
        return Seen(False, by, "the Pod is gone, and its network with it")
    if not answer.ok:
        raise ApiError(f"look at Pod {entry.target.name}", answer)
    found = injected.status(answer.body, made.container)
    if found.phase == "absent":
        return Seen(False, by, "no container was put into the Pod")
    if found.phase != "terminated":
        never = found.phase == "waiting" and time.time() > entry.wall + injected.START
        return Seen(not never, by, found.text())
    if found.exit_code in (0, 2) or made.target_container is not None:
        return Seen(False, by, found.text())
    healer = injected.healed(answer.body, made)
    return Seen(False if healer else None, by, healer or found.text())
