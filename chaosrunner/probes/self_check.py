"""The prober's own health: an overloaded prober must not blame the service."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable

import anyio

from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Prober, Request, RequestSent, Row

TICK = 0.1
"""Seconds between two looks at the event loop."""
STALL = 1.0
"""Seconds for which the loop may stand still before it counts as stalled."""
NEAR = 1.0
"""A stall that ended this long before a decision, in seconds, may have hidden what would have changed it."""
LATE = 0.1
"""Seconds by which a request may be sent late before what follows from that is our fault."""


class LoopWatch:
    """Sleeps in short ticks and notes how late it wakes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_tick: float | None = None
        self._stall_end: float | None = None
        self._largest = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        self._last_tick = self._clock.now()
        while True:
            await anyio.sleep(TICK)
            lag = self._lag()
            self._last_tick = self._clock.now()
            self._largest = max(self._largest, lag)
            if lag > STALL:
                self._stall_end = self._last_tick

    def _lag(self) -> float:
        return 0.0 if self._last_tick is None else max(0.0, self._clock.now() - self._last_tick - TICK)

    def take_largest(self) -> float:
        """The largest lateness since the last call, seconds."""
        largest, self._largest = max(self._largest, self._lag()), 0.0
        return largest

    def stalled(self) -> bool:
        """Whether the loop stands still, or did so just now, for longer than `STALL`."""
        # Right after a stall, a timer of a request may run before our own tick does.
        if self._lag() > STALL:
            return True
        return self._stall_end is not None and self._clock.now() - self._stall_end < NEAR


class Tally:
    """What this process does, counted from the rows of its probes."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.requests = 0
        self.chunks = 0
        self._send_lag: float | None = None

    def feed(self, row: Row) -> None:
        match row:
            case RequestSent():
                self.in_flight += 1
                if row.scheduled is not None:
                    self._send_lag = max(self._send_lag or 0.0, row.at - row.scheduled)
            case Request() if row.outcome != Outcome.NOT_SENT and row.sent != row.scheduled:
                self.in_flight -= 1
                self.requests += 1
                self.chunks += row.events

    def take_send_lag(self) -> float | None:
        """The largest lateness of a scheduled send since the last call, seconds; None without any."""
        lag, self._send_lag = self._send_lag, None
        return lag


async def self_check(
    emit: Callable[[Row], None],
    clock: Clock,
    *,
    tally: Tally | None = None,
    queue: Callable[[], int] = lambda: 0,
    interval: float = 1.0,
) -> None:
    """Emit a `Prober` row every `interval` seconds until cancelled; `queue` counts the rows waiting to be written."""
    watch = LoopWatch(clock)
    tally = tally or Tally()
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        while True:
            await anyio.sleep(interval)
            emit(
                Prober(
                    at=clock.now(),
                    loop_lag=watch.take_largest(),
                    send_lag=tally.take_send_lag(),
                    in_flight=tally.in_flight,
                    requests=tally.requests,
                    chunks=tally.chunks,
                    queue=queue(),
                    open_files=_open_files(),
                    file_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                    cpu=time.process_time(),
                )
            )


def _open_files() -> int | None:
    """Descriptors of this process; None where the system does not list them."""
    try:
        return len(os.listdir("/dev/fd"))  # noqa: PTH208 - names only, each second
    except OSError:
        return None
