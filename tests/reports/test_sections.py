"""What reports say, held against facts that were analysed from recordings."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from chaosrunner.analysis import Facts, ProbeContext
from chaosrunner.reports.compare import in_words, side_by_side
from chaosrunner.reports.losses import losses
from chaosrunner.reports.sections import headline, sections, value
from chaosrunner.reports.terminal import render
from chaosrunner.timeline import rows
from tests.analysis.captures import real_drill
from tests.analysis.tape import Tape, context, facts, replay
from tests.reports.story import NASTY, NEW, OTHER, VICTIM, crowd, eviction, quiet


def printed(found: Facts, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    render(console, headline(found), sections(found))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line(text: str, begin: str) -> str:
    """The one line that begins so, its blanks squeezed."""
    found = [" ".join(line.split()) for line in text.splitlines() if " ".join(line.split()).startswith(begin)]
    assert len(found) == 1, (begin, found)
    return found[0]


def test_a_drill_that_lost_streams() -> None:
    text = printed(eviction())
    assert text.startswith("FAILED: loss_on_victim == 0; incomplete_200 == 0; success_rate >= 99.9%\n")
    assert line(text, "victim ") == "victim 2 streams in flight on it, 2 lost (100 %)"
    assert line(text, "incomplete 200") == "incomplete 200 2 streams"
    assert line(text, "success rate 9").startswith("success rate 90.48 % (19 of 21; 95 %:")
    assert line(text, "failed loss_on_victim == 0").startswith("failed loss_on_victim == 0 100 % #")
    assert line(text, "failed success_rate >= 99.9% 90.48 %")
    assert line(text, "passed time_to_serve").startswith("passed time_to_serve <= 60s 10.00 s #")
    assert line(text, f"on {VICTIM}; times are after its eviction at 10.00 s (#")
    assert re.search(r"chat-\d+ +aborted +200 +-0\.80 s +\+0\.10 s +#\d+ +finish_reason abort\n", text)
    assert line(text, "after the fault was sent") == f"after the fault was sent {NEW}"
    assert line(text, "in place of") == f"in place of {VICTIM}"
    assert line(text, "ready +5.00 s").startswith("ready +5.00 s #")
    assert line(text, "until it was warm") == "until it was warm 0 failed, 1 slow"
    assert line(text, "10.50 s evict (dry run)").startswith(f"10.50 s evict (dry run) {OTHER} blocked_by_budget 429 #")
    assert re.search(r"#\d+: Cannot evict pod \[chat\]", text)


def test_a_baseline_that_looks_bad_because_of_our_own_fault_says_so() -> None:
    text = printed(eviction())
    assert line(text, "sent in baseline") == "sent in baseline during after all"
    assert line(text, "complete ") == "complete 10* 1 8 19"
    assert line(text, "aborted 2") == "aborted 2* 0 0 2"
    assert line(text, "success rate 83") == "success rate 83.33 %* 100 % 100 % 90.48 %"
    assert line(text, "* 4 of") == "* 4 of the 12 requests sent in baseline ended after the fault; 2 of them lost"
    assert "ended after the fault; none of them lost" in " ".join(printed(eviction(lost=0)).split())
    assert " ended after the fault;" not in printed(quiet())


def test_a_check_of_a_percentile_tells_of_how_many_values() -> None:
    tape = Tape()
    for at in range(5):
        tape.request(at, at + 0.5)
    tape.end(6.0)
    text = line(printed(facts(tape, context("p99(ttft) <= 1s")), 200), "passed p99(ttft)")
    assert text.startswith("passed p99(ttft) <= 1s 100 ms (")
    assert "n<100" in text


def test_unfinished_requests_stand_beside_the_success_rate() -> None:
    tape = Tape()
    tape.request(1.0, 2.0)
    tape.add(rows.RequestSent(at=3.0, request="chat-9", probe="chat"))
    found = replay(tape.rows, context(), close=False)
    text = line(printed(found, 200), "success rate 100 % (1 of 1;")
    assert text.endswith("; 1 unfinished, not counted")


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    for found in (eviction(error=NASTY), quiet(), crowd(40)):
        for text in printed(found, width).splitlines():
            assert len(text) <= width
            assert text == text.rstrip()


def test_an_error_text_takes_one_line() -> None:
    text = printed(eviction(error=NASTY))
    rows = [row for row in text.splitlines() if " aborted " in row and "chat-" in row]
    assert len(rows) == 2
    assert all(row.endswith("…") for row in rows)


def test_what_is_not_known_is_a_dash_and_what_was_not_hit_proves_nothing() -> None:
    found = quiet()
    text = printed(found)
    assert "0 streams in flight on it, 0 lost: this proves nothing" in " ".join(text.split())
    assert line(text, "skipped loss_on_victim == 0").startswith("skipped loss_on_victim == 0 –;")
    assert "nan" not in text.lower()
    assert "nothing is known of pods from 5.50 s to the end (silent; #" in " ".join(text.split())
    assert f"no replacement for {VICTIM}" in " ".join(text.split())
    assert "success rate    –" in text


def test_many_losses_are_told_in_groups_and_a_few_singly() -> None:
    text = printed(crowd(40), 120)
    assert "20 × aborted, HTTP 200, on the victim, 100 ms to 119 ms after its eviction: finish_reason abort" in text
    assert "20 × connect_refused, on an unknown Pod" in text
    assert "(and 19 other texts)" in text
    assert "and 28 more; the JSON report lists them" in text


def test_a_loss_that_no_fault_preceded() -> None:
    tape = Tape()
    tape.request(1.0, 2.0, "cut_stream", status=200, error="reset")
    tape.end(5.0)
    found = facts(tape)
    assert losses(found) == ["1 × cut_stream, HTTP 200, on an unknown Pod: reset"]
    assert "on an unknown Pod; no fault preceded" in printed(found)


def test_values_have_the_unit_of_their_metric() -> None:
    assert value("success_rate(after)[30s]", 0.875) == "87.5 %"
    assert value("p99(ttft)", 0.25) == "250 ms"
    assert value("zero_ready_seconds", 0.0) == "0 s"
    assert value("evictions(accepted)", 2.0) == "2"
    assert value("goodput", 1.5) == "1.5/s"
    assert value("endpoints_back", True) == "true"
    assert value('alert("Down")', "firing") == "firing"
    assert value("time_to_serve", None) == "–"


def test_side_by_side() -> None:
    runs = [eviction(drill="rough"), eviction(lost=0, drill="graceful")]
    console = Console(file=io.StringIO(), width=80, highlight=False, markup=False)
    render(console, None, side_by_side(runs))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert line(text, "verdict") == "verdict failed passed"
    assert line(text, "lost on the victim") == "lost on the victim 2 of 2 (100 %) 0 of 2 (0 %)"
    assert line(text, "victim gone after") == "victim gone after 1.50 s 1.50 s"
    assert line(text, "failed checks") == "failed checks loss_on_victim == 0"
    assert "Lost in rough\n  2 × aborted, HTTP 200, on the victim, 100 ms after its eviction" in text
    assert "Lost in graceful" not in text
    assert in_words(runs[0]).startswith(
        "lost 2 of 2 streams on the victim, 19 of 21 requests succeeded (loss_on_victim"
    )
    assert in_words(runs[1]) == (
        "lost none of 2 streams on the victim, 21 of 21 requests succeeded (all 4 checks passed)"
    )


def test_more_runs_than_columns_become_rows() -> None:
    found = eviction()
    table = side_by_side([found] * 4)[0].parts[0]
    assert [row[0] for row in table.rows] == ["chat-evict"] * 4  # type: ignore[union-attr]


def test_a_drill_on_real_parts() -> None:
    data, ordered, known = real_drill()
    settings = context(
        "incomplete_200 == 0",
        anchor=data["unix0"],
        service="vllm",
        candidates=tuple(known),
        probes=(ProbeContext(name="drill", pod_header="x-pod", concurrency=4),),
    )
    found = replay(ordered, settings)
    text = printed(found)
    assert line(text, "incomplete 200") == "incomplete 200 1 stream"
    assert line(text, "success rate 99.7 % (").startswith("success rate 99.7 % (332 of 333;")
    assert line(text, "failed incomplete_200 == 0").startswith("failed incomplete_200 == 0 1 #")
    (loss,) = losses(found)
    assert loss.startswith("1 × error_in_stream, HTTP 200, on the victim, ")
