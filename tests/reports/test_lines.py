"""Rows as lines, and which of them are news."""

from __future__ import annotations

from chaosrunner.reports.lines import News, describe
from chaosrunner.timeline import rows
from tests.analysis.captures import kubernetes
from tests.analysis.tape import Tape


def news(tape: Tape) -> list[str]:
    seen = News()
    return [describe(row) for row in tape.rows if seen.has(row)]


def test_the_first_list_is_no_news_and_a_repetition_neither() -> None:
    tape = Tape()
    tape.pod(1.0, "a", "LISTED", ready=True)
    tape.pod(2.0, "a", ready=True)
    tape.pod(3.0, "a", ready=False)
    tape.pod(4.0, "a", ready=False, node="n1")
    tape.pod(5.0, "b", "ADDED", ready=False)
    tape.pod(6.0, "a", "DELETED", ready=False)
    assert news(tape) == ["a: Running, Ready=False", "added b: Running, Ready=False", "deleted a: Running, Ready=False"]


def test_endpoints_and_alerts_are_news_when_they_change() -> None:
    tape = Tape()
    tape.endpoints(1.0, "LISTED", a=True, b=True)
    tape.endpoints(2.0, a=True, b=True)
    tape.endpoints(3.0, a=True, b=False)
    firing = [rows.Alert(name="Down", state="firing", labels={})]
    for at, row in ((4.0, firing), (5.0, firing), (6.0, [])):
        tape.add(rows.Alerts(at=at, ok=True, alerts=row))
    tape.add(rows.Alerts(at=7.0, ok=False, error="refused"))
    assert news(tape) == ["chat-x: a ready, b not ready", "Down firing", "none pending or firing"]


def test_requests_are_news_when_they_are_lost() -> None:
    tape = Tape()
    tape.request(1.0, 2.0)
    tape.request(1.0, 3.0, "cut_stream", status=200, pod="a", error="reset\nby peer")
    tape.request(1.0, 4.0, "http_error", status=400, once=True)
    assert news(tape) == ["chat-2: cut_stream, HTTP 200, on a, took 2.00 s, reset by peer"]


def test_every_kind_of_row_of_a_real_cluster_has_a_line() -> None:
    lines = [describe(row) for row in kubernetes()]
    assert lines
    assert all(line and "\n" not in line and "None" not in line for line in lines)
