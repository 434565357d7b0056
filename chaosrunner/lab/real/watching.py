"""Watches a real lab for its log of instants, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path

from chaosrunner.lab.instants import TAIL_SECONDS, Changed, Instants, read_on
from chaosrunner.lab.real.runtime import Runtime
from chaosrunner.lab.workload.credentials import ApiServer
from chaosrunner.lab.workload.reflector import Change, Reflector

_PATHS = {
    "pods": "/api/v1/pods",
    "endpointslices": "/apis/discovery.k8s.io/v1/endpointslices",
    "nodes": "/api/v1/nodes",
}
_SILENCE = 90.0
"""Seconds: a real API server sends a bookmark about every minute."""


_CABLES = "cables"
"""Name of the file, beside what containerd tells, of when nodes were cut off and healed."""


def note_cable(events: Path, what: str, node: str) -> None:
    """Write down that a node was `cut` or `healed` now, for all who watch the lab."""
    with (events / _CABLES).open("a") as file:
        file.write(json.dumps({"wall": time.time(), "what": what, "node": node}) + "\n")


class Watching:
    """Tells an `Instants` what becomes of nodes, and of Pods and endpoints in the given namespaces, until closed.

    `events`: the folder of what containerd tells, and of `note_cable`. What objects there are at the start is told as
    new. Returns from `start` when all has been listed once; OSError if that takes longer than `timeout` seconds.
    """

    def __init__(self, server: ApiServer, instants: Instants, namespaces: Collection[str], events: Path) -> None:
        self._instants = instants
        self._namespaces = namespaces
        self._runtime = Runtime(events, instants)
        self._cables = events / _CABLES
        self._offsets = {self._cables: self._cables.stat().st_size} if self._cables.exists() else {}
        self._reflectors = {
            plural: Reflector(server, path, partial(self._changed, plural), silence=_SILENCE)
            for plural, path in _PATHS.items()
        }
        self._loop = asyncio.new_event_loop()
        self._listed: set[str] = set()
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)

    def start(self, timeout: float = 30.0) -> None:
        self._thread.start()
        if not self._ready.wait(timeout):
            raise OSError("the lab's API server cannot be watched")

    def close(self) -> None:
        """Read what is there to be read, and end."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(reflector.run()) for reflector in self._reflectors.values()]
            tasks.append(group.create_task(self._tail()))
            await self._end.wait()
            for task in tasks:
                task.cancel()
        self._read()

    async def _tail(self) -> None:
        while True:
            self._read()
            await asyncio.sleep(TAIL_SECONDS)

    def _read(self) -> None:
        self._runtime.read()
        if self._cables.exists():
            for row in map(json.loads, read_on(self._cables, self._offsets)):
                self._instants.note_node(row["what"], row["node"], wall=row["wall"])
        self._instants.read_requests()

    def _changed(self, plural: str, changes: list[Change], since: float | None) -> None:
        if since is not None:
            self._instants.note_gap(plural, since)
        listeners: list[Changed] = [self._instants.watched()[plural]]
        if plural == "pods":
            listeners.append(self._runtime.pod_changed)
        for type_, obj, old in changes:
            if plural == "nodes" or obj["metadata"]["namespace"] in self._namespaces:
                for listener in listeners:
                    listener(type_, obj, old)
        self._listed.add(plural)
        if self._listed == self._reflectors.keys():
            self._ready.set()
