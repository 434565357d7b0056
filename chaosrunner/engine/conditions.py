"""Waits for expressions of the playbook to hold, on the live figures."""

from __future__ import annotations

import anyio

from chaosrunner.analysis import Live
from chaosrunner.playbook.expressions import Expression, evaluate
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock

PACE = 0.02
"""Least seconds between two evaluations: a busy probe emits thousands of rows a second."""

SHARE = 30
"""An evaluation that took t seconds is followed by a pause of at least t times this: figures over millions of requests
must not take the event loop away from the streams."""

PERIOD = 0.25
"""Most seconds between two evaluations: windows like `[30s]` change without a row."""


class Conditions:
    """Evaluates expressions as rows arrive."""

    def __init__(self, live: Live, clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._news = anyio.Event()
        self._cost = 0.0

    def feed(self, row: rows.Row) -> None:
        """A row arrived: whoever waits looks again."""
        self._news.set()

    def holds(self, expression: Expression, target: str | None = None) -> bool:
        """Whether it holds now. What is not known does not hold."""
        began = self._clock.now()
        holds = evaluate(expression, self._live.scope(target=target, now=began)) is True
        self._cost = self._clock.now() - began
        return holds

    async def until(self, expression: Expression, timeout: float) -> bool:
        """Waits until it holds; False after `timeout` seconds."""
        with anyio.move_on_after(timeout):
            while not self.holds(expression):
                await self.news()
            return True
        return False

    async def news(self) -> None:
        """Returns when there may be something new to evaluate."""
        await anyio.sleep(max(PACE, self._cost * SHARE))
        with anyio.move_on_after(PERIOD):
            await self._news.wait()
        self._news = anyio.Event()
