"""Ends a run early, for a reason: a signal, a stop file, the deadline, the playbook's own condition, a dead probe."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import structlog

log = structlog.get_logger()

STOP_FILE_PERIOD = 0.2
"""Seconds between two looks at the stop file."""


@contextmanager
def signals_held() -> Iterator[AsyncIterator[signal.Signals]]:
    """SIGINT, SIGTERM and the end of the terminal do nothing but come out of the iterator, whether or not it is read.

    Afterwards they do what they did before.
    """
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup(1) has it
        wanted.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in wanted}
    try:
        with anyio.open_signal_receiver(*wanted) as signals:
            yield signals
    finally:  # asyncio puts back the defaults, not what was there
        for number, handler in before.items():
            signal.signal(number, handler)


class Supervisor:
    """Cancels the steps of a run, once, and remembers why.

    Aborting cancels only the steps: undo, the drain of requests in flight and the analysis still follow.
    """

    def __init__(self, on_abort: Callable[[str], None]) -> None:
        self.steps = anyio.CancelScope()
        """The scope in which the steps run."""
        self.hurry = anyio.Event()
        """Set by a second signal: requests in flight are cancelled instead of drained."""
        self.reason: str | None = None
        self._on_abort = on_abort
        self._closed = False

    def abort(self, reason: str, *, late: bool = False) -> None:
        """Aborts the run; only the first reason counts.

        Does nothing once the steps are over, unless it is one that spoils the run whenever it comes (`late`).
        """
        if self.reason is not None or (self._closed and not late):
            return
        self.reason = reason
        log.warning("aborting", reason=reason)
        self.steps.cancel()
        self._on_abort(reason)

    def close(self) -> None:
        """The steps are over: what comes now no longer aborts."""
        self._closed = True

    async def watch_signals(self, signals: AsyncIterator[signal.Signals]) -> None:
        """A signal aborts; the second one stops waiting for requests in flight."""
        async for number in signals:
            if self.reason is None and not self._closed:
                self.abort(f"signal {number.name}")
            else:
                self.hurry.set()

    async def watch_stop_file(self, path: Path) -> None:
        """Aborts when the file appears."""
        waited = anyio.Path(path)
        while not await waited.exists():  # noqa: ASYNC110  a file has no event to wait for
            await anyio.sleep(STOP_FILE_PERIOD)
        self.abort(f"stop file {path}")

    async def watch_deadline(self, seconds: float) -> None:
        """Aborts when the drill's deadline passes. `seconds` from now."""
        await anyio.sleep(seconds)
        self.abort(f"deadline of {seconds:g} s passed")
