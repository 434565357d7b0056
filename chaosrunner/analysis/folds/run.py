"""The run itself: its steps, how it ended, what became of the undo journal, and the runner's own health."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from chaosrunner.timeline.rows import Journal, Prober, Run, Step


@dataclass
class StepState:
    started: Step
    ended: Step | None = None


class RunState:
    def __init__(self) -> None:
        self.events: list[Run] = []
        self.steps: list[StepState] = []
        self.journal: dict[str, Journal] = {}
        """Latest row of each entry."""
        self.lags = array("d")

    def feed_run(self, row: Run) -> None:
        self.events.append(row)

    def feed_step(self, row: Step) -> None:
        if row.event == "started":
            self.steps.append(StepState(row))
            return
        for state in reversed(self.steps):
            if state.started.index == row.index and state.ended is None:
                state.ended = row
                return
        self.steps.append(StepState(row, row))

    def feed_journal(self, row: Journal) -> None:
        self.journal[row.entry] = row

    def feed_prober(self, row: Prober) -> None:
        self.lags.append(row.loop_lag)

    @property
    def ended(self) -> bool:
        """Whether the recording has an end: a runner that dies, or still runs, leaves none."""
        return self.event("ended") is not None

    def event(self, name: str) -> Run | None:
        return next((row for row in self.events if row.event == name), None)
