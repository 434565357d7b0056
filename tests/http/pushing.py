"""Helpers of tests that push: a receiver that keeps what comes, and a count of what is open."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from chaosrunner.http import Exchange, Headers, TransportError
from chaosrunner.http.stamps import Stamps
from chaosrunner.timeline.clock import Clock


@dataclass
class Kept:
    """Receiver that keeps all."""

    status: int | None = None
    headers_at: float | None = None
    reads: list[tuple[float, bytes, bool]] = field(default_factory=list)
    error: TransportError | None = None

    def headers(self, at: float, status: int, headers: Headers) -> None:
        self.status, self.headers_at = status, at

    def data(self, at: float, data: bytes, exact: bool) -> bool:
        assert data
        self.reads.append((at, data, exact))
        return True

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data, _ in self.reads)


async def pushed(exchange: Exchange) -> Kept:
    """What an exchange came to."""
    kept = Kept()
    try:
        await exchange.push(kept)
    except TransportError as error:
        kept.error = error
    return kept


async def pulled(exchange: Exchange) -> Kept:
    """The same, by the other way."""
    kept = Kept()
    try:
        async with exchange:
            kept.status, kept.headers_at = exchange.status, exchange.timings.headers
            async for at, data in exchange:
                kept.reads.append((at, data, True))
    except TransportError as error:
        kept.error = error
    return kept


async def stopped_as_it_connects(exchange: Exchange, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Push, and stop in the turn of the loop in which the connection has come and the task does not know yet.

    `meanwhile` is called once it connects.
    """
    task = asyncio.ensure_future(pushed(exchange))
    await asyncio.sleep(0)
    meanwhile()
    for _ in range(10_000):
        future = exchange.wait._future
        if future is not None and future.done():
            break
        await asyncio.sleep(0)
    assert exchange.timings.requested is None
    exchange.stop()
    await task


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208


@asynccontextmanager
async def nothing_left_open() -> AsyncIterator[None]:
    """Descriptors are no more than before, once the server's ends have closed too, some turns of the loop later.

    They may be fewer: what earlier tests left goes with the garbage.
    """
    Stamps(Clock())  # its one descriptor stays as long as the process
    before = descriptors()
    yield
    for _ in range(50):
        if descriptors() <= before:
            return
        await asyncio.sleep(0.02)
    assert descriptors() <= before
