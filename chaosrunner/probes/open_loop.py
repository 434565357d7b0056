"""Open-loop load: requests are sent by a schedule, whether or not the service keeps up, as independent users do."""

from __future__ import annotations

import anyio
import anyio.abc
import anyio.lowlevel

from chaosrunner.http import StreamClient
from chaosrunner.probes.arrivals import arrivals
from chaosrunner.probes.attempt import Attempts
from chaosrunner.probes.maker import RequestMaker
from chaosrunner.probes.part import Part
from chaosrunner.probes.self_check import LATE
from chaosrunner.probes.spec import OpenLoop, Planned, ProbeSpec
from chaosrunner.probes.timer import Timer
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Emit, Request

MOST_LEAD = 0.0005
"""Seconds by which the timer is set early at most. Between a timer and a send lie the wake-up of the process and two
turns of the event loop; they are spent ahead of time, and what is too early is waited out with the eyes open."""
LEAD_UP, LEAD_DOWN = 50e-6, 0.25e-6
"""Seconds by which the lead grows when it was too short, and shrinks when it was not: it settles where 1 in 200 is."""

BURST = 16
"""So many requests that are due at once are begun before anything else is looked at."""


class _User:
    """Sends one request at a time; idle users wait for the next one, each with its connection."""

    def __init__(self) -> None:
        self.wanted = anyio.Event()
        self.planned: Planned | None = None

    def hand(self, planned: Planned | None) -> None:
        """The next request; None: there is none any more."""
        self.planned = planned
        self.wanted.set()


class OpenLoad:
    """Sends this part of the schedule until `stop` is set.

    begin: zero of the schedule, on the recording's clock. since: what is due before then is not this load's; all of it
    where None.
    """

    def __init__(
        self,
        spec: ProbeSpec,
        load: OpenLoop,
        client: StreamClient,
        attempts: Attempts,
        emit: Emit,
        clock: Clock,
        stop: anyio.Event,
        part: Part,
        begin: float,
        since: float | None = None,
    ) -> None:
        self._spec = spec
        self._load = load
        self._part = part
        self._begin = begin
        self._since = begin if since is None else since
        self._most = part.of_cap(load.max_in_flight)
        self._attempts = attempts
        self._emit = emit
        self._clock = clock
        self._stop = stop
        self._client = client
        self._maker = RequestMaker(spec)
        self._idle: list[_User] = []
        self._in_flight = 0
        self._lead = MOST_LEAD / 2
        self._scheduled = self._since - MOST_LEAD
        """When the last request was to be sent that a user has taken on."""
        self._ours_until = 0.0
        """Until then it is our own lateness that fills the cap."""

    async def run(self) -> None:
        """Return when the last request has ended."""
        async with self._client, anyio.create_task_group() as users:
            async with anyio.create_task_group() as group:
                group.start_soon(self._send_all, users)
                await self._stop.wait()
                group.cancel_scope.cancel()
            for user in self._idle:
                user.hand(None)

    async def _send_all(self, users: anyio.abc.TaskGroup) -> None:
        begin, part = self._begin, self._part
        together = -MOST_LEAD
        """The first of those that are handed out together, as the next of them would be due before it is looked for."""
        with Timer(self._clock) as timer:
            for number, after in enumerate(arrivals(self._load, f"{self._spec.seed}/{self._spec.label}"), start=1):
                if not part.sends(number) or begin + after < self._since:
                    continue
                if after - together >= MOST_LEAD:
                    together = after
                    await timer.until(begin + after - self._lead)
                if number // part.of % BURST == 0:
                    await anyio.lowlevel.checkpoint()
                if self._stop.is_set():
                    return
                self._send(number, begin + after, users)

    def _send(self, number: int, at: float, users: anyio.abc.TaskGroup) -> None:
        planned = self._maker.make(number, scheduled=at)
        now = self._clock.now()
        if now - at > LATE:
            # What piled up goes out at once, and so many more are in flight as are so much late.
            self._ours_until = max(self._ours_until, now + (now - at))
        if self._in_flight >= self._most:
            self._refuse(planned, at, now)
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
                    await self._attempts.send(lane, next_one, hold=self._await_schedule)
                finally:
                    self._in_flight -= 1
                if self._stop.is_set():
                    return
                user.wanted = anyio.Event()
                self._idle.append(user)
                await user.wanted.wait()
                next_one = user.planned

    def _await_schedule(self, at: float) -> None:
        """Wait out what is left to the scheduled time, which is less than `MOST_LEAD`; learn how much it is."""
        now, before = self._clock.now(), self._scheduled
        self._scheduled = at
        # What is late by more, or because another one was due right before it, no lead would have helped.
        if now <= at + MOST_LEAD and at - before >= MOST_LEAD:
            self._lead = min(MOST_LEAD, self._lead + LEAD_UP) if now > at else max(0.0, self._lead - LEAD_DOWN)
        while self._clock.now() < at:
            pass

    def _refuse(self, planned: Planned, at: float, now: float) -> None:
        """The row of a request that the cap forbids: no word on the service where we filled the cap ourselves."""
        ours = now < self._ours_until
        reason = f"{self._most} requests in flight, the most that max_in_flight allows"
        if self._part.of > 1:
            reason += f" each of {self._part.of} workers"
        self._emit(
            Request(
                at=max(now, at),
                request=planned.id,
                probe=self._spec.name,
                shape=planned.shape.name,
                outcome=Outcome.PROBER_FAULT if ours else Outcome.NOT_SENT,
                sent=at,
                replica=self._spec.replica.id if self._spec.replica is not None else None,
                scheduled=at,
                cancel_planned=planned.cancel_after is not None,
                error=f"{reason}, as the runner itself was late" if ours else reason,
            )
        )
