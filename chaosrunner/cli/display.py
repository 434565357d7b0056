"""What a person sees while a drill runs: a live display on a terminal, plain lines of news elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live as Screen
from rich.table import Table
from rich.text import Text

from chaosrunner.analysis import Live
from chaosrunner.playbook import BoundDrill
from chaosrunner.reports.format import seconds, share
from chaosrunner.reports.lines import describe, kind, notable
from chaosrunner.timeline import rows
from chaosrunner.timeline.outcomes import SUCCESSES
from chaosrunner.timeline.rows import Emit

NEWS = 8
"""Lines of news that the live display keeps."""

SPINNER = {"started": "▶", "ok": "✓", "failed": "✗", "inconclusive": "?", "skipped": "–", "aborted": "■"}
STYLE = {"ok": "green", "failed": "red", "inconclusive": "yellow", "aborted": "yellow", "started": "bold"}


class Display:
    """Follows one run. Counts what it shows from the rows themselves."""

    def __init__(self, console: Console, bound: BoundDrill) -> None:
        self._console = console
        self._bound = bound
        self._states: dict[int, tuple[str, float, float | None, str | None]] = {}
        self._sent = self._ended = self._lost = 0
        self._live: Live | None = None
        self._news: deque[Text] = deque(maxlen=NEWS)
        self._now = 0.0
        self._began = time.monotonic()
        self._screen: Screen | None = None

    def follow(self, folder: Path, live: Live) -> Emit:
        """The engine's hook: what is returned gets every row."""
        self._live = live
        self._began = time.monotonic()
        if not self._console.is_terminal:
            self._console.print(f"recording to {folder}", soft_wrap=True)
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
            self._screen.start()

    def _feed(self, row: rows.Row) -> None:
        self._now = row.at
        match row:
            case rows.RequestSent(once=False):
                self._sent += 1
            case rows.Request(once=False):
                self._ended += 1
                self._lost += row.outcome not in SUCCESSES
            case rows.Step():
                self._step(row)
        if notable(row):
            line = Text(f"{row.at:8.2f}  {kind(row):<8} {describe(row)}")
            self._news.append(line)
            if not self._console.is_terminal:
                self._console.print(line, soft_wrap=True)

    def _step(self, row: rows.Step) -> None:
        began = self._states[row.index][1] if row.index in self._states else row.at
        if row.event == "started":
            self._states[row.index] = ("started", row.at, None, None)
        else:
            self._states[row.index] = (row.result or "ok", began, row.at, row.reason)

    def __rich__(self) -> Group:
        head = Text(f"{self._bound.drill.metadata.name}", style="bold")
        head.append(f"  {time.monotonic() - self._began:5.0f} s  ", style="dim")
        head.append(f"in flight {self._sent - self._ended}, ended {self._ended}, ")
        head.append(f"lost {self._lost}", style="red" if self._lost else "")
        if self._ended:
            head.append(f", success {share((self._ended - self._lost) / self._ended)}")
        if self._live is not None and (ready := self._live.observations.endpoints.ready) is not None:
            head.append(f", {ready} ready endpoint{'s' if ready != 1 else ''}")
        steps = Table.grid(padding=(0, 2, 0, 0))
        for index, step in enumerate(self._bound.playbook.steps):
            state, began, ended, reason = self._states.get(index, ("", 0.0, None, None))
            took = "" if not state else seconds((ended if ended is not None else self._now) - began)
            steps.add_row(
                Text(SPINNER.get(state, " "), style=STYLE.get(state, "dim")),
                Text(step.title, style=STYLE.get(state, "dim") if state == "started" else ""),
                Text(took, style="dim", justify="right"),
                Text(reason or "", style="yellow"),
            )
        return Group(head, Text(), steps, Text(), *self._news)
