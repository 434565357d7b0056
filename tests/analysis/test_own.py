"""The runner about itself: what it could not do is never blamed on the service, and it says what it could have held."""

from __future__ import annotations

from typing import Any

import pytest

from chaosrunner.analysis import AnalysisContext, Facts, Live
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Row
from tests.analysis.tape import ANCHOR


def facts_of(*given: Row) -> Facts:
    live = Live(AnalysisContext(anchor=ANCHOR))
    for number, row in enumerate([*given, rows.Run(at=1000.0, event="ended")], start=1):
        row.id = number
        live.feed(row)
    return live.facts()


def sent(count: int, *, late: float = 0.0, first: int = 0, **fields: Any) -> list[Row]:
    """So many scheduled requests, each a second after the one before."""
    given = {"outcome": "complete", "headers": 1.0, "status": 200} | fields
    return [
        rows.Request(at=n + 2.0, request=f"chat-{n}", probe="chat", sent=n + late, scheduled=float(n), **given)
        for n in range(first, first + count)
    ]


def health(count: int, *, first: float = 0.0, **fields: Any) -> list[Row]:
    return [rows.Prober(at=first + n, loop_lag=0.01, **fields) for n in range(count)]


def severity(facts: Facts, code: str) -> str | None:
    return next((finding.severity for finding in facts.findings if finding.code == code), None)


def text(facts: Facts, code: str) -> str:
    return next(finding.text for finding in facts.findings if finding.code == code)


def test_a_calm_runner_says_nothing() -> None:
    found = facts_of(*sent(200, late=0.0002), *health(200, open_files=50, file_limit=1024, cpu=1.0))
    assert not found.findings
    assert found.verdict == "passed"
    assert (found.prober.late_sends, found.prober.late_share) == (0, 0.0)
    assert found.prober.send_lag_p99 == pytest.approx(0.0002)


@pytest.mark.parametrize(("late", "expected"), [(1, "warning"), (2, "warning"), (3, "inconclusive")])
def test_more_than_one_late_in_a_hundred_spoils_the_run(late: int, expected: str) -> None:
    found = facts_of(*sent(200 - late), *sent(late, late=0.5, first=200 - late))
    assert severity(found, "prober_late") == expected
    assert (found.verdict == "inconclusive") == (expected == "inconclusive")
    assert found.prober.late_share == late / 200


def test_one_late_send_of_few_spoils_nothing() -> None:
    assert severity(facts_of(*sent(20), *sent(1, late=0.5, first=20)), "prober_late") == "warning"
    assert severity(facts_of(*sent(20), *sent(2, late=0.5, first=20)), "prober_late") == "inconclusive"


def test_what_our_lateness_dropped_counts_as_late() -> None:
    found = facts_of(*sent(97), *sent(3, first=97, outcome="prober_fault", headers=None, status=None))
    assert (found.prober.late_sends, found.prober.faults) == (3, 3)
    assert found.success_rate["all"].total == 97
    assert found.verdict == "inconclusive"


def test_what_the_cap_forbade_counts_against_the_service() -> None:
    found = facts_of(*sent(90), *sent(10, first=90, outcome="not_sent", headers=None, status=None))
    rate = found.success_rate["all"]
    assert (rate.successes, rate.total) == (90, 100)
    load = found.scheduled["chat"]
    assert (load.planned, load.not_sent, len(load.evidence)) == (100, 10, 10)
    assert severity(found, "in_flight_cap") == "warning"
    assert "10 of 100 planned requests of chat (10.0%)" in text(found, "in_flight_cap")
    assert found.prober.late_sends == 0


def test_latencies_count_from_the_schedule() -> None:
    """No coordinated omission: a request that had to wait for us, or for its turn, took as long as its user waited."""
    scheduled = facts_of(*sent(1, late=0.5, first_token=0.75, first_answer=0.75)).latency
    assert (scheduled["ttft"]["all"].max, scheduled["e2e"]["all"].max) == (0.75, 2.0)
    closed = rows.Request(
        at=2.0, request="chat-1", probe="chat", sent=0.5, outcome="complete", first_token=0.75, status=200
    )
    found = facts_of(closed)
    assert (found.latency["ttft"]["all"].max, found.latency["e2e"]["all"].max) == (0.25, 1.5)
    assert found.scheduled == {}
    assert found.prober.late_share is None


@pytest.mark.parametrize(
    ("lag", "exact", "expected"),
    [
        (0.2, True, None),
        (0.2, False, None),
        (0.5, True, None),
        (0.5, False, "inconclusive"),
        (1.5, True, "inconclusive"),
    ],
)
def test_a_late_loop_spoils_times_that_are_its_own_sooner(lag: float, exact: bool, expected: str | None) -> None:
    found = facts_of(*sent(100, exact=exact), *(rows.Prober(at=float(n), loop_lag=lag) for n in range(100)))
    assert severity(found, "prober_lag") == expected


def test_a_machine_may_stand_still_once() -> None:
    lags = [5.0, *[0.01] * 300]
    for late, expected in ((1, None), (3, None), (4, "inconclusive")):
        given = lags[:1] * late + lags[late:]
        found = facts_of(*sent(50), *(rows.Prober(at=float(n), loop_lag=lag) for n, lag in enumerate(given)))
        assert severity(found, "prober_lag") == expected


def test_it_says_what_it_could_have_held() -> None:
    busy = [
        rows.Prober(at=10.0, loop_lag=2.0, cpu=1.0, requests=100, chunks=10_000),
        rows.Prober(at=110.0, loop_lag=2.0, cpu=96.0, requests=575, chunks=105_000),
    ]
    found = facts_of(*sent(50), *busy)
    assert found.prober.core_share == 0.95
    assert (found.prober.requests_per_core, found.prober.chunks_per_core) == (5.0, 1000.0)
    assert text(found, "prober_lag") == (
        "the runner's event loop was late by more than 0.25 s in 2 of 2 seconds; it used 95% of a core, and by what "
        "they cost here a core holds 5 requests a second or 1,000 chunks a second"
    )
    (finding,) = (finding for finding in found.findings if finding.code == "prober_lag")
    assert finding.advice == "lower the load, or give the probe more workers"


def test_an_idle_runner_that_is_late_has_a_busy_machine() -> None:
    found = facts_of(*sent(50), *(rows.Prober(at=10.0 * n, loop_lag=2.0, cpu=0.1 * n) for n in range(9)))
    (finding,) = (finding for finding in found.findings if finding.code == "prober_lag")
    assert finding.advice == "run chaosrunner on a calmer machine, or lower the load"
    assert found.prober.chunks_per_core is None


def test_workers_are_what_sends() -> None:
    """The busiest tells how near the limit is; all together tell what a request costs."""
    given = [
        rows.Prober(at=0.0, loop_lag=0.0, cpu=0.0, requests=0, chunks=0),
        rows.Prober(at=10.0, loop_lag=0.0, cpu=9.9, requests=0, chunks=0),
    ]
    for worker, cpu in ((1, 2.0), (2, 6.0)):
        given += [
            rows.Prober(at=0.0, probe="chat", worker=worker, loop_lag=0.0, cpu=0.0, requests=0, chunks=0),
            rows.Prober(at=10.0, probe="chat", worker=worker, loop_lag=0.0, cpu=cpu, requests=20, chunks=4000),
        ]
    found = facts_of(*given).prober
    assert (found.core_share, found.requests_per_core, found.chunks_per_core) == (0.6, 5.0, 1000.0)


def test_descriptors_that_run_short_are_told() -> None:
    found = facts_of(
        rows.Prober(at=1.0, loop_lag=0.0, open_files=500, file_limit=1024),
        rows.Prober(at=2.0, loop_lag=0.0, open_files=1000, file_limit=1024),
        rows.Prober(at=3.0, loop_lag=0.0, open_files=100, file_limit=1024),
    )
    (finding,) = found.findings
    assert (finding.code, finding.severity, finding.evidence) == ("prober_files", "warning", [2])
    assert finding.text == "98% of the file descriptors that the runner may have were in use"
