"""How late an event loop is: what a bound on a busy machine has to allow for."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

_TICK = 0.005


@asynccontextmanager
async def lateness() -> AsyncIterator[Callable[[], float]]:
    """By how much this loop has been late so far, seconds, all in all: nothing on it is late by more, however busy the
    machine is."""
    total = 0.0

    async def run() -> None:
        nonlocal total
        while True:
            due = time.monotonic() + _TICK
            await anyio.sleep(_TICK)
            total += max(0.0, time.monotonic() - due)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        yield lambda: total
        group.cancel_scope.cancel()
