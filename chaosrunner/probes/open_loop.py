"""Open-loop load: requests are sent by a schedule, whether or not the service keeps up, as independent users do."""

from __future__ import annotations

import anyio
import anyio.abc
import anyio.lowlevel

from chaosrunner.probes.arrivals import arrivals
from chaosrunner.probes.attempt import Attempts
from chaosrunner.probes.maker import RequestMaker
from chaosrunner.probes.self_check import LATE, LoopWatch
from chaosrunner.probes.spec import OpenLoop, Planned, ProbeSpec
from chaosrunner.probes.timer import Timer
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Emit, Request

BURST = 16
"""So many requests that are due at once are begun before anything else is looked at."""


async def open_loop(
    spec: ProbeSpec, load: OpenLoop, attempts: Attempts, emit: Emit, clock: Clock, watch: LoopWatch, stop: anyio.Event
) -> None:
    """Send by the schedule until `stop` is set; return when the last request has ended."""
    await _OpenLoop(spec, load, attempts, emit, clock, watch, stop).run()


class _User:
    """Sends one request at a time; idle users wait for the next one, each with its connection."""

    def __init__(self) -> None:
        self.wanted = anyio.Event()
        self.planned: Planned | None = None

    def hand(self, planned: Planned | None) -> None:
        """The next request; None: there is none any more."""
        self.planned = planned
        self.wanted.set()


class _OpenLoop:
    def __init__(
        self,
        spec: ProbeSpec,
        load: OpenLoop,
        attempts: Attempts,
        emit: Emit,
        clock: Clock,
        watch: LoopWatch,
        stop: anyio.Event,
    ) -> None:
        self._spec = spec
        self._load = load
        self._attempts = attempts
        self._emit = emit
        self._clock = clock
        self._watch = watch
        self._stop = stop
        self._client = spec.make_client(clock)
        self._maker = RequestMaker(spec)
        self._idle: list[_User] = []
        self._in_flight = 0

    async def run(self) -> None:
        async with self._client, anyio.create_task_group() as users:
            async with anyio.create_task_group() as group:
                group.start_soon(self._send_all, users)
                await self._stop.wait()
                group.cancel_scope.cancel()
            for user in self._idle:
                user.hand(None)

    async def _send_all(self, users: anyio.abc.TaskGroup) -> None:
        begin = self._clock.now()
        with Timer(self._clock) as timer:
            for number, after in enumerate(arrivals(self._load, f"{self._spec.seed}/{self._spec.name}"), start=1):
                await timer.until(begin + after)
                if number % BURST == 0:
                    await anyio.lowlevel.checkpoint()
                if self._stop.is_set():
                    return
                self._send(number, begin + after, users)

    def _send(self, number: int, at: float, users: anyio.abc.TaskGroup) -> None:
        planned = self._maker.make(number, scheduled=at)
        if self._in_flight >= self._load.max_in_flight:
            self._refuse(planned, at)
            return
        self._in_flight += 1
        if self._idle:
            self._idle.pop().hand(planned)  # who came last: its connection is the least likely to have been closed
        else:
            users.start_soon(self._serve, planned)

    async def _serve(self, planned: Planned) -> None:
        user = _User()
        next_one: Planned | None = planned
        async with self._client.lane() as lane:
            while next_one is not None:
                try:
                    await self._attempts.send(lane, next_one)
                finally:
                    self._in_flight -= 1
                if self._stop.is_set():
                    return
                user.wanted = anyio.Event()
                self._idle.append(user)
                await user.wanted.wait()
                next_one = user.planned

    def _refuse(self, planned: Planned, at: float) -> None:
        """The row of a request that the cap forbids. Where we were late ourselves, the cap is no word on the service:
        what piled up meanwhile came at once."""
        now = self._clock.now()
        late = now - at
        ours = late > LATE or self._watch.stalled()
        reason = f"{self._load.max_in_flight} requests in flight, the most that max_in_flight allows"
        self._emit(
            Request(
                at=now,
                request=planned.id,
                probe=self._spec.name,
                shape=planned.shape.name,
                outcome=Outcome.PROBER_FAULT if ours else Outcome.NOT_SENT,
                sent=at,
                scheduled=at,
                cancel_planned=planned.cancel_after is not None,
                error=f"{reason}; the runner itself was late by {late:.3f} s" if ours else reason,
            )
        )
