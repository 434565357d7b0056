"""The recording's one clock: monotonic seconds since the recording began."""

from __future__ import annotations

import time
from math import ceil
from typing import Self


class Clock:
    """Monotonic time with a wall-clock anchor.

    Wall time is read once, at the anchor; every wall time of the recording is derived from it, so a slewed or
    stepped system clock moves no row. The offset between both is sampled as rows (`Clock` rows).
    """

    def __init__(self) -> None:
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        self._zero = (before + after) // 2
        self._wall = wall

    @classmethod
    def anchored(cls, anchor: tuple[int, int]) -> Self:
        """The same clock in another process of this machine, whose monotonic clock is the same one; see `anchor`."""
        clock = cls()
        clock._zero, clock._wall = anchor
        return clock

    @property
    def anchor(self) -> tuple[int, int]:
        """The recording's zero: nanoseconds of the monotonic clock, and Unix nanoseconds."""
        return self._zero, self._wall

    @property
    def anchor_wall(self) -> float:
        """Unix seconds at the recording's zero."""
        return self._wall / 1e9

    def now(self) -> float:
        """Seconds since the recording began."""
        return (time.monotonic_ns() - self._zero) / 1e9

    def sample(self) -> tuple[float, float]:
        """Now on this clock, and what the system's wall clock says at that instant (unix seconds)."""
        before = time.monotonic_ns()
        wall = time.time_ns()
        return ((before + time.monotonic_ns()) // 2 - self._zero) / 1e9, wall / 1e9

    def from_monotonic(self, seconds: float) -> float:
        """An instant of `time.monotonic()` (the event loop's clock too) on the recording's clock."""
        return seconds - self._zero / 1e9

    def monotonic_ns(self, at: float) -> int:
        """An instant of the recording's clock as `time.monotonic_ns()` tells it, rounded up."""
        return self._zero + ceil(at * 1e9)

    def wall(self, at: float) -> float:
        """Unix seconds of an instant of the recording's clock, by the anchor."""
        return self._wall / 1e9 + at

    def at(self, wall: float) -> float:
        """The instant of the recording's clock at a wall time (unix seconds), by the anchor."""
        return wall - self._wall / 1e9
