"""freeze and kill: a process of a container, without needing a shell in its image."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from chaosrunner.cluster.actions import target_of
from chaosrunner.cluster.drain import gone
from chaosrunner.cluster.resources import Object, meta
from chaosrunner.cluster.session import ApiError
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
from chaosrunner.faults.ephemeral import Agent, Work, check, healed, put
from chaosrunner.faults.network import Seen
from chaosrunner.journal import injected
from chaosrunner.journal.journal import Entry
from chaosrunner.journal.undo import UndoResult

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Annotation that names the container which is meant where no other is named
(https://kubernetes.io/docs/reference/labels-annotations-taints/)."""

DYING = 10.0
"""How long a container may take to be seen ended by its kubelet, which looks once a second, seconds."""

BY = "the container's status"


@dataclass(frozen=True)
class Which:
    """Which process of each Pod."""

    container: str | None = None
    """Name; the Pod's default container where absent, else its first."""
    process: str | None = None
    """A child, by its name or a word of its command line; the main process where absent."""

    def of(self, pod: Object) -> str:
        """The container's name in this Pod."""
        marked = (meta(pod).get("annotations") or {}).get(DEFAULT_CONTAINER)
        names = [str(one["name"]) for one in pod["spec"]["containers"]]
        return self.container or (marked if marked in names else names[0])

    def text(self, pod: Object) -> str:
        what = f"process {self.process}" if self.process else "the main process"
        return f"{what} of container {self.of(pod)}"

    def arguments(self, pod: Object) -> list[str]:
        """What the agent is told of it."""
        found = []
        if identity := _identity(_status(pod, self.of(pod))):
            found += ["--container", identity]
        return found + (["--process", self.process] if self.process else [])


def _status(pod: Object, container: str) -> Mapping[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((one for one in statuses if one.get("name") == container), {})


def _identity(status: Mapping[str, Any]) -> str:
    """The runtime's id of a container, without the runtime's name."""
    return str(status.get("containerID") or "").rpartition("://")[2]


class _ProcessFault:
    """What freeze and kill have in common."""

    name: str

    def __init__(self, pods: Sequence[Object], which: Which, agent: Agent) -> None:
        self.pods = list(pods)
        self.which = which
        self.agent = agent
        self._made: list[tuple[Object, Entry | None, str]] = []
        """Each Pod as it was just before, its entry, and what the agent said."""

    def work(self, pod: Object) -> Work:
        raise NotImplementedError

    def done(self, pod: Object) -> str:
        """In words."""
        raise NotImplementedError

    async def plan(self, context: PlanContext) -> Preview:
        """Raises Unreachable."""
        preview = Preview()
        for pod in self.pods:
            preview.touches.append(
                Touch(action=self.name, target=target_of(pod), predicted="accepted", reason=self.done(pod))
            )
            preview.problems += self._problems(pod) or await check(context.cluster, pod, self.agent, self.work(pod))
        return preview

    def _problems(self, pod: Object) -> list[Problem]:
        names = [one["name"] for one in pod["spec"]["containers"]]
        if self.which.of(pod) in names:
            return []
        text = f"Pod {meta(pod)['name']} has no container {self.which.container}; it has {', '.join(names)}"
        return [Problem(severity="refuse", code="no_such_container", text=text)]

    async def _apply(self, context: Context, duration: float | None) -> FaultResult:
        """All Pods at once. Raises Unreachable and JournalLost."""
        results: dict[int, TargetResult] = {}

        async def one(index: int, pod: Object) -> None:
            now = await context.look(pod)
            if gone(pod, now) or not now.ok:
                said = "the Pod is gone" if gone(pod, now) else f"{now.status} {now.message}"
                results[index] = TargetResult(
                    target=target_of(pod), answer="not_found", expected=False, detail=said, unknown=not gone(pod, now)
                )
                return
            done, entry = await put(context, now.body, self.agent, self.work(now.body), self.name, duration=duration)
            results[index] = done
            if entry is not None or done.expected:
                self._made.append((now.body, entry, done.detail or ""))
            if done.expected:
                await context.announce(done.target, self.name, self.done(pod))

        async with anyio.create_task_group() as tasks:
            for index, pod in enumerate(self.pods):
                tasks.start_soon(one, index, pod)
        result = FaultResult(targets=[results[index] for index in range(len(self.pods))])
        if wrong := [target for target in result.targets if not target.expected]:
            result.result = verdict_of(wrong)
            result.reason = "; ".join(f"{self.name} {one.target.name}: {one.detail or one.answer}" for one in wrong)
        return result

    async def _verify(self, context: Context) -> FaultResult:
        result = FaultResult()
        for pod, entry, said in self._made:
            seen = await self.seen(context, pod, said)
            words = {True: "bitten", False: "not_bitten", None: "unknown"}
            self._tell(context, pod, entry, words[seen.there], seen)
            result.targets.append(
                TargetResult(target=target_of(pod), answer="seen", expected=True, bitten=seen.there, detail=seen.detail)
            )
            if seen.there is False:
                result.result = "inconclusive"
                result.reason = f"the fault did not bite: {meta(pod)['name']}: {seen.detail}"
        return result

    def _tell(self, context: Context, pod: Object, entry: Entry | None, event: Any, seen: Seen) -> None:
        name = entry.entry if entry is not None else None
        context.saw(event, self.name, target_of(pod), by=seen.by, detail=seen.detail, entry=name)

    async def seen(self, context: Context, pod: Object, said: str) -> Seen:
        """Whether it bit this Pod, of which `pod` is how it was before."""
        raise NotImplementedError


class Freeze(_ProcessFault):
    """Stops a process without ending it. It goes on by itself after `duration` seconds, whoever of us lives then."""

    name = "freeze"

    def __init__(self, pods: Sequence[Object], which: Which, agent: Agent, *, duration: float) -> None:
        super().__init__(pods, which, agent)
        self.duration = duration

    def work(self, pod: Object) -> Work:
        which = self.which.arguments(pod)

        def arguments(entry: str, start_by: float) -> list[str]:
            limit = ["--for", f"{self.duration:g}", "--start-by", f"{start_by:.3f}"]
            return ["freeze", "--entry", entry, *limit, *which]

        return Work("freeze", arguments, ("SYS_PTRACE",), self.which.of(pod))

    def done(self, pod: Object) -> str:
        return f"froze {self.which.text(pod)} for {self.duration:g} s"

    async def plan(self, context: PlanContext) -> Preview:
        preview = await super().plan(context)
        preview.undo = "restore"
        return preview

    async def apply(self, context: Context) -> FaultResult:
        return await self._apply(context, self.duration)

    async def verify(self, context: Context) -> FaultResult:
        """By what the kernel told the agent: how many threads stand still."""
        return await self._verify(context)

    async def seen(self, context: Context, pod: Object, said: str) -> Seen:
        bitten = "stand still" in said or "stands still" in said
        return Seen(True if bitten else None, "the agent, by ptrace", said)

    async def undo(self, context: Context) -> list[UndoResult]:
        return await context.undo(entry for _, entry, _ in self._made if entry is not None)

    async def verify_undone(self, context: Context) -> bool:
        """Raises Unreachable, and ApiError where the server does not say."""
        over = True
        for pod, entry, _ in self._made:
            if entry is not None:
                seen = await healed(context, pod, entry)
                words = {True: "not_healed", False: "healed", None: "unknown"}
                self._tell(context, pod, entry, words[seen.there], seen)
                over = over and not seen.there
        return over


class Kill(_ProcessFault):
    """Sends a signal to a process. Cannot be undone: the kubelet starts a container that ended anew."""

    name = "kill"

    def __init__(self, pods: Sequence[Object], which: Which, agent: Agent, *, signal: str = "KILL") -> None:
        """`signal`: its name, without SIG."""
        super().__init__(pods, which, agent)
        self.signal = signals.Signals[f"SIG{signal}"]

    def work(self, pod: Object) -> Work:
        which = self.which.arguments(pod)

        def arguments(entry: str, start_by: float) -> list[str]:
            return [
                "kill",
                "--entry",
                entry,
                "--signal",
                str(int(self.signal)),
                "--start-by",
                f"{start_by:.3f}",
                *which,
            ]

        # The signal needs KILL where the process is another user's; process 1 can be killed by ptrace alone.
        return Work("kill", arguments, ("KILL", "SYS_PTRACE"), self.which.of(pod), lasts=False)

    def done(self, pod: Object) -> str:
        return f"sent {self.signal.name} to {self.which.text(pod)}"

    async def apply(self, context: Context) -> FaultResult:
        return await self._apply(context, None)

    async def verify(self, context: Context) -> FaultResult:
        """By the container's status: whether the kubelet has seen it end. Of a child, by what the agent has seen."""
        return await self._verify(context)

    async def seen(self, context: Context, pod: Object, said: str) -> Seen:
        container = self.which.of(pod)
        before, until = _status(pod, container), context.now + DYING
        child = self.which.process is not None
        if child and (self.signal is not signals.SIGKILL or " killed" in said):
            return Seen(True if " killed" in said else None, "the agent", said)
        while True:
            answer = await context.look(pod)
            if gone(pod, answer):
                return Seen(True, BY, "the Pod is gone")
            if not answer.ok:
                raise ApiError(f"look at Pod {meta(pod)['name']}", answer)
            now = _status(answer.body, container)
            ended = (now.get("state") or {}).get("terminated")
            if _identity(now) != _identity(before) or now.get("restartCount") != before.get("restartCount"):
                ended = ended or (now.get("lastState") or {}).get("terminated") or {}
            if ended is not None:
                code, count = ended.get("exitCode"), now.get("restartCount")
                return Seen(True, BY, f"container {container} ended (exit {code}), restarts: {count}")
            if context.now >= until:
                # A process may take its time with a signal that it handles, or ignore it.
                known = self.signal is signals.SIGKILL and not child
                return Seen(False if known else None, BY, f"container {container} has not ended; {said}")
            await anyio.sleep(injected.POLL)

    async def undo(self, context: Context) -> list[UndoResult]:
        """Nothing: a signal cannot be taken back."""
        return []

    async def verify_undone(self, context: Context) -> bool:
        return True
