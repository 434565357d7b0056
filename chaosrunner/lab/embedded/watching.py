"""Watches: a stream of JSON lines that follows the store from a version on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import msgspec

from chaosrunner.lab.embedded.errors import ApiError
from chaosrunner.lab.embedded.resources import Resource
from chaosrunner.lab.embedded.store import Change, Store, clone
from chaosrunner.lab.objects import Json

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

_LAST_BOOKMARK = 2.0
"""Seconds before the end of a watch at which a bookmark comes in any case (apiserver, cacher, nextBookmarkTime)."""
_POD_TEMPLATE = {"metadata": {}, "spec": {"containers": None}}
_EMPTY: dict[str, Json] = {
    "deployments": {"spec": {"selector": None, "template": _POD_TEMPLATE, "strategy": {}}, "status": {}},
    "endpointslices": {"addressType": "", "endpoints": None, "ports": None},
    "events": {
        "involvedObject": {},
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    },
    "leases": {"spec": {}},
    "namespaces": {"spec": {}, "status": {}},
    "nodes": {
        "spec": {},
        "status": {
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
            "nodeInfo": dict.fromkeys(
                ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion",
                 "kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
                "",
            ),
        },
    },
    "poddisruptionbudgets": {
        "spec": {},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
    },
    "pods": {"spec": {"containers": None}, "status": {}},
    "replicasets": {"spec": {"selector": None, "template": _POD_TEMPLATE}, "status": {"replicas": 0}},
    "services": {"spec": {}, "status": {"loadBalancer": {}}},
}  # fmt: skip
"""The body of a bookmark: an empty object of the kind, as Go's encoder writes it (nulls where it has nothing)."""


@dataclass(frozen=True)
class Watch:
    """What one client follows.

    `show`: turns an object into what goes on the wire, None for the object as it is. `bookmarks`: seconds between
    bookmarks, None for none. `timeout`: seconds until the stream ends by itself. `initial`: objects to begin with, each
    as ADDED. `announce_end`: say by a bookmark that the initial objects are through.
    """

    store: Store
    resource: Resource
    namespace: str | None
    matches: Callable[[Json], bool]
    after: int
    timeout: float
    initial: tuple[Json, ...] = ()
    bookmarks: float | None = None
    announce_end: bool = False
    show: Callable[[Json], Json] | None = None

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Events as they come, several lines at once when they come together; ends at the timeout."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        waiting: deque[Change] = deque()

        def follow(change: Change) -> None:
            waiting.append(change)
            arrived.set()

        unfollow = self.store.follow(self.resource.plural, follow)
        try:
            try:
                waiting.extendleft(reversed(self.store.changes_since(self.resource.plural, self.after)))
            except ApiError as error:
                yield _line("ERROR", msgspec.json.encode(error.body))
                return
            seen = self.after
            if self.initial:
                yield b"".join(self._event("ADDED", obj) for obj in self.initial)
            if self.announce_end:
                yield self._bookmark(seen, {INITIAL_EVENTS_END: "true"})
            end = loop.time() + self.timeout
            last = end - _LAST_BOOKMARK
            next_bookmark = loop.time() + (self.bookmarks or self.timeout)
            if last > loop.time():
                next_bookmark = min(next_bookmark, last)
            while True:
                arrived.clear()
                events = b"".join(self._render(change) for change in waiting if change.version > seen)
                waiting.clear()
                if events:
                    yield events
                    continue
                now = loop.time()
                if self.bookmarks is not None and now >= next_bookmark:
                    next_bookmark = now + self.bookmarks if now >= last else min(now + self.bookmarks, last)
                    yield self._bookmark(max(seen, self.store.resource_version))
                if now >= end:
                    return
                try:
                    async with asyncio.timeout(min(next_bookmark, end) - now):
                        await arrived.wait()
                except TimeoutError:
                    pass
        finally:
            unfollow()

    def _render(self, change: Change) -> bytes:
        """The change as this watch sees it: an object may enter or leave what its selectors match."""
        if self.namespace is not None and change.object["metadata"]["namespace"] != self.namespace:
            return b""
        is_in = change.type != "DELETED" and self.matches(change.object)
        was_in = change.old is not None and self.matches(change.old)
        if is_in:
            return self._event("MODIFIED" if was_in else "ADDED", change.object, change)
        if not was_in or change.old is None:
            return b""
        if change.type == "DELETED":
            return self._event("DELETED", change.object, change)
        left = clone(change.old)
        left["metadata"]["resourceVersion"] = str(change.version)
        return self._event("DELETED", left)

    def _event(self, type_: str, obj: Json, change: Change | None = None) -> bytes:
        if self.show is not None:
            return _line(type_, msgspec.json.encode(self.show(obj)))
        return _line(type_, change.encoded if change is not None else msgspec.json.encode(obj))

    def _bookmark(self, version: int, annotations: dict[str, str] | None = None) -> bytes:
        meta: Json = {"resourceVersion": str(version)}
        if annotations:
            meta["annotations"] = annotations
        head = {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": meta}
        return _line("BOOKMARK", msgspec.json.encode(head | _EMPTY.get(self.resource.plural, {})))


def _line(type_: str, encoded: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), encoded)
