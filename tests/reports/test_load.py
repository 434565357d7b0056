"""The report of a probe that ran alone."""

from __future__ import annotations

from typing import Any

from chaosrunner.analysis import AnalysisContext, CheckContext, Facts, Live, ProbeContext, Slo
from chaosrunner.playbook.expressions import parse
from chaosrunner.reports.document import Item, Table, text
from chaosrunner.reports.load import load_headline, load_sections
from chaosrunner.timeline import rows

ANCHOR = 1_795_971_600.0


def facts_of(*requests: rows.Request, check: str | None = None, slo: dict[str, float] | None = None) -> Facts:
    probe = ProbeContext(name="probe", slo=Slo(**(slo or {})))
    checks = (CheckContext(expression=parse(check)),) if check else ()
    live = Live(AnalysisContext(anchor=ANCHOR, probes=(probe,), checks=checks))
    ending: list[rows.Row] = [*requests, rows.Run(at=100.0, event="ended")]
    for number, row in enumerate(ending, start=1):
        row.id = number
        live.feed(row)
    return live.facts()


def request(sent: float, end: float, outcome: str = "complete", **fields: Any) -> rows.Request:
    given: dict[str, Any] = {"status": 200, "headers": sent, "first_token": sent + 0.1, "exact": True} | fields
    return rows.Request(at=end, request=f"probe-{sent:g}", probe="probe", outcome=outcome, sent=sent, **given)


def shown(facts: Facts, **options: Any) -> dict[str, str]:
    """Titles of sections with all their text."""
    found = {}
    for section in load_sections(facts, "http://x", "4 users", **options):
        lines = []
        for part in section.parts:
            match part:
                case Item():
                    lines.append(f"{part.label}: {part.value.text}")
                case Table():
                    lines += [" | ".join(map(text, row)) for row in part.rows]
                case _:
                    lines.append(part.text)
        found[section.title] = "\n".join(lines)
    return found


def test_losses_are_told_by_what_they_were_and_by_row() -> None:
    refused = request(3.0, 3.001, "connect_refused", status=None, headers=None, first_token=None, error="ECONNREFUSED")
    facts = facts_of(request(1.0, 2.0), refused, request(4.0, 4.5, "aborted", error="finish_reason abort"))
    told = shown(facts)
    assert "complete | 1 | 33.33 %" in told["Requests to http://x"]
    assert (
        "1 × aborted, HTTP 200: finish_reason abort\n1 × connect_refused: ECONNREFUSED" in told["Requests to http://x"]
    )
    assert "probe-3 | connect_refused | – | 3.00 s | 1.00 ms | #2 | ECONNREFUSED" in told["Lost requests"]


def test_without_a_recording_no_row_is_named() -> None:
    facts = facts_of(request(1.0, 2.0, "aborted"), check="success_rate == 1")
    told = shown(facts, recorded=False)
    assert "#" not in "".join(told.values())
    assert "Lost requests" not in told
    assert "#1" in shown(facts)["Checks"]


def test_a_figure_that_is_not_known_is_left_out() -> None:
    told = shown(facts_of(request(1.0, 2.0)))
    assert "tokens" not in told["Throughput"]
    assert "goodput" not in told["Throughput"]
    assert "TPOT" not in told["Latency of successful requests"]


def test_goodput_is_told_where_an_slo_says_what_is_good() -> None:
    told = shown(facts_of(request(1.0, 2.0), request(2.0, 3.0, first_token=2.9), slo={"ttft": 0.5}))
    assert "goodput: 0.5 a second inside the SLO: 50 % (1 of 2;" in told["Throughput"]


def test_the_prober_tells_of_its_own_faults_and_times() -> None:
    told = shown(
        facts_of(
            request(1.0, 2.0, scheduled=0.9998, content_chunks=4, content_reads=3),
            request(2.0, 3.0, "prober_fault", exact=False, scheduled=2.0),
        )
    )["Prober"]
    assert "sending: late by 200 µs at p99, 200 µs at most" in told
    assert "50 % of the answers timed by the kernel; 25 % of the chunks came with a later one" in told
    assert "own faults: 1 request, in no rate" in told


def test_no_verdict_is_given_where_nothing_was_asked() -> None:
    assert load_headline(facts_of(request(1.0, 2.0, "aborted"))) is None
    failed = load_headline(facts_of(request(1.0, 2.0, "aborted"), check="success_rate == 1"))
    assert failed is not None
    assert failed.text == "FAILED: success_rate == 1"


def test_nothing_that_ended_is_said_to_be_nothing() -> None:
    told = shown(facts_of())
    assert "none ended" in told["Requests to http://x"]
    assert "Throughput" not in told
