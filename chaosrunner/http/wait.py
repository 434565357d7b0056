"""Waiting for one thing at a time, with a limit, and with a way for others to end it."""

from __future__ import annotations

import asyncio


class Wait:
    """What the task of an exchange waits for. Costs a future, and a timer where there is a limit."""

    __slots__ = ("_future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._future: asyncio.Future[None] | None = None

    def woken(self) -> asyncio.Future[None]:
        """To be awaited at once: ends with `wake`, raises what `fail` is given. A `wake` before it is lost."""
        self._future = self.loop.create_future()
        return self._future

    async def until_woken(self, deadline: float | None = None) -> None:
        """As `woken`; raises TimeoutError (without an errno) at `deadline` (loop's clock)."""
        timer = self.loop.call_at(deadline, self.fail, TimeoutError()) if deadline is not None else None
        try:
            await self.woken()
        finally:
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def fail(self, error: Exception) -> bool:
        """Raise `error` in who waits; False where nobody does."""
        if self._future is None or self._future.done():
            return False
        self._future.set_exception(error)
        return True
