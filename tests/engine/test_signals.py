"""A signal that comes after the steps: it takes away neither the recording nor the report."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from chaosrunner.analysis import Facts, analyse
from chaosrunner.engine import Finished, run_drill
from chaosrunner.timeline.reader import Recording
from tests.engine import drills
from tests.engine.drills import BASELINE
from tests.engine.lab import Lab

pytestmark = pytest.mark.lab


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As the command has them in the foreground: a shell lets what it starts in the background ignore SIGINT."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_recording_is_closed_loses_nothing(
    number: signal.Signals, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Facts:
        os.kill(os.getpid(), number)
        return analyse(*arguments)

    monkeypatch.setattr("chaosrunner.engine.run.analyse", interrupted)
    before = signal.getsignal(number)
    ran = drills.run(drills.write(tmp_path, lab, [BASELINE]), lab, tmp_path, signals=True)
    assert ran.facts.verdict == "passed"
    assert Recording.open(ran.folder).manifest.ended is not None
    assert (ran.folder / "requests.parquet").exists()
    assert lab.leases() == []
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_says_nothing_was_changed_only_before_the_run(
    number: signal.Signals, begun: bool, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*arguments: Any) -> Finished:
        if begun:
            await run_drill(*arguments)
        os.kill(os.getpid(), number)  # with a run behind it: as while the lab is being ended
        await anyio.sleep(10)
        raise AssertionError("not interrupted")

    monkeypatch.setattr("chaosrunner.cli.running.run_drill", interrupted)
    drill = drills.write(tmp_path, lab, [BASELINE])
    arguments = ["--kubeconfig", lab.kubeconfig, "--timelines", str(tmp_path), "--yes"]
    code, _, said = drills.invoke("run", str(drill), *arguments)
    assert code == 4
    assert said.splitlines()[-1] == (
        "small: interrupted; see `chaosrunner report latest` and `chaosrunner recover`"
        if begun
        else "small: interrupted before it began; nothing was changed"
    )
