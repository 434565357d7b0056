"""The guardian: a process beside each run that puts back what the run changed when the run itself cannot.

It is a session of its own, so that neither a closed terminal nor a SIGKILL of the runner's process group ends it. Its
standard input is a pipe that the runner alone holds: one line of JSON (`Watch`), then single bytes (`ALIVE` to
`ENDED`). An end of file without `ENDED` is the runner's death, whatever it died of; on Linux a pidfd (pidfd_open(2))
tells of it too, should a child of the runner hold the pipe.

Until it is needed it imports the standard library only and sleeps in poll(2). It ends a runner that is beyond the
drill's deadline and does not end by itself: its event loop may be busy, or the process stopped.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY = b"watching\n"
"""The guardian's only line on its standard output."""

ALIVE = b"."
"""Written by the runner's event loop each second."""
ENDING = b"e"
"""The steps are over, the runner puts back what they changed."""
UNDONE = b"u"
"""The runner is through with that: what follows may take its time."""
ENDED = b"q"
"""The run has ended, and the guardian may go."""

SILENCE = 5.0
"""Seconds without `ALIVE` after which the event loop counts as stuck, once the deadline has passed."""
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
ENDING_LIMIT = 150.0
"""Seconds that a runner whose event loop is alive may take from the deadline, or from `ENDING`, until `UNDONE`; more
than its own undo takes at most after the deadline."""

LEAST = 60.0
"""Seconds for which the guardian tries at least to undo, also where the drill's deadline is near or has passed."""

REHEARSAL = 15.0
"""Seconds for which it tries on a lab, which may have ended with the run."""

LONGEST_WAIT = 86400.0
"""Seconds; poll(2) takes milliseconds as an int."""

NAME = "guardian.jsonl"
"""File in the recording's folder with what the guardian did; absent where it had nothing to do."""


@dataclass(frozen=True)
class Watch:
    """What the guardian is told. Holds references to credentials only, as the journal does."""

    pid: int
    """The runner."""
    journal: str
    run: str
    deadline: float
    """Seconds from now until the drill's deadline."""
    undo: bool
    """False where the cluster goes with the runner, so that nothing is left to undo."""
    stays: bool
    """Whether the cluster is sure to outlive the run, and an undo worth trying until the deadline."""
    connection: dict[str, Any]
    """A journal's `Connection`."""
    request_timeout: float
    lease: str
    """Name of the Lease on the target, in the connection's namespace."""
    silence: float = SILENCE
    grace: float = GRACE
    ending: float = ENDING_LIMIT
    least: float = LEAST


BY_HAND = "undo-by-hand.txt"
"""File in the recording's folder with the commands for what the guardian could not undo."""


class Notes:
    """Writes what the guardian does to the recording's folder, each line at once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "wall": time.time(), "pid": os.getpid(), **fields})
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:  # a full disk keeps nothing from undo
            file.write(line + "\n")


class Runner:
    """The process that is watched; never mistaken for a later one with its id."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.file: int | None = None
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self.file = os.pidfd_open(pid)

    def signal(self, number: signal.Signals) -> None:
        """Elsewhere than on Linux the runner is our parent as long as it lives, so the id is its own."""
        with suppress(ProcessLookupError):
            if self.file is not None:
                signal.pidfd_send_signal(self.file, number)
            elif os.getppid() == self.pid:
                os.kill(self.pid, number)


def watch(told: Watch, runner: Runner, notes: Notes, pipe: int = 0) -> str | None:
    """Waits. Why the guardian is needed; None where the run ended by itself."""
    now = time.monotonic()
    deadline, heard, limit, terminated = now + told.deadline, now, now + told.deadline + told.silence, None
    ending = False
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if runner.file is not None:
        poll.register(runner.file, select.POLLIN)
    while True:
        wait = None if limit == math.inf else max(0.0, limit - time.monotonic())
        ready = {file for file, _ in poll.poll(None if wait is None else math.ceil(1000 * min(wait, LONGEST_WAIT)))}
        now = time.monotonic()
        if ready:
            said = os.read(pipe, 65536) if pipe in ready else b""
            if ENDED in said:
                return None
            if not said:  # an end of file, or the pidfd alone
                return "the runner died" if terminated is None else "the runner was ended"
            heard = now if ALIVE in said else heard
            if ENDING in said:
                ending, limit, terminated = True, max(now, deadline) + told.ending, None
            if UNDONE in said:
                limit = math.inf
        if now < limit:
            continue
        if terminated is not None:
            notes.write("killed")
            runner.signal(signal.SIGKILL)
            limit = math.inf  # its death follows, and is seen
        elif not ending and now < deadline + told.ending and now - heard < told.silence:
            limit = min(heard + told.silence, deadline + told.ending)
        else:
            silent = now - heard
            stuck = f"no sign of life for {silent:.0f} s" if silent >= told.silence else "and it does not end"
            notes.write("terminated", reason=f"the deadline of the drill passed, {stuck}")
            runner.signal(signal.SIGTERM)
            terminated, limit = now, now + told.grace


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for everybody on a terminal or at a shutdown; we end with the run
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return  # the runner died before it could change anything
        line += byte
    told = Watch(**json.loads(line))
    runner = Runner(told.pid)
    notes = Notes(Path(told.journal).parent)
    began = time.monotonic()
    with suppress(OSError):  # a runner that is dead by now reads nothing
        os.write(1, READY)
    reason = watch(told, runner, notes)
    if reason is None:
        return
    notes.write("took_over", reason=reason)
    if told.undo:
        from chaosrunner.journal.takeover import take_over

        left = told.deadline - (time.monotonic() - began)
        take_over(told, notes, patience=max(told.least, left) if told.stays else REHEARSAL)


if __name__ == "__main__":
    main()
