"""How much the service did, and how well the prober could time it."""

from __future__ import annotations

import pytest

from chaosrunner.analysis import AnalysisContext, Facts, Live
from chaosrunner.timeline import rows
from tests.analysis.tape import ANCHOR


def facts_of(*requests: rows.Request) -> Facts:
    live = Live(AnalysisContext(anchor=ANCHOR))
    for number, row in enumerate(requests, start=1):
        row.id = number
        live.feed(row)
    return live.facts()


def request(sent: float, end: float, outcome: str = "complete", **fields: object) -> rows.Request:
    given = {"tokens": 10, "headers": sent, "status": 200} | fields
    return rows.Request(at=end, request=f"chat-{sent}", probe="chat", outcome=outcome, sent=sent, **given)  # type: ignore[arg-type]


def test_rates_are_over_the_time_with_traffic() -> None:
    found = facts_of(
        request(10.0, 14.0), request(12.0, 18.0), request(18.0, 20.0, "aborted"), request(11.0, 30.0, once=True)
    ).throughput
    assert (found.seconds, found.requests, found.successes, found.tokens) == (10.0, 0.3, 0.2, 2.0)
    assert (found.in_flight_mean, found.in_flight_max) == (pytest.approx(1.2), 2)


def test_a_request_that_ends_as_the_next_begins_is_not_beside_it() -> None:
    assert facts_of(request(1.0, 2.0), request(2.0, 3.0)).throughput.in_flight_max == 1


def test_what_was_never_sent_was_not_in_flight() -> None:
    found = facts_of(
        request(0.0, 10.0), request(5.0, 5.0, "not_sent", headers=None, status=None, tokens=None)
    ).throughput
    assert (found.requests, found.in_flight_max) == (0.1, 1)


def test_tokens_are_not_known_where_one_success_does_not_tell_its_usage() -> None:
    assert facts_of(request(0.0, 1.0), request(1.0, 2.0, tokens=None)).throughput.tokens is None
    assert facts_of(request(0.0, 1.0), request(1.0, 2.0, "aborted", tokens=None)).throughput.tokens == 5.0


def test_without_requests_nothing_is_known() -> None:
    found = facts_of().throughput
    assert (found.seconds, found.requests, found.tokens, found.in_flight_mean, found.in_flight_max) == (
        None, None, None, None, 0,
    )  # fmt: skip


def test_the_prober_says_how_late_it_sent_and_how_well_it_timed() -> None:
    found = facts_of(
        request(1.0, 2.0, scheduled=0.998, exact=True, content_chunks=8, content_reads=8),
        request(2.0, 3.0, scheduled=2.0, exact=False, content_chunks=8, content_reads=4),
        request(2.5, 2.5, "not_sent", scheduled=2.5, headers=None, status=None, tokens=None),
    ).prober
    assert (found.send_lag_p99, found.send_lag_max) == (pytest.approx(0.002), pytest.approx(0.002))
    assert (found.exact_share, found.bounded_share) == (0.5, 0.25)


def test_a_closed_loop_has_no_schedule_to_be_late_against() -> None:
    found = facts_of(request(1.0, 2.0)).prober
    assert (found.send_lag_p99, found.send_lag_max, found.bounded_share) == (None, None, None)
