"""One container of a Pod: its process instances one after the other, and its status."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

from chaosrunner.lab.embedded.agent.logs import ContainerLog
from chaosrunner.lab.embedded.agent.processes import Process
from chaosrunner.lab.embedded.store import timestamp
from chaosrunner.lab.objects import Json


class Backoff:
    """How long a crashed container waits: not at all the first time, then `initial` seconds, doubled up to `most`.

    pkg/kubelet/util/flowcontrol: the wait counts from the end of the last run, and is forgotten after 2 * `most`.
    """

    def __init__(self, initial: float, most: float) -> None:
        self._initial = initial
        self._most = most
        self._seconds = 0.0
        self._last = 0.0

    def next(self, finished: float, now: float) -> float:
        """Seconds from `now` until the next start of a container that ended at `finished`."""
        if now - self._last > 2 * self._most:
            self._seconds = 0.0
        return max(0.0, finished + self._seconds - now) if self._seconds else 0.0

    def started(self, now: float) -> None:
        """Count a restart; the next one waits longer."""
        self._seconds = min(self._seconds * 2, self._most) if self._seconds else self._initial
        self._last = now

    @property
    def seconds(self) -> float:
        return self._seconds


class Container:
    """State of one container. `spec` is its entry in the Pod's spec; times are unix seconds."""

    def __init__(
        self, spec: Json, directory: Path, backoff: Backoff, *, waiting: str, kind: str = "containers"
    ) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.directory = directory
        self.backoff = backoff
        self.kind = kind
        """Where in the Pod's spec it stands: containers, initContainers or ephemeralContainers."""
        self.process: Process | None = None
        self.restarts = 0
        self.started = False
        self.ready = False
        self.is_stopping = False
        self.logs: list[ContainerLog] = []
        self.id = ""
        self._state: Json = {"waiting": {"reason": waiting}}
        self._last: Json = {}
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def is_init(self) -> bool:
        return self.kind == "initContainers"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.exit_code is None

    @property
    def has_ended(self) -> bool:
        return "terminated" in self._state

    @property
    def succeeded(self) -> bool:
        return self.has_ended and self._state["terminated"]["exitCode"] == 0

    @property
    def failed(self) -> bool:
        return self.has_ended and not self.succeeded

    def new_log(self) -> ContainerLog:
        log = ContainerLog(self.directory / f"{self.restarts}.log")
        self.logs.append(log)
        return log

    def run(self, process: Process) -> None:
        """The container's process runs. Without a startup probe it counts as started."""
        if self.has_ended:
            self._last = self._state
        self.process = process
        self.is_stopping = False
        self.id = f"lab://{secrets.token_hex(32)}"
        self.started = not self.spec.get("startupProbe")
        self.ready = False
        self._state = {"running": {"startedAt": _time(process.started)}}

    def end(self, process: Process, message: str = "") -> None:
        """The container's process has ended, and the agent has noticed. `message`: its termination message."""
        code, reason = process.exit_code or 0, "Error" if process.exit_code else "Completed"
        self._terminated(code, reason, started=process.started, finished=process.finished, message=message)

    def fail_start(self, message: str, now: float) -> None:
        """The command could not be started: as a runtime does, this counts as a run that ended with 128."""
        self._terminated(128, "StartError", started=0.0, finished=now, message=message)

    def give_up(self, now: float) -> None:
        """The Pod ended before the container ever ran."""
        message = "The container could not be located when the pod was terminated"
        self._terminated(137, "ContainerStatusUnknown", started=0.0, finished=0.0, message=message)

    def _terminated(self, code: int, reason: str, *, started: float, finished: float, message: str = "") -> None:
        ended: Json = {"exitCode": code, "reason": reason}
        if message:
            ended["message"] = message
        ended |= {
            "startedAt": _time(started) if started else None,
            "finishedAt": _time(finished) if finished else None,
        }
        if self.id:
            ended["containerID"] = self.id
        self._state = {"terminated": ended}
        self.started = self.ready = False

    def wait(self, reason: str, message: str = "") -> None:
        """The container does not run now, for this reason."""
        if self.has_ended:
            self._last = self._state
        self._state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}

    def restarting(self) -> None:
        """The next instance is about to be started; it is a restart if there was one before."""
        if self.has_ended:
            self._last = self._state
        if self._last:
            self.restarts += 1

    def status(self) -> Json:
        """The container's entry in status.containerStatuses."""
        is_ephemeral = self.kind == "ephemeralContainers"
        found: Json = {
            "name": self.name,
            "state": self._state,
            "lastState": self._last,
            "ready": self.succeeded if self.is_init else self.ready and not is_ephemeral,
            "restartCount": self.restarts,
            "image": self.spec.get("image", ""),
            "imageID": "",
        }
        if self.id:
            found["containerID"] = self.id
        return found if is_ephemeral else found | {"started": self.started}


def _time(seconds: float) -> str:
    return timestamp(datetime.fromtimestamp(seconds, UTC))
