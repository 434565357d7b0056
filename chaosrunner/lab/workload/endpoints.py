"""Follows the EndpointSlices of one Service: list, watch, resume, and list again when the history is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from chaosrunner.lab.workload import http1
from chaosrunner.lab.workload.credentials import ApiServer

_TIMEOUT = 10.0
"""Seconds for a connect and for an answer to begin."""
_WATCH = 240
"""Seconds after which the API server ends a watch; silence for 30 more means that the watch is dead."""
_RETRY = 0.2
"""Seconds between attempts while the API server does not answer; the endpoints stay as they were meanwhile."""
_PAUSE = 0.05
"""Seconds between a watch that ended properly and the next."""
_PAGE_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of a slice, at the slice's port."""

    pod: str
    address: str
    port: int
    ready: bool
    serving: bool
    terminating: bool

    @property
    def key(self) -> tuple[str, int]:
        return self.address, self.port


def of_slice(item: dict[str, Any], port_name: str | None) -> list[Endpoint]:
    """The endpoints of one EndpointSlice at the named port, or at its first.

    Conditions that are not given mean what the API says: ready and serving, not terminating.
    """
    ports = [port for port in item.get("ports") or [] if port_name is None or port.get("name") == port_name]
    if not ports or ports[0].get("port") is None:
        return []
    result = []
    for endpoint in item.get("endpoints") or []:
        conditions = endpoint.get("conditions") or {}
        ready = conditions.get("ready") is not False
        serving = conditions.get("serving")
        terminating = conditions.get("terminating") is True
        pod = (endpoint.get("targetRef") or {}).get("name") or ""
        for address in endpoint.get("addresses") or []:
            result.append(
                Endpoint(
                    pod or address,
                    address,
                    ports[0]["port"],
                    ready,
                    ready if serving is None else serving,
                    terminating,
                )
            )
    return result


class Follower:
    """Keeps the endpoints of a Service and tells `changed` whenever they differ."""

    def __init__(
        self,
        server: ApiServer,
        service: str,
        port_name: str | None,
        changed: Callable[[list[Endpoint]], None],
        noted: Callable[..., None],
    ) -> None:
        self._server = server
        self._port_name = port_name
        self._changed = changed
        self._noted = noted
        self._slices: dict[str, dict[str, Any]] = {}
        self._last: list[Endpoint] | None = None
        self._selector = f"kubernetes.io/service-name={service}"
        namespace = quote(server.namespace, safe="")
        self._path = f"{server.prefix}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self.instance = f"{server.host}:{server.port}"
        self.connected = False
        """Whether a watch is open."""

    async def run(self) -> None:
        """Follow for ever. While the API server is away the last known endpoints stay."""
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

    async def _list(self) -> str:
        query = urlencode({"labelSelector": self._selector})
        async with self._get(f"{self._path}?{query}") as (response, connection):
            async with asyncio.timeout(_TIMEOUT):
                body = json.loads(await connection.read_body(response.body, _PAGE_LIMIT))
        if response.status != 200:
            raise ValueError(f"list answered {response.status}: {body.get('message')}")
        self._slices = {item["metadata"]["name"]: item for item in body["items"] or []}
        self._tell()
        return str(body["metadata"]["resourceVersion"])

    def _get(self, target: str) -> Any:
        server = self._server
        return http1.get(server.host, server.port, target, server.headers(), _TIMEOUT, server.tls)

    async def _watch(self, version: str) -> str | None:
        """Watch from a version; return the one to go on from, or None if a list is needed."""
        query = {
            "labelSelector": self._selector,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH),
        }
        async with self._get(f"{self._path}?{urlencode(query)}") as (response, connection):
            if response.status == 410:
                return None
            if response.status != 200:
                raise ValueError(f"watch answered {response.status}")
            self.connected = True
            held = b""
            while not response.body.complete:
                async with asyncio.timeout(_WATCH + 30):
                    data = await connection.read()
                if not data:
                    break
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

    def _apply(self, kind: str, item: dict[str, Any]) -> None:
        if kind == "BOOKMARK":
            return
        name = item["metadata"]["name"]
        if kind == "DELETED":
            self._slices.pop(name, None)
        else:
            self._slices[name] = item
        self._tell()

    def _tell(self) -> None:
        endpoints = {
            endpoint.key: endpoint
            for _, item in sorted(self._slices.items())
            for endpoint in of_slice(item, self._port_name)
        }
        ordered = [endpoints[key] for key in sorted(endpoints)]
        if ordered != self._last:
            self._last = ordered
            self._changed(ordered)
