"""How a guardian judges a runner, by its pipe and its process; with limits of tenths of seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaosrunner.journal.guardian import ALIVE, ENDED, ENDING, UNDONE, Notes, Runner, Watch, watch

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


@dataclass
class Watched:
    """A runner that only sleeps, and the end of the pipe that it would hold."""

    process: subprocess.Popen[str]
    pipe: int
    told: Watch
    notes: Path
    read: int

    def judge(self) -> str | None:
        return watch(self.told, Runner(self.process.pid), Notes(self.notes), self.read)

    def later(self, seconds: float, what: bytes) -> None:
        threading.Timer(seconds, os.write, (self.pipe, what)).start()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        told = Watch(
            pid=process.pid,
            journal=str(tmp_path / "journal.jsonl"),
            run="r",
            deadline=0.2,
            undo=True,
            stays=True,
            connection={},
            request_timeout=1.0,
            lease="l",
            silence=0.2,
            grace=0.2,
            ending=0.4,
        )
        yield Watched(process, write, told, tmp_path, read)
        process.kill()
    os.close(read)
    os.close(write)


def said(folder: Path) -> str:
    file = folder / "guardian.jsonl"
    return file.read_text() if file.exists() else ""


def test_a_run_that_has_ended_needs_nobody(watched: Watched) -> None:
    os.write(watched.pipe, ALIVE + ENDING + UNDONE + ENDED)
    assert watched.judge() is None
    assert watched.process.poll() is None


def test_a_death_is_seen_though_a_child_still_holds_the_pipe(watched: Watched) -> None:
    watched.process.kill()
    assert watched.judge() == "the runner died"


def test_a_runner_that_is_silent_at_the_deadline_is_ended(watched: Watched) -> None:
    began = time.monotonic()
    assert watched.judge() == "the runner was ended"
    assert watched.process.wait() == -signal.SIGKILL  # it ignores SIGTERM
    assert 0.6 <= time.monotonic() - began < 3
    assert [line.split('"')[3] for line in said(watched.notes).splitlines()] == ["terminated", "killed"]


def test_a_runner_that_puts_back_in_time_may_take_its_time_afterwards(watched: Watched) -> None:
    watched.later(0.1, ENDING)
    watched.later(0.4, UNDONE)
    watched.later(1.2, ENDED)  # long after every limit
    assert watched.judge() is None
    assert said(watched.notes) == ""


def test_a_runner_that_lives_but_does_not_end_is_ended_later(watched: Watched) -> None:
    for tenth in range(20):
        watched.later(tenth / 10, ALIVE)
    began = time.monotonic()
    assert watched.judge() == "the runner was ended"
    assert time.monotonic() - began >= 0.8  # deadline, the limit for its ending, grace
    assert "it does not end" in said(watched.notes)
    time.sleep(2.0 - (time.monotonic() - began))  # the last sign of life


def test_a_runner_that_wakes_up_at_sigterm_is_left_to_undo_by_itself(watched: Watched) -> None:
    watched.later(0.5, ENDING)  # terminated at 0.4
    watched.later(0.7, UNDONE)
    watched.later(1.0, ENDED)
    assert watched.judge() is None
    assert watched.process.poll() is None
