"""The prober's own health: an overloaded prober must not blame the service."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import anyio

from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Prober, Row

TICK = 0.1
"""Seconds between two looks at the event loop."""
STALL = 1.0
"""Seconds for which the loop may stand still before it counts as stalled."""
NEAR = 1.0
"""A stall that ended this long before a decision, in seconds, may have hidden what would have changed it."""


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


async def self_check(
    emit: Callable[[Row], None],
    clock: Clock,
    *,
    queue: Callable[[], int] = lambda: 0,
    interval: float = 1.0,
) -> None:
    """Emit a `Prober` row every `interval` seconds until cancelled; `queue` counts the rows waiting to be written."""
    watch = LoopWatch(clock)
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        while True:
            await anyio.sleep(interval)
            emit(
                Prober(
                    at=clock.now(),
                    loop_lag=watch.take_largest(),
                    queue=queue(),
                    open_files=_open_files(),
                    cpu=time.process_time(),
                )
            )


def _open_files() -> int | None:
    """Descriptors of this process; None where the system does not list them."""
    try:
        return len(os.listdir("/dev/fd"))  # noqa: PTH208 - names only, each second
    except OSError:
        return None
