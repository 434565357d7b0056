"""The run itself: its steps, how it ended, what became of the undo journal, and the runner's own health."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from chaosrunner.timeline.rows import Effect, Journal, Prober, Run, Step, Worker


@dataclass
class ProcessState:
    """One of the runner's processes, by its `prober` rows."""

    first: Prober
    last: Prober

    def spent(self, name: str) -> float | None:
        """By how much `cpu`, `requests` or `chunks` grew since its first row; None where rows do not tell."""
        before, after = getattr(self.first, name), getattr(self.last, name)
        return None if before is None or after is None else after - before


@dataclass
class StepState:
    started: Step
    ended: Step | None = None


def files_share(row: Prober) -> float:
    """Descriptors in use of those allowed; 0 where that is not known."""
    return row.open_files / row.file_limit if row.open_files and row.file_limit else 0.0


class RunState:
    def __init__(self) -> None:
        self.events: list[Run] = []
        self.steps: list[StepState] = []
        self.processes: dict[tuple[str | None, int | None], ProcessState] = {}
        """By probe and worker; the main process under None."""
        self.fullest: Prober | None = None
        """The row with the largest share of descriptors in use."""
        self.journal: dict[str, Journal] = {}
        """Latest row of each entry."""
        self.effects: dict[str, list[Effect]] = {}
        """What was seen of each fault that lasts, by its entry, or its target."""
        self.lags = array("d")
        self.died: list[Worker] = []

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

    def feed_effect(self, row: Effect) -> None:
        self.effects.setdefault(row.entry or f"{row.fault} {row.target.uid or row.target.name}", []).append(row)

    def feed_prober(self, row: Prober) -> None:
        self.lags.append(row.loop_lag)
        process = self.processes.setdefault((row.probe, row.worker), ProcessState(row, row))
        process.last = row
        if files_share(row) > (0.0 if self.fullest is None else files_share(self.fullest)):
            self.fullest = row

    def feed_worker(self, row: Worker) -> None:
        if row.event == "died":
            self.died.append(row)

    @property
    def ended(self) -> bool:
        """Whether the recording has an end: a runner that dies, or still runs, leaves none."""
        return self.event("ended") is not None

    def event(self, name: str) -> Run | None:
        return next((row for row in self.events if row.event == name), None)
