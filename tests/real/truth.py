"""What a node's own programs say of a Pod, at first hand: containerd's events and the kubelet's log. Unix seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from chaosrunner.lab.real.runtime import TaskEvent, parse

_LINE = re.compile(r"[IWE](\d{4} \d\d:\d\d:\d\d\.\d{6}) .*")
"""klog's header: month and day, time; the machine's time zone, no year."""


class Truth:
    def __init__(self, state: Path) -> None:
        """`state`: the lab's folder."""
        self._state = state

    def started(self, container: str) -> float:
        """When containerd started a container's process. `container`: as a Pod's status names it."""
        (event,) = [event for event in self._tasks(container) if event.exit_code is None]
        return event.at

    def ended(self, container: str) -> tuple[float, int]:
        """When its process ended, and with which exit code."""
        ((at, code),) = [(one.at, one.exit_code) for one in self._tasks(container) if one.exit_code is not None]
        return at, code

    def probed(self, pod: str, probe: str, status: str) -> list[float]:
        """When the kubelet took note of what a probe found. `pod`: namespace/name. `status`: ready, started, ..."""
        wanted = f'"SyncLoop (probe)" probe="{probe}" status="{status}" pod="{pod}"'
        return [at for at, line in self._said() if wanted in line]

    def _tasks(self, container: str) -> list[TaskEvent]:
        identity = container.removeprefix("containerd://")
        files = sorted((self._state / "events").glob("*.jsonl"))
        events = (parse(line) for file in files for line in file.read_text().splitlines() if identity in line)
        return [event for event in events if event is not None and event.container == identity]

    def _said(self) -> Iterator[tuple[float, str]]:
        for file in sorted((self._state / "log").glob("kubelet@*.log")):
            for line in file.read_text(errors="replace").splitlines():
                if found := _LINE.fullmatch(line):
                    year = datetime.now().year
                    yield datetime.strptime(f"{year}{found[1]}", "%Y%m%d %H:%M:%S.%f").timestamp(), line
