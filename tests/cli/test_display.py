"""The live display: never higher or wider than the terminal; off a terminal, lines of news."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from chaosrunner.analysis import Live
from chaosrunner.cli.display import MOST_LOSSES, Display
from chaosrunner.playbook import load_drill
from chaosrunner.timeline import rows
from tests.analysis.tape import Tape, context

BOUND = load_drill("lab-evict-one-replica", {"baseline": "3s", "hold": "3s"})

LONG = "chat-" + "x" * 200


def drill() -> Tape:
    """A run in its `wait` step, with more news than any terminal has room for."""
    tape = Tape()
    tape.add(rows.Run(at=0.1, event="started"))
    tape.pod(0.2, LONG, "LISTED", ready=True)
    tape.endpoints(0.2, "LISTED", **{LONG.replace("-", "_"): True})
    for index, (step, begin, end) in enumerate([("baseline", 0.5, 3.6), ("evict", 3.6, 3.7), ("evict", 3.7, 3.75)]):
        tape.add(rows.Step(at=begin, index=index, step=step, name=step, event="started"))
        tape.add(rows.Step(at=end, index=index, step=step, name=step, event="ended", result="ok"))
    tape.add(rows.Step(at=3.8, index=3, step="wait", name="wait", event="started"))
    tape.evict(3.61, LONG)
    for number in range(MOST_LOSSES + 10):
        tape.request(1.0, 4.0 + number / 100, "aborted", status=200, pod=LONG, error="e" * 500)
    tape.request(1.0, 4.5)
    tape.add(rows.RequestSent(at=4.6, request="chat-99", probe="chat"))
    return tape


def followed(console: Console, tape: Tape) -> Display:
    display = Display(console, BOUND)
    live = Live(context())
    display.say("starting the lab")
    feed = display.follow(Path("timelines/x"), live)
    for row in tape.rows:
        live.feed(row)
        feed(row)
    return display


def shown(width: int, height: int, tape: Tape) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    display = followed(console, tape)
    console.print(display)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 12), (200, 60), (80, 10)])
def test_it_fits_into_the_terminal(width: int, height: int) -> None:
    lines = shown(width, height, drill())
    assert len(lines) < height
    assert max(map(len, lines)) <= width


def test_what_it_shows() -> None:
    lines = shown(100, 24, drill())
    assert lines[0].startswith("lab-evict-one-replica  0 s  running")
    assert (
        lines[1]
        == f"in flight 1   ended {MOST_LOSSES + 11}   lost {MOST_LOSSES + 10}   success 3.23 %   1 ready endpoint"
    )
    steps = lines[3:9]
    assert steps[0] == "✓   3.10 s  watch for 3 s until success_rate >= 0.99"
    assert steps[1].startswith("✓   100 ms  evict 1 of the candidates")
    assert steps[3].startswith("▶   800 ms  wait until replacement.warm")
    assert steps[4] == "            hold the load for 3 s"
    assert lines[-1].startswith("   4.29  request    chat-30: aborted, HTTP 200")
    assert not any("baseline: started" in line for line in lines)


def test_a_step_that_failed_says_why() -> None:
    tape = drill()
    tape.add(rows.Step(at=9.0, index=3, step="wait", name="wait", event="ended", result="failed", reason="not in 5 s"))
    assert any(
        line.startswith("✗   5.20 s  wait until") and line.endswith(": not in 5 s") for line in shown(120, 24, tape)
    )


def test_off_a_terminal_news_are_lines_and_losses_are_capped() -> None:
    console = Console(file=io.StringIO(), width=240, highlight=False, markup=False)
    followed(console, drill())
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[:2] == [
        "lab-evict-one-replica: starting the lab",
        "lab-evict-one-replica: recording to timelines/x",
    ]
    assert sum("aborted" in line for line in lines) == MOST_LOSSES
    assert sum("further losses are only counted" in line for line in lines) == 1
    assert any(line == "   3.60  step       baseline: ended, ok" for line in lines)
    assert "\x1b" not in console.file.getvalue()


def test_before_the_run_there_is_only_what_goes_on() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None)
    display = Display(console, BOUND)
    display.say("starting the lab: 2 of 3 replicas ready")
    console.print(display)
    assert isinstance(console.file, io.StringIO)
    first, *rest = console.file.getvalue().splitlines()
    assert first == "lab-evict-one-replica  0 s  starting the lab: 2 of 3 replicas ready"
    assert not any("in flight" in line for line in rest if "target" not in line)
