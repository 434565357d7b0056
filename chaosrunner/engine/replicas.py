"""Follows the workload's Pods and their endpoints, and says which replicas there are to probe, at which addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from chaosrunner.playbook.endpoint import Replicas as Way
from chaosrunner.playbook.selectors import Selector
from chaosrunner.probes.replicas import Replica
from chaosrunner.timeline import rows

Hand = Callable[[tuple[Replica, ...]], None]
Place = tuple[str, int]
"""Address and port."""


@dataclass
class _Pod:
    name: str
    up: bool = False
    """It was Ready once."""
    there: bool = True
    """Neither gone nor finished."""
    ip: str | None = None
    """Its first address."""
    places: dict[bool, Place] = field(default_factory=dict)
    """By whether the address is IPv6. Of a Pod that has left the endpoints the last ones stay."""


class Follower:
    """Takes rows in and hands out the replicas whenever they differ.

    A replica is there from when a Pod of the workload has an address and a port, Ready or not, until the Pod is gone or
    finished: one that is terminating still is. Where a Pod has come to have the address of another one that is still
    shown, the address is the newer one's.
    """

    def __init__(self, selector: Selector, service: str | None, way: Way, hand: Hand) -> None:
        self._selector = selector
        self._service = service
        self._way = way
        self._hand = hand
        self._pods: dict[str, _Pod] = {}
        """By UID, in the order in which they came."""
        self._numbers: dict[tuple[str, Place], int] = {}
        self._last: tuple[Replica, ...] = ()

    def feed(self, row: rows.Row) -> None:
        match row:
            case rows.Pod():
                self._pod(row)
            case rows.EndpointSlice() if self._service is not None and row.service == self._service:
                self._slice(row)
            case _:
                return
        replicas = self._replicas()
        if replicas != self._last:
            self._last = replicas
            self._hand(replicas)

    def _pod(self, row: rows.Pod) -> None:
        if not self._selector.matches(row.labels):
            return
        pod = self._known(row.uid, row.name)
        pod.ip = row.ip or pod.ip
        pod.up = pod.up or any(one.type == "Ready" and one.status == "True" for one in row.conditions)
        pod.there = row.seen not in ("DELETED", "VANISHED") and row.phase not in ("Failed", "Succeeded")
        if isinstance(self._way.port, int):
            for address in (row.ip, *row.addresses):
                if address:
                    pod.places[":" in address] = address, self._way.port

    def _slice(self, row: rows.EndpointSlice) -> None:
        port = port_of(row.named_ports, self._way.port)
        if row.seen in ("DELETED", "VANISHED") or port is None or isinstance(self._way.port, int):
            return
        for endpoint in row.endpoints:
            if endpoint.uid is not None and endpoint.addresses:
                address = endpoint.addresses[0]  # all of them are one endpoint's, and the API allows one since 1.27
                self._known(endpoint.uid, endpoint.pod or endpoint.uid).places[":" in address] = address, port

    def _known(self, uid: str, name: str) -> _Pod:
        return self._pods.setdefault(uid, _Pod(name, there=False))

    def _replicas(self) -> tuple[Replica, ...]:
        holders: dict[Place, tuple[str, _Pod]] = {}
        for uid, pod in self._pods.items():
            if pod.there and (place := self._place(pod)) is not None:
                holders[place] = uid, pod
        found = []
        for place, (uid, pod) in holders.items():
            number = self._numbers.setdefault((uid, place), len(self._numbers) + 1)
            found.append(Replica(id=uid, number=number, name=pod.name, host=place[0], port=place[1], up=pod.up))
        return tuple(sorted(found, key=lambda replica: replica.number))

    def _place(self, pod: _Pod) -> Place | None:
        if self._way.family is not None:
            return pod.places.get(self._way.family == "IPv6")
        first = pod.ip is not None and ":" in pod.ip
        return pod.places.get(first) or pod.places.get(not first)


def port_of(ports: dict[str, int], wanted: str | int | None) -> int | None:
    """The port that a slice means by a name, or its only one; None where that is not to be told."""
    if isinstance(wanted, str):
        return ports.get(wanted)
    return next(iter(ports.values())) if len(ports) == 1 else None
