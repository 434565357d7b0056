"""One timer of the event loop that is late by microseconds.

asyncio's own timers are late by up to a millisecond, as its selector sleeps in whole ones, rounded up. Linux has
timers that are files, which wake the selector like any other: used from the standard library since Python 3.13, before
that through ctypes. Elsewhere the loop's own timers have to do.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from chaosrunner.timeline.clock import Clock


class _Backend(Protocol):
    def set(self, at_ns: int) -> None:
        """Call back once, at this instant of the monotonic clock (nanoseconds) or at once if it has passed."""

    def close(self) -> None: ...


class Timer:
    """Waits for instants of the recording's clock; for one waiter at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: asyncio.Future[None] | None = None
        self._backend = _backend(self._fire)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._backend.close()

    async def until(self, at: float) -> None:
        """Return when `at` (seconds) has come, never before it; at once, without a pause, where it has passed."""
        while self._clock.now() < at:
            self._waiting = asyncio.get_running_loop().create_future()
            self._backend.set(self._clock.monotonic_ns(at))
            await self._waiting

    def _fire(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _backend(call: Callable[[], None]) -> _Backend:
    if sys.platform == "linux":
        try:
            return _FileTimer(call)
        except (OSError, AttributeError):  # no descriptor left; a libc or a sandbox without it
            pass
    return _LoopTimer(call)


class _LoopTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_ns: int) -> None:
        self.close()
        self._handle = self._loop.call_at(self._loop.time() + (at_ns - time.monotonic_ns()) / 1e9, self._call)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class _FileTimer:
    """timerfd_create(2). Raises OSError or AttributeError where there is none."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._file = _create()
        self._loop.add_reader(self._file, self._read)

    def set(self, at_ns: int) -> None:
        _set(self._file, max(1, at_ns))  # 0 would disarm it

    def close(self) -> None:
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _read(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # set anew since
            return
        self._call()


if sys.version_info >= (3, 13):

    def _create() -> int:
        return os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

    def _set(file: int, at_ns: int) -> None:
        os.timerfd_settime_ns(file, flags=os.TFD_TIMER_ABSTIME, initial=at_ns)

else:
    _ABSTIME = 1  # TFD_TIMER_ABSTIME of <sys/timerfd.h>
    _libc = ctypes.CDLL(None, use_errno=True)

    class _Interval(ctypes.Structure):
        """struct itimerspec: two struct timespec, the period and the first expiry."""

        _fields_ = (
            ("period_seconds", ctypes.c_long), ("period_nanoseconds", ctypes.c_long),
            ("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long),
        )  # fmt: skip

    def _create() -> int:
        # TFD_NONBLOCK and TFD_CLOEXEC are O_NONBLOCK and O_CLOEXEC by definition.
        return _checked(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))

    def _set(file: int, at_ns: int) -> None:
        wanted = _Interval(0, 0, *divmod(at_ns, 1_000_000_000))
        _checked(_libc.timerfd_settime(file, _ABSTIME, ctypes.byref(wanted), None))

    def _checked(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
