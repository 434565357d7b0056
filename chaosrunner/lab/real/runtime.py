"""What containerd tells of containers, turned into instants of Pods.

The files hold what `ctr events` prints (containerd, cmd/ctr/commands/events): Go's way to print a time, the namespace,
the topic, the event as JSON. A container's id there is the one in the Pod's status.containerStatuses[].containerID,
after "containerd://"; kubelet writes it a moment after the start, so that an event may have to wait for its Pod.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from chaosrunner.lab.instants import Instants, read_on
from chaosrunner.lab.objects import Json, is_terminating

_LINE = re.compile(r"(\S+ \d\d:\d\d:\d\d)(\.\d+)? ([+-]\d{4}) \S+ (\S+) (\S+) (\{.*\})")
_KUBERNETES = "k8s.io"
_SCHEME = "containerd://"


@dataclass(frozen=True)
class TaskEvent:
    """The first process of a container began or ended, `at` in unix seconds; `exit_code` is None for a begin."""

    at: float
    container: str
    process: int
    exit_code: int | None


def parse(line: str) -> TaskEvent | None:
    """Read one line; None for an event of another kind, or of a process that was executed in a container."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    clock, fraction, zone, namespace, topic, text = found.groups()
    if namespace != _KUBERNETES or topic not in ("/tasks/start", "/tasks/exit"):
        return None
    event = json.loads(text)
    container = event["container_id"]
    at = datetime.strptime(f"{clock} {zone}", "%Y-%m-%d %H:%M:%S %z").timestamp() + float(fraction or 0)
    if topic == "/tasks/start":
        return TaskEvent(at, container, event["pid"], None)
    if event["id"] != container:
        return None
    if ended := event.get("exited_at"):
        at = ended.get("seconds", 0) + ended.get("nanos", 0) / 1e9
    # Fields that are zero are left out.
    return TaskEvent(at, container, event["pid"], event.get("exit_status", 0))


@dataclass(frozen=True)
class _Owner:
    pod: Json
    container: str
    is_leaving: bool


class Runtime:
    """Notes when containers of watched Pods began and ended."""

    def __init__(self, folder: Path, instants: Instants) -> None:
        self._folder = folder
        self._instants = instants
        # What happened before is of no interest here.
        self._offsets = {path: path.stat().st_size for path in folder.glob("*.jsonl")}
        self._owners: dict[str, _Owner] = {}
        self._waiting: dict[str, list[TaskEvent]] = {}
        self._running: dict[str, set[str]] = {}

    def pod_changed(self, type_: str, pod: Json, old: Json | None) -> None:
        """Learn which containers a Pod has."""
        is_leaving = type_ == "DELETED" or is_terminating(pod)
        for container, name in _containers(pod):
            self._owners[container] = _Owner(pod, name, is_leaving)
            for event in self._waiting.pop(container, ()):
                self._note(event)

    def read(self) -> None:
        """Read on in all files."""
        for path in sorted(self._folder.glob("*.jsonl")):
            for line in read_on(path, self._offsets):
                event = parse(line.decode())
                if event is None:
                    continue
                if event.container in self._owners:
                    self._note(event)
                else:
                    self._waiting.setdefault(event.container, []).append(event)

    def _note(self, event: TaskEvent) -> None:
        owner = self._owners[event.container]
        running = self._running.setdefault(owner.pod["metadata"]["uid"], set())
        if event.exit_code is None:
            running.add(event.container)
            more = {"container": owner.container, "process": event.process}
            self._instants.note("started", owner.pod, wall=event.at, **more)
            return
        running.discard(event.container)
        more = {"container": owner.container, "exit_code": event.exit_code}
        self._instants.note("exited", owner.pod, wall=event.at, **more)
        if owner.is_leaving and not running:
            self._instants.note("terminated", owner.pod, wall=event.at)


def _containers(pod: Json) -> Iterator[tuple[str, str]]:
    """Id and name of every container that the Pod's status knows, those that were restarted included."""
    status = pod.get("status", {})
    for entry in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
        ended = [entry.get(state, {}).get("terminated", {}) for state in ("state", "lastState")]
        for known in {entry.get("containerID", ""), *(one.get("containerID", "") for one in ended)}:
            if known:
                yield known.removeprefix(_SCHEME), entry["name"]
