"""What the runner's own processes could do: whether they kept up, and what they could have held."""

from __future__ import annotations

from dataclasses import dataclass

from chaosrunner.analysis.folds.run import ProcessState, RunState

LATE = 0.1
"""Seconds by which a request may be sent late; later is told, and spoils the run where it is more than a few."""

ENOUGH = 0.5
"""CPU seconds of a process below which they say nothing about what a request costs."""


@dataclass(frozen=True)
class Work:
    """Figures as in `ProberFacts`."""

    core_share: float | None = None
    requests: float | None = None
    chunks: float | None = None


def work(run: RunState) -> Work:
    """What sending and reading cost. CPU time is that of the whole process, so what the main process does beside its
    probes lowers the figures: they are what it could have held as it was."""
    workers = {key: process for key, process in run.processes.items() if key[1] is not None}
    processes = list((workers or run.processes).values())
    shares = [share for process in processes if (share := _share(process)) is not None]
    return Work(
        core_share=max(shares, default=None),
        requests=_per_core(processes, "requests"),
        chunks=_per_core(processes, "chunks"),
    )


def _share(process: ProcessState) -> float | None:
    cpu, seconds = process.spent("cpu"), process.last.at - process.first.at
    return cpu / seconds if cpu is not None and seconds > 0 else None


def _per_core(processes: list[ProcessState], what: str) -> float | None:
    known = [
        (cpu, done)
        for process in processes
        if (cpu := process.spent("cpu")) is not None and (done := process.spent(what)) is not None
    ]
    cpu, done = sum(cpu for cpu, _ in known), sum(done for _, done in known)
    return done / cpu if cpu >= ENOUGH and done else None
