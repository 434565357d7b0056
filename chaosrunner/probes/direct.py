"""A load for each replica by its own address, for as long as the replica is there: what a client sees that no gateway
stands before.

A replica that does not say yet that it serves is knocked at, without a request: that its server does not listen yet is
no failure of anybody. From its first connection on, or when it says that it serves, it gets its load, to which what it
then refuses counts. One that is on its way out keeps its load until it is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import anyio
import anyio.abc

from chaosrunner.probes.part import Part
from chaosrunner.probes.replicas import Replica, Replicas
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Emit

KNOCK_EVERY = 0.05
"""Seconds between two tries to connect to a server that does not listen yet."""
KNOCK_LIMIT = 1.0
"""Seconds after which a try is given up: an address that is not there yet may not answer at all."""

Load = Callable[[ProbeSpec, anyio.Event, Part], Awaitable[None]]
"""Sends a part of a probe's load until told to stop; returns when the last request has ended."""


@dataclass
class _Served:
    """A replica that has its load, or waits for it."""

    leave: anyio.Event = field(default_factory=anyio.Event)
    up: anyio.Event = field(default_factory=anyio.Event)


async def to_each_replica(
    spec: ProbeSpec, load: Load, replicas: Replicas, emit: Emit, clock: Clock, stop: anyio.Event, part: Part
) -> None:
    """Keep a load on each replica that there is until `stop` is set; return when the last request has ended."""
    await _Loads(spec, load, emit, clock, part).run(replicas, stop)


class _Loads:
    def __init__(self, spec: ProbeSpec, load: Load, emit: Emit, clock: Clock, part: Part) -> None:
        self._spec = spec
        self._load = load
        self._emit = emit
        self._clock = clock
        self._part = part
        self._served: dict[int, _Served] = {}

    async def run(self, replicas: Replicas, stop: anyio.Event) -> None:
        async with anyio.create_task_group() as loads:
            async with anyio.create_task_group() as group:
                group.start_soon(self._follow, replicas, loads)
                await stop.wait()
                group.cancel_scope.cancel()
            for served in self._served.values():
                served.leave.set()

    async def _follow(self, replicas: Replicas, loads: anyio.abc.TaskGroup) -> None:
        known: tuple[Replica, ...] = ()
        while True:
            known = await replicas.other_than(known)
            for gone in self._served.keys() - {replica.number for replica in known}:
                self._served.pop(gone).leave.set()
            for replica in known:
                served = self._served.get(replica.number)
                if served is None:
                    served = self._served[replica.number] = _Served()
                    loads.start_soon(self._serve, replica, served)
                if replica.up:
                    served.up.set()

    async def _serve(self, replica: Replica, served: _Served) -> None:
        part = self._part.turned((replica.number - 1) * self._spec.most_in_flight)
        if self._spec.open is None and not part.users(self._spec.concurrency):
            return
        tell = self._emit if part.index == 0 else _nothing
        tell(self._row(replica, "joined"))
        # Behind a proxy it is the proxy that would answer.
        if not served.up.is_set() and self._spec.proxy is None:
            await _until_listening(replica, served)
        if not served.leave.is_set():
            tell(self._row(replica, "listens"))
            await self._load(self._spec.towards(replica), served.leave, part)
        tell(self._row(replica, "left"))

    def _row(self, replica: Replica, event: Literal["joined", "listens", "left"]) -> rows.Replica:
        return rows.Replica(
            at=self._clock.now(),
            probe=self._spec.name,
            replica=replica.id,
            name=replica.name,
            address=replica.address,
            number=replica.number,
            event=event,
        )


def _nothing(row: rows.Row) -> None:
    """Another process of the probe tells."""


async def _until_listening(replica: Replica, served: _Served) -> None:
    """Return when the replica takes a connection, says that it serves, or is to be left."""
    async with anyio.create_task_group() as group:

        async def give_up(event: anyio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        group.start_soon(give_up, served.leave)
        group.start_soon(give_up, served.up)
        while not await _listens(replica):  # noqa: ASYNC110  a closed port tells nobody when it opens
            await anyio.sleep(KNOCK_EVERY)
        group.cancel_scope.cancel()


async def _listens(replica: Replica) -> bool:
    try:
        with anyio.fail_after(KNOCK_LIMIT):
            connection = await anyio.connect_tcp(replica.host, replica.port)
    except OSError:  # TimeoutError is one
        return False
    await connection.aclose()
    return True
