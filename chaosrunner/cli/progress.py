"""How a probe that runs alone is getting on: one line, kept up to date on a terminal, else a new one now and then."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live as Screen
from rich.text import Text

from chaosrunner.analysis import Live
from chaosrunner.engine.alone import Alone
from chaosrunner.reports.format import fine, share
from chaosrunner.timeline import rows
from chaosrunner.timeline.outcomes import OUTSIDE_RATES, SUCCESSES
from chaosrunner.timeline.rows import Emit

EVERY = 10.0
"""Seconds between two lines where there is no terminal."""

RECENT = 10.0
"""Seconds over which rates and the usual TTFT are shown."""


class Progress:
    """Counts what it shows from the rows themselves."""

    def __init__(self, console: Console, alone: Alone) -> None:
        self._console = console
        self._alone = alone
        self._sent = self._ended = self._counted = self._good = 0
        self._recent: deque[tuple[float, float | None, int]] = deque()
        """Of the successes lately: end, TTFT, tokens."""
        self._lag = 0.0
        self._doing = ""
        self._next_line = EVERY
        self._began = time.monotonic()

    def follow(self, _live: Live) -> Emit:
        self._began = time.monotonic()
        return self._feed

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Screen(self, console=self._console, refresh_per_second=5, transient=True):
            yield

    def _feed(self, row: rows.Row) -> None:
        match row:
            case rows.RequestSent():
                self._sent += 1
            case rows.Request():
                self._request(row)
            case rows.Run(event="draining" | "aborting"):
                self._doing = "letting requests in flight end" if row.event == "draining" else f"{row.reason}: ending"
            case rows.Prober():
                self._lag = row.loop_lag
                if not self._console.is_terminal and row.at >= self._next_line:
                    self._next_line += EVERY
                    self._console.print(self._line(), soft_wrap=True)

    def _request(self, row: rows.Request) -> None:
        if row.outcome == "not_sent":
            self._sent += 1
        self._ended += 1
        self._counted += row.outcome not in OUTSIDE_RATES
        if row.outcome in SUCCESSES:
            self._good += 1
            zero = row.sent if row.scheduled is None else row.scheduled
            ttft = None if row.first_token is None else row.first_token - zero
            self._recent.append((row.at, ttft, row.tokens or 0))
        while self._recent and self._recent[0][0] < row.at - RECENT:
            self._recent.popleft()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = self._line()
        line.truncate(options.max_width, overflow="ellipsis")
        line.no_wrap = True
        yield line

    def _line(self) -> Text:
        alone, gone = self._alone, time.monotonic() - self._began
        whole = f" of {alone.duration:g} s" if alone.duration is not None else ""
        line = Text(f"{gone:.0f} s{whole}", style="bold")
        if self._doing:
            line.append(f"  {self._doing}", style="not bold dim")
        of = f" of {alone.requests}" if alone.requests is not None else ""
        line.append(
            f"  sent {self._sent}{of}  in flight {self._sent - self._ended}  ended {self._ended}", style="not bold"
        )
        if self._counted:
            lost = self._counted - self._good
            line.append(f"  success {share(self._good / self._counted)}", style="not bold red" if lost else "not bold")
        if self._recent:
            over = min(RECENT, max(gone, 1.0))
            line.append(f"  {len(self._recent) / over:.3g}/s", style="not bold")
            if tokens := sum(tokens for _, _, tokens in self._recent):
                line.append(f"  {tokens / over:.4g} tokens/s", style="not bold")
            if known := [ttft for _, ttft, _ in self._recent if ttft is not None]:
                line.append(f"  TTFT {fine(median(known))}", style="not bold")
        if self._lag > 0.05:
            line.append(f"  loop late by {fine(self._lag)}", style="not bold yellow")
        return line
