"""One Pod on a node: its containers run, are probed, restarted and ended as a kubelet does it."""

from __future__ import annotations

import math
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from chaosrunner.lab.embedded.agent import environment
from chaosrunner.lab.embedded.agent.checks import ProbeClock, Target, check
from chaosrunner.lab.embedded.agent.containers import Backoff, Container
from chaosrunner.lab.embedded.agent.injection import Injection
from chaosrunner.lab.embedded.agent.processes import Process
from chaosrunner.lab.embedded.store import clone, timestamp
from chaosrunner.lab.objects import Json

if TYPE_CHECKING:
    from chaosrunner.lab.embedded.agent.node import NodeAgent

OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")

_LEAST_GRACE = 1.0
_LEAST_STOP = 2.0
"""Seconds between SIGTERM and SIGKILL even if preStop used up the grace period (minimumGracePeriodInSeconds)."""


class PodWorker:
    """Runs one Pod, identified by its UID, until it has been deleted and its processes are gone."""

    def __init__(self, node: NodeAgent, pod: Json) -> None:
        self._node = node
        self.pod = pod
        meta = pod["metadata"]
        self.uid: str = meta["uid"]
        self.key: tuple[str, str] = (meta["namespace"], meta["name"])
        name = f"{meta['namespace']}_{meta['name']}_{self.uid[:8]}"
        self._logs = node.root / "logs" / name
        self._work = node.root / "work" / name
        self.ip = node.ip if pod["spec"].get("hostNetwork") else node.addresses.pod()
        self._has_sandbox = False
        self._has_address = False
        self._conditions: dict[str, Json] = {}
        self._since = timestamp(node.store.now())
        self._termination = anyio.Event()
        self._grace = 0.0
        self._stops: list[anyio.CancelScope] = []
        self._init: list[Container] = []
        self.containers: list[Container] = []
        self._injected: list[Container] = []
        self._group: anyio.abc.TaskGroup | None = None

    # -- what the node tells -----------------------------------------------------------------------------------------

    def update(self, pod: Json) -> None:
        """The Pod object changed."""
        self.pod = pod
        self._inject()
        meta = pod["metadata"]
        if "deletionTimestamp" in meta:
            self._end(float(meta["deletionGracePeriodSeconds"]))

    def removed(self) -> None:
        """The Pod object is gone. What still runs gets the shortest grace period."""
        self._end(0.0)

    def _end(self, grace: float) -> None:
        """Begin to end, or end sooner than was asked before. A grace period of 0 counts as 1 s, as in a kubelet."""
        grace = max(_LEAST_GRACE, grace)
        if not self._termination.is_set():
            self._grace = grace
            self._termination.set()
        for scope in self._stops:
            scope.deadline = min(scope.deadline, anyio.current_time() + grace)

    def all_containers(self) -> list[Container]:
        return [*self._init, *self.containers, *self._injected]

    @property
    def _is_ending(self) -> bool:
        return self._termination.is_set()

    # -- the life of the Pod -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        spec = self.pod["spec"]
        has_init = bool(spec.get("initContainers"))
        self._init = [
            self._container(entry, "PodInitializing", "initContainers") for entry in spec.get("initContainers") or ()
        ]
        waiting = "PodInitializing" if has_init else "ContainerCreating"
        self.containers = [self._container(entry, waiting) for entry in spec["containers"]]
        self.publish()
        async with anyio.create_task_group() as group:
            group.start_soon(self._live, group)
            self._group = group
            self._inject()
            await self._termination.wait()
            self._group = None
            await self._stop_all()
        self._finish()
        await self._node.remove(self)
        shutil.rmtree(self._work, ignore_errors=True)

    def _container(self, spec: Json, waiting: str, kind: str = "containers") -> Container:
        settings = self._node.settings
        return Container(
            spec,
            self._logs / spec["name"],
            Backoff(settings.backoff, settings.backoff_most),
            waiting=waiting,
            kind=kind,
        )

    def _inject(self) -> None:
        """Start the ephemeral containers that are new. None is ever started again."""
        known = {container.name for container in self._injected}
        for spec in self.pod["spec"].get("ephemeralContainers") or ():
            if self._group is not None and not self._is_ending and spec["name"] not in known:
                container = self._container(spec, "ContainerCreating", "ephemeralContainers")
                self._injected.append(container)
                self._group.start_soon(self._run_injected, container)

    async def _run_injected(self, container: Container) -> None:
        folder = self._work / ".faults"
        folder.mkdir(parents=True, exist_ok=True)
        injection = Injection(container.spec, self.pod, folder)
        if injection.trouble is not None:
            container.wait(*injection.trouble)
            self._warn(container, "Failed", f"Error: {injection.trouble[0]}")
            self.publish()
            return
        target = next((entry for entry in self.containers if entry.name == injection.target), None)
        self._start(container, injection.command, injection.variables(target.process if target else None))
        self.publish()
        process = container.process
        if process is None:
            return
        try:
            await process.wait()
        finally:
            injection.release(process.pid)
        if not self._is_ending and not await self._pause(self._node.until_relist()):
            container.end(process, injection.message())
            self.publish()

    async def _live(self, group: anyio.abc.TaskGroup) -> None:
        """Bring everything up: sandbox, init containers in order, then all containers."""
        self._has_sandbox = True
        self.publish()
        for container in self._init:
            if not await self._run_init(container):
                return
        for container in self.containers:
            if not self._is_ending:
                self._start(container)
                group.start_soon(self._keep_running, container, group)
        self._has_address = True
        self.publish()

    async def _run_init(self, container: Container) -> bool:
        """Run an init container until it succeeds. False when the Pod ends or must not go on."""
        self._start(container)
        self._has_address = True
        self.publish()
        while True:
            if container.process is not None:
                await container.process.wait()
            if self._is_ending or await self._pause(self._node.until_relist()):
                return False
            self._note_end(container)
            self.publish()
            if container.succeeded:
                return True
            if self.pod["spec"]["restartPolicy"] == "Never" or not await self._back_off(container):
                return False
            self._start(container)
            self.publish()

    async def _keep_running(self, container: Container, group: anyio.abc.TaskGroup) -> None:
        """Attend a container that was started, and start it again as restartPolicy says."""
        while True:
            if container.process is not None:
                await self._attend(container, group)
                if self._is_ending or await self._pause(self._node.until_relist()):
                    return
                self._note_end(container)
                self.publish()
            policy = self.pod["spec"]["restartPolicy"]
            if policy == "Never" or (policy == "OnFailure" and container.succeeded):
                return
            if not await self._back_off(container):
                return
            self._start(container)
            self.publish()

    async def _pause(self, seconds: float) -> bool:
        """Wait, and tell whether the Pod began to end meanwhile."""
        with anyio.move_on_after(seconds):
            await self._termination.wait()
        return self._is_ending

    async def _back_off(self, container: Container) -> bool:
        """Wait until a crashed container may be started again. False when the Pod ends."""
        now = time.time()
        finished = container.process.finished if container.process is not None else now
        wait = container.backoff.next(finished, now)
        if wait > 0:
            where = f"{self.key[1]}_{self.key[0]}({self.uid})"
            seconds = f"{container.backoff.seconds:g}s"
            message = f"back-off {seconds} restarting failed container={container.name} pod={where}"
            self._warn(container, "BackOff", f"Back-off restarting failed container {container.name} in pod {where}")
            container.wait("CrashLoopBackOff", message)
            self.publish()
            if await self._pause(wait):
                return False
        container.backoff.started(time.time())
        container.restarting()
        return True

    # -- one container -----------------------------------------------------------------------------------------------

    def _start(
        self, container: Container, command: list[str] | None = None, more: dict[str, str] | None = None
    ) -> None:
        """Start a container's process, which `command` may stand in for, with `more` variables.

        What is wrong with its command shows in its status.
        """
        image = container.spec.get("image", "")
        try:
            variables = self._variables(container) | (more or {})
            command = command or environment.command_line(container.spec, variables)
        except environment.ConfigError as error:
            container.process = None
            container.wait("CreateContainerConfigError", str(error))
            self._warn(container, "Failed", f"Error: {error}")
            return
        pulled = f'Container image "{image}" already present on machine and can be accessed by the pod'
        self._say(container, "Pulled", pulled)
        self._say(container, "Created", "Container created")
        directory = Path(container.spec.get("workingDir") or self._work / container.name)
        log = container.new_log()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            container.process = self._node.processes.start(command, variables, directory, log.write)
        except (OSError, ValueError) as error:
            log.write(b"")
            container.process = None
            container.fail_start(f"failed to start container process: {error}", time.time())
            self._warn(container, "Failed", f"Error: {error}")
            return
        container.run(container.process)
        container.ready = container.started and not container.spec.get("readinessProbe")
        self._say(container, "Started", "Container started")
        self._node.note("started", self.pod, container=container.name, process=container.process.pid)

    def _variables(self, container: Container) -> dict[str, str]:
        return environment.environment(self.pod, container.spec, self.ip, self._node.ip, self._node.api_variables)

    def _note_end(self, container: Container) -> None:
        if container.process is not None:
            container.end(container.process)

    async def _attend(self, container: Container, group: anyio.abc.TaskGroup) -> None:
        """Probe a running container until its process has ended."""
        process = container.process
        assert process is not None
        async with anyio.create_task_group() as probes:
            probes.start_soon(self._probe, container, group)
            await process.wait()
            probes.cancel_scope.cancel()

    async def _probe(self, container: Container, group: anyio.abc.TaskGroup) -> None:
        """Startup probe first; then, once the container has started, readiness and liveness side by side."""
        if not container.started:
            clock = self._clock(container, "startupProbe")
            if not await self._probe_until(container, "startupProbe", clock, True, group):
                return
            container.started = True
            container.ready = not container.spec.get("readinessProbe")
            self.publish()
        async with anyio.create_task_group() as probes:
            if container.spec.get("readinessProbe"):
                probes.start_soon(self._probe_readiness, container, group)
            if container.spec.get("livenessProbe"):
                clock = self._clock(container, "livenessProbe")
                probes.start_soon(self._probe_until, container, "livenessProbe", clock, False, group)

    async def _probe_readiness(self, container: Container, group: anyio.abc.TaskGroup) -> None:
        clock = self._clock(container, "readinessProbe")
        while await self._probe_until(container, "readinessProbe", clock, not container.ready, group):
            container.ready = not container.ready
            self.publish()

    async def _probe_until(
        self, container: Container, kind: str, clock: ProbeClock, wanted: bool, group: anyio.abc.TaskGroup
    ) -> bool:
        """Probe each period until the result has been `wanted` as often as the threshold says.

        A startup or liveness probe that fails as often as its threshold says has the container ended; both stop with
        the Pod's termination, the readiness probe goes on. False when there is nothing more to probe.
        """
        probe = container.spec[kind]
        process = container.process
        title = kind.removesuffix("Probe")
        runs = {True: 0, False: 0}
        while True:
            await clock.tick(probe["periodSeconds"])
            if self._is_ending and kind != "readinessProbe":
                return False
            result = await check(probe, self._target(container), probe["timeoutSeconds"])
            if container.process is not process or not container.is_running:
                return False
            if not result.ok:
                self._warn(container, "Unhealthy", f"{title.capitalize()} probe failed: {result.output}")
            runs = {result.ok: runs[result.ok] + 1, not result.ok: 0}
            if runs[wanted] >= probe["successThreshold" if wanted else "failureThreshold"]:
                if kind == "livenessProbe":
                    break
                return True
            if kind == "startupProbe" and runs[False] >= probe["failureThreshold"]:
                break
        grace = probe.get("terminationGracePeriodSeconds", self.pod["spec"]["terminationGracePeriodSeconds"])
        message = f"Container {container.name} failed {title} probe, will be restarted"
        group.start_soon(self._stop, container, float(grace), message)
        return False

    def _clock(self, container: Container, kind: str) -> ProbeClock:
        """The initial delay counts from the start of the container."""
        assert container.process is not None
        age = time.time() - container.process.started
        return ProbeClock(container.spec[kind].get("initialDelaySeconds", 0) - age)

    def _target(self, container: Container) -> Target:
        async def run(command: list[str]) -> tuple[int, str]:
            return await self._execute(container, command)

        return Target(self.ip, lambda port: self._port(container, port), run)

    def _port(self, container: Container, port: int | str) -> int:
        if isinstance(port, int):
            return port
        for entry in container.spec.get("ports") or ():
            if entry.get("name") == port:
                return int(entry["containerPort"])
        return 0

    async def _execute(self, container: Container, command: list[str]) -> tuple[int, str]:
        """Run a command beside a container's process; it is killed when the waiting is given up."""
        output: list[bytes] = []
        directory = Path(container.spec.get("workingDir") or self._work / container.name)
        process: Process = self._node.processes.start(
            environment.with_interpreter(command), self._variables(container), directory, output.append
        )
        try:
            code = await process.wait()
        finally:
            process.kill()
        return code, b"".join(output).decode(errors="replace")

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _stop_all(self) -> None:
        running = [entry for entry in self.all_containers() if entry.is_running]
        async with anyio.create_task_group() as stops:
            for container in running:
                stops.start_soon(self._stop, container, self._grace, f"Stopping container {container.name}")
            # The status that acknowledges the new generation follows the Events of the beginning.
            await anyio.lowlevel.checkpoint()
            self.publish()

    async def _stop(self, container: Container, grace: float, message: str) -> None:
        """preStop, SIGTERM, SIGKILL. The grace period runs from the start of preStop; SIGTERM leaves at least 2 s."""
        process = container.process
        if process is None or not container.is_running:
            return
        if container.is_stopping:
            await process.wait()
            return
        container.is_stopping = True
        self._say(container, "Killing", message)
        begun = anyio.current_time()
        hook = (container.spec.get("lifecycle") or {}).get("preStop")
        async with anyio.create_task_group() as hooks:
            if hook:
                done = anyio.Event()
                hooks.start_soon(self._run_hook, container, hook, done)
                await self._wait_within(done.wait, grace)
            process.signal(signal.SIGTERM)
            left = max(_LEAST_STOP, grace - (anyio.current_time() - begun))
            await self._wait_within(process.wait, left)
            process.kill()
            await process.wait()
            hooks.cancel_scope.cancel()

    async def _run_hook(self, container: Container, hook: Json, done: anyio.Event) -> None:
        """Run preStop. It is cut off when the container is gone, which is a failure of the hook."""
        ok = False
        try:
            ok = (await check(hook, self._target(container), math.inf)).ok
        finally:
            if not ok:
                self._warn(container, "FailedPreStopHook", "PreStopHook failed")
            done.set()

    async def _wait_within(self, wait: Callable[[], Awaitable[object]], seconds: float) -> None:
        """Wait up to `seconds`, or less if the Pod is told to end sooner."""
        with anyio.move_on_after(seconds) as scope:
            self._stops.append(scope)
            await wait()
        self._stops.remove(scope)

    def _finish(self) -> None:
        """All processes are gone: the last status before the object goes."""
        for container in self.all_containers():
            if container.has_ended:
                continue
            if container.process is not None:
                self._note_end(container)
            else:
                container.give_up(time.time())
        self._has_sandbox = False
        self.publish()
        self._node.note("terminated", self.pod)

    # -- status ------------------------------------------------------------------------------------------------------

    def phase(self) -> str:
        """pkg/kubelet/kubelet_pods.go, getPhase."""
        ended = [container.has_ended for container in self.containers]
        policy = self.pod["spec"]["restartPolicy"]
        if any(container.failed for container in self._init) and policy == "Never":
            return "Failed"
        if all(ended):
            if self._is_ending and not self._has_sandbox:
                return "Succeeded" if all(container.succeeded for container in self.containers) else "Failed"
            if policy == "Never" or (policy == "OnFailure" and all(entry.succeeded for entry in self.containers)):
                return "Succeeded" if all(container.succeeded for container in self.containers) else "Failed"
            return "Running"
        if any(container.process is not None or container.restarts for container in self.containers):
            return "Running"
        return "Pending"

    def publish(self) -> None:
        """Write the Pod's status as it is now, if the API server can be reached and it is news."""
        self._node.write_status(self, self._compose)

    def _compose(self, present: Json) -> Json:
        """The whole status: own conditions, foreign ones kept in front."""
        generation = self.pod["metadata"]["generation"]
        phase = self.phase()
        ended = phase in ("Succeeded", "Failed")
        unready = [container.name for container in self.containers if not container.ready]
        incomplete = [container.name for container in self._init if not container.succeeded]
        completed = {"reason": "PodCompleted" if phase == "Succeeded" else "PodFailed"}
        not_ready = {
            "reason": "ContainersNotReady",
            "message": f"containers with unready status: [{' '.join(unready)}]",
        }
        why = completed if ended else not_ready if unready else {}
        no_sandbox = "pod sandbox is not ready" if self._has_address else "no pod sandbox exists"
        uninitialized = {
            "reason": "ContainersNotInitialized",
            "message": f"containers with incomplete status: [{' '.join(incomplete)}]",
        }
        initialized = {"reason": "PodCompleted"} if phase == "Succeeded" else uninitialized if incomplete else {}
        sandbox = {} if self._has_sandbox else {"reason": "PodSandboxNotReady", "message": no_sandbox}
        own = [
            ("PodReadyToStartContainers", self._has_sandbox, sandbox),
            ("Initialized", not incomplete, initialized),
            ("Ready", not why, why),
            ("ContainersReady", not why, why),
            ("PodScheduled", True, {}),
        ]
        foreign = [entry for entry in present.get("conditions") or () if entry["type"] not in OWN_CONDITIONS]
        scheduled = next((entry for entry in present.get("conditions") or () if entry["type"] == "PodScheduled"), None)
        if scheduled is not None:
            self._conditions.setdefault("PodScheduled", scheduled)
        conditions = [self._condition(type_, holds, generation, text) for type_, holds, text in own]
        status: Json = {"observedGeneration": generation, "phase": phase, "conditions": clone(foreign) + conditions}
        status |= {"hostIP": self._node.ip, "hostIPs": [{"ip": self._node.ip}]}
        if self._has_address:
            status |= {"podIP": self.ip, "podIPs": [{"ip": self.ip}]}
        status["startTime"] = self._since
        if self._init:
            status["initContainerStatuses"] = [container.status() for container in self._init]
        status["containerStatuses"] = [container.status() for container in self.containers]
        if self._injected:
            status["ephemeralContainerStatuses"] = [container.status() for container in self._injected]
        return status | {"qosClass": present.get("qosClass", "BestEffort")}

    def _condition(self, type_: str, holds: bool, generation: int, text: Json) -> Json:
        state = "True" if holds else "False"
        known = self._conditions.get(type_)
        since = known["lastTransitionTime"] if known and known["status"] == state else timestamp(self._node.store.now())
        entry = {
            "type": type_,
            "observedGeneration": generation,
            "status": state,
            "lastProbeTime": None,
            "lastTransitionTime": since,
        } | text
        self._conditions[type_] = entry
        return entry

    # -- events ------------------------------------------------------------------------------------------------------

    def _path(self, container: Container) -> str:
        return f"spec.{container.kind}{{{container.name}}}"

    def _say(self, container: Container, reason: str, message: str) -> None:
        self._node.tell(self.pod, "Normal", reason, message, self._path(container))

    def _warn(self, container: Container, reason: str, message: str) -> None:
        self._node.tell(self.pod, "Warning", reason, message, self._path(container))
