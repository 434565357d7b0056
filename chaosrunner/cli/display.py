"""What a person sees while a drill runs: a live display on a terminal, plain lines of news elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live as Screen
from rich.text import Text

from chaosrunner.analysis import Live
from chaosrunner.plan.plan import describe as describe_step
from chaosrunner.playbook import BoundDrill
from chaosrunner.reports.format import plural, seconds, share
from chaosrunner.reports.lines import News, describe, kind
from chaosrunner.timeline import rows
from chaosrunner.timeline.outcomes import SUCCESSES
from chaosrunner.timeline.rows import Emit

MOST_NEWS = 10
"""Lines of news that the live display keeps."""

MOST_LOSSES = 20
"""Lost requests that are told one by one where lines are printed; later ones are only counted."""

FRAME = 5
"""Lines of the live display beside steps and news."""

MARKS = {"started": "▶", "ok": "✓", "failed": "✗", "inconclusive": "?", "skipped": "-", "aborted": "■"}
STYLES = {"started": "bold", "ok": "green", "failed": "red", "inconclusive": "yellow", "aborted": "yellow"}


DOING = {
    "started": "running",
    "baseline_accepted": "running",
    "aborting": "aborting",
    "draining": "letting requests in flight end",
    "ended": "analysing",
}
"""What goes on after a row of the run itself."""


class Display:
    """Follows one run. Counts what it shows from the rows themselves."""

    def __init__(self, console: Console, bound: BoundDrill) -> None:
        self._console = console
        self._name = bound.drill.metadata.name
        self._steps = [step.name or describe_step(step) for step in bound.playbook.steps]
        self._states: dict[int, tuple[str, float, float | None, str | None]] = {}
        self._doing = ""
        self._sent = self._ended = self._lost = 0
        self._live: Live | None = None
        self._news = News()
        self._told: deque[str] = deque(maxlen=MOST_NEWS)
        self._now = 0.0
        self._began = time.monotonic()
        self._screen: Screen | None = None

    def say(self, doing: str) -> None:
        """What goes on before and after the run itself."""
        self._doing = doing
        self._print(f"{self._name}: {doing}")

    @property
    def followed(self) -> bool:
        """Whether the run has begun."""
        return self._live is not None

    def follow(self, folder: Path, live: Live) -> Emit:
        """The engine's hook: what is returned gets every row."""
        self._live = live
        self.say(f"recording to {folder}")
        return self._feed

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the display for the length of the block; on a terminal it then makes room for the report."""
        if not self._console.is_terminal:
            yield
            return
        with Screen(self, console=self._console, refresh_per_second=5, transient=True) as self._screen:
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Gives the terminal back for the length of the block, to ask something."""
        if self._screen is not None:
            self._screen.stop()
        yield
        if self._screen is not None:
            self._screen.start(refresh=True)

    def _print(self, line: str) -> None:
        if self._screen is None and not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)

    def _feed(self, row: rows.Row) -> None:
        self._now = row.at
        lost = False
        match row:
            case rows.RequestSent(once=False, replica=None):
                self._sent += 1
            case rows.Request(once=False, replica=None):
                self._ended += 1
                lost = row.outcome not in SUCCESSES
                self._lost += lost
            case rows.Step():
                self._step(row)
            case rows.Run():
                self._doing = DOING[row.event] + (f": {row.reason}" if row.event == "aborting" else "")
        told = lost and self._lost > MOST_LOSSES and not self._console.is_terminal
        if self._news.has(row) and not told:
            line = f"{row.at:7.2f}  {kind(row):<9}  {describe(row)}"
            self._print(line)
            if not isinstance(row, rows.Run | rows.Step) and not (isinstance(row, rows.Action) and row.event == "sent"):
                self._told.append(line)  # the live display shows runs and steps above the news
            if lost and self._lost == MOST_LOSSES:
                self._print("         further losses are only counted")

    def _step(self, row: rows.Step) -> None:
        began = self._states[row.index][1] if row.index in self._states else row.at
        if row.event == "started":
            self._states[row.index] = ("started", row.at, None, None)
        else:
            self._states[row.index] = (row.result or "ok", began, row.at, row.reason)

    # --- the live display -------------------------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Never higher or wider than the terminal: what does not fit would scroll, and leave traces."""
        room = console.size.height - FRAME
        steps = self._step_lines(max(3, min(len(self._steps), room - 4)))
        news = [Text(line) for line in self._told][-max(0, room - len(steps)) or len(self._told) :]
        for line in (*self._head(), Text(), *steps, Text(), *news):
            line.truncate(options.max_width, overflow="ellipsis")
            line.no_wrap = True
            yield line

    def _head(self) -> list[Text]:
        title = Text(self._name, style="bold")
        title.append(f"  {time.monotonic() - self._began:.0f} s  {self._doing}", style="not bold dim")
        if self._live is None:
            return [title]
        counts = Text(f"in flight {self._sent - self._ended}   ended {self._ended}   ")
        counts.append(f"lost {self._lost}", style="red" if self._lost else "")
        if self._ended:
            counts.append(f"   success {share((self._ended - self._lost) / self._ended)}")
        if (ready := self._live.observations.endpoints.ready) is not None:
            counts.append(f"   {plural(ready, 'ready endpoint')}")
        return [title, counts]

    def _step_lines(self, most: int) -> list[Text]:
        """The steps around the one that runs."""
        current = max(self._states, default=0)
        first = max(0, min(current - most // 2, len(self._steps) - most))
        return [self._step_line(index) for index in range(first, min(first + most, len(self._steps)))]

    def _step_line(self, index: int) -> Text:
        state, began, ended, reason = self._states.get(index, ("", 0.0, None, None))
        style = STYLES.get(state, "dim")
        took = seconds((self._now if ended is None else ended) - began) if state else ""
        line = Text(MARKS.get(state, " "), style=style)
        line.append(f"{took:>9}  ", style="not bold dim")
        line.append(self._steps[index], style="bold" if state == "started" else "" if state else "dim")
        if reason and state != "ok":
            line.append(f": {reason}", style=style)
        return line
