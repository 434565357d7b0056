"""Which endpoint a new request goes to, and the idle connections to each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from chaosrunner.lab.workload.endpoints import Endpoint
from chaosrunner.lab.workload.http1 import Connection


@dataclass(eq=False)
class Upstream:
    """An endpoint as the gateway sees it, with what is going on there."""

    endpoint: Endpoint
    known: bool = True
    """Still in the Service's slices; requests that run on others go on all the same."""
    in_flight: int = 0
    requests: int = 0
    idle: list[tuple[Connection, float]] = field(default_factory=list)
    """Open connections without a request, with the time at which each became so."""

    def take(self, not_before: float) -> Connection | None:
        """The idle connection that was used last, if one is fresh enough; older ones are closed."""
        while self.idle:
            connection, since = self.idle.pop()
            if since >= not_before and not connection.ended:
                return connection
            connection.close()
        return None

    def close_idle(self) -> None:
        """Close what nobody uses."""
        for connection, _ in self.idle:
            connection.close()
        self.idle.clear()


class Balancer:
    """Upstreams and the choice among them."""

    def __init__(self, policy: str, panic: str, seed: int) -> None:
        self.upstreams: dict[tuple[str, int], Upstream] = {}
        self.synced = False
        """Whether any endpoints, be it none, have been told yet."""
        self._panic = panic
        self._random = random.Random(seed)
        self._turn = 0
        choices: dict[str, Callable[[list[Upstream]], Upstream]] = {
            "least_request": self._least_request,
            "round_robin": self._round_robin,
            "random": self._random.choice,
        }
        self._choose = choices[policy]

    def update(self, endpoints: list[Endpoint]) -> None:
        """Take the Service's endpoints as they are now."""
        self.synced = True
        told = {endpoint.key: endpoint for endpoint in endpoints}
        for key, upstream in list(self.upstreams.items()):
            # An address that went to another Pod is another upstream.
            if key not in told or told[key].pod != upstream.endpoint.pod:
                upstream.known = False
                upstream.close_idle()
                del self.upstreams[key]
        for key, endpoint in told.items():
            if key in self.upstreams:
                self.upstreams[key].endpoint = endpoint
            else:
                self.upstreams[key] = Upstream(endpoint)

    def pick(self, tried: set[tuple[str, int]]) -> Upstream | None:
        """An upstream for a new request, not one of those already tried; None if there is nothing to try.

        With no ready endpoint at all the gateway panics, as Envoy does, and tries others too.
        """
        everyone = list(self.upstreams.values())
        pool = [upstream for upstream in everyone if upstream.endpoint.ready]
        if not pool and self._panic == "all":
            pool = everyone
        elif not pool and self._panic == "serving":
            pool = [upstream for upstream in everyone if upstream.endpoint.serving]
        if not tried:
            # A retry does not use up a turn: with two endpoints every request would begin at the same one.
            self._turn += 1
        pool = [upstream for upstream in pool if upstream.endpoint.key not in tried]
        return self._choose(pool) if pool else None

    def _least_request(self, pool: list[Upstream]) -> Upstream:
        two = self._random.sample(pool, min(2, len(pool)))
        return min(two, key=lambda upstream: upstream.in_flight)

    def _round_robin(self, pool: list[Upstream]) -> Upstream:
        return pool[self._turn % len(pool)]

    async def sweep(self, idle_timeout: float) -> None:
        """Close connections that have been idle for too long, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.05, idle_timeout / 4))
            limit = loop.time() - idle_timeout
            for upstream in self.upstreams.values():
                kept = []
                for connection, since in upstream.idle:
                    if since >= limit and not connection.ended:
                        kept.append((connection, since))
                    else:
                        connection.close()
                upstream.idle = kept
