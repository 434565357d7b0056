"""Keeps a list of objects as the API server has it: list, watch, resume, and list again when the history is gone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlencode

from chaosrunner.lab.workload import http1
from chaosrunner.lab.workload.credentials import ApiServer

Object = dict[str, Any]
Change = tuple[str, Object, Object | None]
"""ADDED, MODIFIED or DELETED; the object; what it was before, None for ADDED."""

_TIMEOUT = 10.0
"""Seconds for a connect and for an answer to begin."""
_WATCH = 240
"""Seconds after which the API server ends a watch."""
_SILENCE = 30.0
"""Seconds without a byte, beyond those, after which a watch is dead."""
_RETRY = 0.2
"""Seconds between attempts while the API server does not answer; the objects stay as they were meanwhile."""
_PAUSE = 0.05
"""Seconds between a watch that ended properly and the next."""
_PAGE_LIMIT = 64 * 1024 * 1024


class Reflector:
    """The objects at `path`, by uid. `changed` hears of each change, and of all that a list shows at once.

    Its second argument is None, or after a list that followed upon a loss the unix time since when nobody watched.
    `noted` hears how the watch fares.
    """

    def __init__(
        self,
        server: ApiServer,
        path: str,
        changed: Callable[[list[Change], float | None], None],
        noted: Callable[..., None] = lambda event, **more: None,
        *,
        selector: str | None = None,
        silence: float = _WATCH + _SILENCE,
    ) -> None:
        self._server = server
        self._path = server.prefix + path
        self._changed = changed
        self._noted = noted
        self._query = {"labelSelector": selector} if selector else {}
        self._silence = silence
        self._heard: float | None = None
        self.objects: dict[str, Object] = {}
        self.connected = False
        """Whether a watch is open."""

    async def run(self) -> None:
        """Follow for ever. While the API server is away the last known objects stay."""
        version: str | None = None
        lost = False
        while True:
            try:
                if version is None:
                    version = await self._list()
                lost = False
                version = await self._watch(version)
            except (OSError, TimeoutError, http1.MalformedMessage, ValueError) as error:
                if not lost:
                    self._noted("api_lost", error=repr(error))
                lost, version = True, None
            self.connected = False
            await asyncio.sleep(_RETRY if lost else _PAUSE)

    def _get(self, query: dict[str, str]) -> AbstractAsyncContextManager[tuple[http1.Response, http1.Connection]]:
        server, target = self._server, f"{self._path}?{urlencode(self._query | query)}"
        return http1.get(server.host, server.port, target, server.headers(), _TIMEOUT, server.tls)

    async def _list(self) -> str:
        async with self._get({}) as (response, connection):
            async with asyncio.timeout(_TIMEOUT):
                body = json.loads(await connection.read_body(response.body, _PAGE_LIMIT))
        if response.status != 200:
            raise ValueError(f"list answered {response.status}: {body.get('message')}")
        before, since = self.objects, self._heard
        self.objects = {item["metadata"]["uid"]: item for item in body["items"] or []}
        self._heard = time.time()
        gone = [("DELETED", item, item) for uid, item in before.items() if uid not in self.objects]
        found = [
            ("MODIFIED" if uid in before else "ADDED", item, before.get(uid)) for uid, item in self.objects.items()
        ]
        self._changed([*gone, *found], since)
        return str(body["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str | None:
        """Watch from a version; return the one to go on from, or None if a list is needed."""
        query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH)}
        async with self._get({"watch": "true"} | query) as (response, connection):
            if response.status == 410:
                return None
            if response.status != 200:
                raise ValueError(f"watch answered {response.status}")
            self.connected = True
            held = b""
            while not response.body.complete:
                async with asyncio.timeout(self._silence):
                    data = await connection.read()
                if not data:
                    break
                self._heard = time.time()
                payload, _ = response.body.feed(data)
                *lines, held = (held + payload).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    item = event["object"]
                    if event["type"] == "ERROR":
                        # A version that is too old is told this way, after HTTP 200.
                        self._noted("relist", code=item.get("code"))
                        return None
                    version = item["metadata"]["resourceVersion"]
                    self._apply(event["type"], item)
        return version

    def _apply(self, kind: str, item: Object) -> None:
        if kind == "BOOKMARK":
            return
        uid = item["metadata"]["uid"]
        old = self.objects.pop(uid, None)
        if kind != "DELETED":
            self.objects[uid] = item
        self._changed([(kind, item, old)], None)
