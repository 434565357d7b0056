"""What a check needs before it says anything: a sample, an end of the recording; and what it says of a thin one."""

from __future__ import annotations

import pytest
from msgspec import structs

from chaosrunner.analysis import AnalysisContext, Facts
from chaosrunner.timeline import rows
from tests.analysis.tape import Tape, checked, context, facts, time


def settled() -> Tape:
    tape = Tape()
    for pod in ("a", "b"):
        tape.pod(0.0, pod, "LISTED", ready=True)
    tape.endpoints(0.0, "LISTED", a=True, b=True)
    return tape


def evicted(tape: Tape, *, back: bool = True) -> None:
    """`a` goes at 10 s; with `back`, `c` is in its place and ready at 11 s, and three streams on it show it warm."""
    tape.evict(10.0, "a")
    tape.pod(10.1, "a", deletion_time=time(40), deletion_grace=30.0)
    if back:
        tape.pod(10.5, "c", "ADDED", ready=True)
        tape.endpoints(11.0, b=True, c=True)
        for number, tokens in enumerate((10, 30, 20)):
            tape.request(12.0 + number, 12.5 + number, pod="c", tokens=tokens)


def verdicts(found: Facts) -> dict[str, tuple[str, str | None]]:
    return {name: (check.verdict, check.reason) for name, check in checked(found).items()}


def of_probe(name: str, *checks: str) -> AnalysisContext:
    return context(checks=tuple(structs.replace(check, probe=name) for check in context(*checks).checks))


# --- an empty sample ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "check",
    ["incomplete_200(after) == 0", "requests(after) == 0", "outcome(cut_stream, after) == 0", "p99(ttft, after) <= 2s",
     "success_rate(after) >= 99%"],
)  # fmt: skip
def test_a_phase_that_never_came_proves_nothing(check: str) -> None:
    tape = settled()
    for sent in (1.0, 2.0):
        tape.request(sent, sent + 1, pod="b")
    evicted(tape, back=False)
    tape.end(60.0)
    found = facts(tape, context(check, "incomplete_200(baseline) == 0"))
    assert list(verdicts(found).values()) == [("skipped", "phase after never came"), ("passed", None)]
    assert (found.verdict, found.exit_code) == ("inconclusive", 3)


def test_a_phase_without_requests_proves_nothing_of_them() -> None:
    tape = settled()
    evicted(tape)
    # Sent after the fault, but outside every rate.
    tape.request(11.0, 11.5, once=True, pod="b")
    tape.end(60.0)
    none = "no request in phase baseline"
    assert verdicts(
        facts(
            tape,
            context(
                "incomplete_200(baseline) == 0",
                "outcome(cut_stream, baseline) == 0",
                "success_rate(baseline) == 1",
                "p50(e2e, baseline) < 1s",
                "requests(baseline) == 0",
            ),
        )
    ) == {
        "incomplete_200(baseline) == 0": ("skipped", none),
        "outcome(cut_stream, baseline) == 0": ("skipped", none),
        "success_rate(baseline) == 1": ("skipped", none),
        "p50(e2e, baseline) < 1s": ("skipped", none),
        "requests(baseline) == 0": ("passed", None),  # how many there were is known
    }


def test_a_run_without_requests_proves_nothing_of_them() -> None:
    tape = settled()
    tape.request(1.0, 2.0, once=True)
    tape.request(1.0, 2.0, "cancelled", status=200)
    tape.end(60.0)
    found = facts(
        tape, context("incomplete_200 == 0", "outcome(aborted) == 0", "outcome(cancelled) == 1", "requests == 0")
    )
    assert list(verdicts(found).values()) == [
        ("skipped", "no request"), ("skipped", "no request"), ("passed", None), ("passed", None),
    ]  # fmt: skip


def test_a_probe_or_a_window_without_requests_says_so() -> None:
    tape = settled()
    tape.request(1.0, 2.0, "cut_stream", status=200)
    tape.end(60.0)
    assert verdicts(facts(tape, of_probe("batch", "incomplete_200 == 0", "goodput < 1")))["incomplete_200 == 0"] == (
        "skipped",
        "no request of probe batch",
    )
    found = facts(tape, context("success_rate[30s] > 0", "p99(ttft) < 1s"))
    assert [check.reason for check in found.checks] == [
        "no request ended in the last 30 s",
        "no success has a ttft",
    ]


# --- a thin sample ----------------------------------------------------------------------------------------------


def test_a_percentile_of_few_values_says_that_it_is_the_largest() -> None:
    # rakyll/hey#120, artilleryio/artillery#429
    tape = settled()
    tape.request(1.0, 2.0)
    tape.end(5.0)
    found = facts(tape, context("p99(ttft) <= 2s and success_rate == 1", "p99(ttft, baseline) <= 2s", "p90(tpot) < 1s"))
    assert [check.verdict for check in found.checks] == ["passed"] * 3
    assert [check.notes for check in found.checks] == [
        {"p99(ttft)": "n = 1: equals max, n<100"},
        {"p99(ttft, baseline)": "n = 1: equals max, n<100"},
        {"p90(tpot)": "n = 1: equals max, n<10"},
    ]
    assert "p99(ttft) = 0.1 (n = 1: equals max, n<100), success_rate = 1" in found.checks[0].text
    for number in range(99):
        tape.request(1.0, 2.0 + number / 1000)
    (enough, none) = facts(tape, context("p99(ttft) <= 2s", "p99(ttft, during) <= 2s")).checks
    assert (enough.notes, none.notes) == ({"p99(ttft)": "n = 100"}, {})


def test_what_replacements_and_pods_were_is_shown_by_rows() -> None:
    tape = settled()
    evicted(tape)
    tape.pod(50.0, "a", "DELETED", ready=False)
    tape.end(60.0)
    found = facts(tape, context("replacement.tokens == 30", "replacements == 1", "pods_ready == 2"))
    assert {check.verdict for check in found.checks} == {"passed"}
    of_c = [row.id for row in tape.rows if isinstance(row, rows.Pod) and row.name == "c"]
    of_b = [row.id for row in tape.rows if isinstance(row, rows.Pod) and row.name == "b"]
    largest = [row.id for row in tape.rows if isinstance(row, rows.Request) and row.tokens == 30]
    assert [check.evidence for check in found.checks] == [largest, of_c, [*of_b, *of_c]]


# --- a recording without an end -------------------------------------------------------------------------------


def crashed(*checks: str, back: bool = True) -> Facts:
    tape = settled()
    tape.request(1.0, 2.0, pod="a")
    tape.request(2.0, 3.0, "cut_stream", status=200, pod="b")
    tape.request(9.0, 12.0, pod="a", headers=9.1)
    evicted(tape, back=back)
    tape.request(20.0, 21.0, pod="b")
    return facts(tape, context(*checks))


@pytest.mark.parametrize(
    "check",
    ["endpoints_back", "ready_endpoints == 2", "pods_ready == 2", "restarts == 0", "outcome(aborted) == 0",
     "incomplete_200 <= 1", "zero_ready_seconds == 0", "evictions(blocked_by_budget) == 0", "loss_on_victim == 0",
     "replacements == 1", "evictions(accepted) == 2", 'alert("Slow") == "inactive"', "in_flight == 0"],
)  # fmt: skip
def test_what_only_the_end_tells_is_not_proven_by_a_recording_without_one(check: str) -> None:
    found = crashed(check)
    assert list(verdicts(found).values()) == [("skipped", "the recording has no end")]
    assert found.verdict == "inconclusive"


def test_what_a_recording_without_an_end_has_shown_stays_shown() -> None:
    found = crashed(
        "incomplete_200 == 0", "requests >= 5", "evictions(accepted) >= 1", "replacement.warm", "time_to_serve <= 5s",
        "success_rate >= 50%", "replacement.tokens >= 30", "requests(baseline) > 1",
    )  # fmt: skip
    assert [check.verdict for check in found.checks] == ["failed"] + ["passed"] * 7


def test_a_stage_that_a_recording_without_an_end_did_not_reach_may_still_come() -> None:
    found = crashed("replacement.created", "replacement.created == false", back=False)
    assert list(verdicts(found).values()) == [("skipped", "a has no replacement; the recording has no end")] * 2


def test_a_runner_that_died_during_an_abort_did_not_end_it() -> None:
    tape = settled()
    tape.request(1.0, 2.0)
    tape.add(rows.Run(at=5.0, event="aborting", reason="signal SIGTERM"))
    found = facts(tape, context("incomplete_200 == 0"))
    assert (found.run.state, found.run.reason) == ("crashed", "signal SIGTERM")
    assert (found.verdict, found.exit_code) == ("inconclusive", 3)
    assert found.reason.endswith("during an abort (signal SIGTERM)")
    tape.end(6.0)
    found = facts(tape, context("incomplete_200 == 0"))
    assert (found.run.state, found.verdict, found.checks[0].verdict) == ("aborted", "aborted", "passed")


def test_a_count_between_the_least_and_the_most_possible_is_not_excluded() -> None:
    tape = settled()
    for pod in ("a", None, None):
        tape.request(9.0, 12.0, pod=pod)
    evicted(tape, back=False)
    tape.end(20.0)
    found = facts(tape, context("exposed == 2", "exposed != 2", "exposed == 4", "2 == exposed"))
    assert [check.verdict for check in found.checks] == ["skipped", "skipped", "failed", "skipped"]
