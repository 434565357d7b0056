"""Receive times of the kernel, on the recording's clock.

Linux stamps each segment as it leaves the driver (`SO_TIMESTAMPNS`, socket(7)); the stamp of a read is that of its last
segment, and it does not age while a busy interpreter gets round to reading. It is wall time, so it is worth only as
much as what is known of the wall clock's offset to the monotonic one. On Linux that offset is constant but for steps
(adjtime slews both clocks alike, clock_gettime(2)), which is why a look at both clocks at every read, some 0.1 us,
tells a step as soon as anything is read; a stamp that may be from before the step is then not used.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from contextlib import suppress
from functools import cache

from chaosrunner.timeline.clock import Clock

SO_TIMESTAMPNS = 35
"""asm-generic/socket.h; the socket module does not have it."""
_TIMESPEC = struct.Struct("@ll")
ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size)
"""Bytes of ancillary data that a read asks for."""

STEP = 50_000
"""Nanoseconds by which the offset between the clocks must move to be a step, not the time between two looks."""
EARLY = 1e-4
"""Seconds by which a stamp may lie after now, or before the read before it, for want of precision."""

LATE = 10.0
"""Seconds for which bytes lie unread at most, where that must be assumed."""


class Stamps:
    """Turns what `recvmsg` says into instants; one for all connections of a client."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        """Seconds on the recording's clock."""
        self._clock = clock
        self._zero = clock.from_monotonic(0.0)
        self._offset = _sample()
        self._trusted = -float("inf")
        """Stamps from before this instant may be from before a step of the wall clock."""
        _keep_stamping()

    def from_loop(self, seconds: float) -> float:
        """An instant of the event loop's clock on the recording's."""
        return self._clock.from_monotonic(seconds)

    def enable(self, raw: socket.socket) -> None:
        """Ask the kernel for receive times of this socket; where it knows none, the loop's times serve."""
        if sys.platform == "linux":
            with suppress(OSError):  # a sandbox's kernel that has no such option
                raw.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def of(self, ancillary: list[tuple[int, int, bytes]], floor: float) -> tuple[float, bool]:
        """When the bytes of a read came, and whether the kernel says so (else: now).

        `floor` is when the bytes before them came, on the same connection.
        """
        monotonic = time.monotonic_ns()
        now = monotonic * 1e-9 + self._zero
        if not ancillary or len(ancillary[0][2]) != _TIMESPEC.size:
            return now, False
        moved = time.time_ns() - monotonic - self._offset
        if moved > STEP or moved < -STEP:
            self._look_again(now)
        seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
        at = (seconds * 1_000_000_000 + nanoseconds - self._offset) * 1e-9 + self._zero
        if at < self._trusted or at > now + EARLY or at < floor - EARLY:
            return now, False
        return min(at, now), True

    def _look_again(self, now: float) -> None:
        offset = _sample()
        moved = offset - self._offset
        if abs(moved) <= STEP:
            return  # the process was held up between two looks at the clocks
        # By the new offset, a stamp from before a step ahead lies before it by as much. One from before a step back
        # lies after it: in the future, unless it is read late.
        self._trusted = now + min(max(-moved * 1e-9, 0.0), LATE)
        self._offset = offset


@cache
def _keep_stamping() -> socket.socket | None:
    """A socket that asks for stamps as long as the process lives.

    The kernel begins to stamp some milliseconds after the first socket asks, and ends with the last: without this one,
    a connection of its own for each request would often be too early.
    """
    if sys.platform != "linux":
        return None
    try:
        holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        holder.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return None  # no descriptor is left, or stamps are refused: then some times are the loop's
    return holder


def _sample() -> int:
    """Wall clock less monotonic clock, nanoseconds: of a few tries the one whose looks were closest together."""
    best, offset = 1 << 62, 0
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best:
            best, offset = after - before, wall - (before + after) // 2
    return offset
