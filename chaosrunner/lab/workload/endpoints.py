"""Follows the EndpointSlices of one Service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from chaosrunner.lab.workload.credentials import ApiServer
from chaosrunner.lab.workload.reflector import Change, Reflector


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
        self._port_name = port_name
        self._changed = changed
        self._last: list[Endpoint] | None = None
        path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(server.namespace, safe='')}/endpointslices"
        selector = f"kubernetes.io/service-name={service}"
        self._slices = Reflector(server, path, self._tell, noted, selector=selector)
        self.instance = f"{server.host}:{server.port}"

    @property
    def connected(self) -> bool:
        """Whether a watch is open."""
        return self._slices.connected

    async def run(self) -> None:
        """Follow for ever. While the API server is away the last known endpoints stay."""
        await self._slices.run()

    def _tell(self, changes: list[Change], since: float | None) -> None:
        slices = sorted(self._slices.objects.values(), key=lambda item: str(item["metadata"]["name"]))
        endpoints = {endpoint.key: endpoint for item in slices for endpoint in of_slice(item, self._port_name)}
        ordered = [endpoints[key] for key in sorted(endpoints)]
        if ordered != self._last:
            self._last = ordered
            self._changed(ordered)
