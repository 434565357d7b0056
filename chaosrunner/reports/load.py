"""What a probe that ran alone says, as a load test does: outcomes, latencies, rates, and how far it can be trusted."""

from __future__ import annotations

from msgspec.structs import replace

from chaosrunner.analysis.facts import ALL, Facts
from chaosrunner.reports.document import STYLES, Cell, Section, Table
from chaosrunner.reports.format import UNKNOWN, estimate, fine, instant, number, one_line, plural, share
from chaosrunner.reports.losses import losses
from chaosrunner.reports.sections import MOST_LISTED, checks_section, findings_section, headline
from chaosrunner.timeline.outcomes import SUCCESSES

NAMES = {
    "ttft": "TTFT",
    "ttft_answer": "TTFT answer",
    "tpot": "TPOT",
    "chunk_gap": "chunk gap",
    "e2e": "E2E",
}
"""Metrics in the order of the table."""

PERCENTILES = ("p50", "p90", "p95", "p99")


def load_headline(facts: Facts) -> Cell | None:
    """The verdict in one line, where something was asked or something is wrong with the run itself."""
    return headline(facts) if facts.checks or facts.verdict != "passed" else None


def load_sections(facts: Facts, url: str, load: str, *, recorded: bool = True) -> list[Section]:
    """Everything, most important first; sections without news are left out.

    recorded: whether there is a recording, whose rows can be named.
    """
    if not recorded:
        facts = _without_rows(facts)
    made = [
        _requests(facts, url, load),
        _latency(facts),
        _throughput(facts),
        checks_section(facts),
        findings_section(facts),
        _lost(facts) if recorded else Section(""),
        _prober(facts),
    ]
    return [section for section in made if section.parts]


def _without_rows(facts: Facts) -> Facts:
    """The facts without the ids of rows that nobody kept."""
    return replace(
        facts,
        checks=[replace(check, evidence=[]) for check in facts.checks],
        findings=[replace(finding, evidence=[]) for finding in facts.findings],
    )


def _requests(facts: Facts, url: str, load: str) -> Section:
    section = Section(f"Requests to {url}")
    counts = facts.outcomes.get(ALL, {})
    total = sum(counts.values())
    section.item("load", load)
    section.item("success rate", estimate(facts.success_rate[ALL]))
    incomplete = facts.incomplete_200[ALL]
    section.item("incomplete 200", plural(incomplete, "stream"), "bad" if incomplete else "plain")
    names = sorted(counts, key=lambda name: (name not in SUCCESSES, -counts[name]))
    rows = [
        (Cell(name, "good" if name in SUCCESSES else "bad"), str(counts[name]), share(counts[name] / total))
        for name in names
    ]
    if rows:
        section.table(Table(("outcome", "requests", "share"), rows, right=frozenset({1, 2})))
    for line in losses(facts, alone=True):
        section.line(line, "bad")
    if not total:
        section.line("none ended", "warn")
    return section


def _lost(facts: Facts) -> Section:
    section = Section("Lost requests")
    rows = [
        (
            lost.request,
            Cell(lost.outcome, "bad"),
            str(lost.status or UNKNOWN),
            instant(lost.sent),
            fine(lost.ended - lost.sent),
            f"#{lost.row}",
            one_line(lost.error),
        )
        for lost in facts.lost_requests[:MOST_LISTED]
    ]
    if rows:
        columns = ("request", "outcome", "HTTP", "sent", "took", "row", "error")
        section.table(Table(columns, rows, right=frozenset({3, 4}), cut=frozenset({6})))
    if (more := len(facts.lost_requests) + facts.lost_omitted - len(rows)) > 0:
        section.line(f"and {more} more; the JSON report lists them", "dim")
    return section


def _latency(facts: Facts) -> Section:
    section = Section("Latency of successful requests")
    rows: list[list[Cell | str]] = []
    few = False
    for metric, name in NAMES.items():
        figures = facts.latency.get(metric, {}).get(ALL)
        if figures is None or not figures.n:
            continue
        if metric == "ttft_answer" and figures == facts.latency["ttft"][ALL]:
            continue  # nothing but answers came
        marks = ["*" if percentile in figures.flags else "" for percentile in PERCENTILES]
        few = few or any(marks)
        values = [fine(getattr(figures, name)) + mark for name, mark in zip(PERCENTILES, marks, strict=True)]
        rows.append([name, str(figures.n), *values, fine(figures.max)])
    if rows:
        section.table(Table(("", "n", *PERCENTILES, "max"), rows, right=frozenset(range(1, 7))))
    if few:
        section.line("* too few values for this percentile: it is the maximum", "dim")
    return section


def _throughput(facts: Facts) -> Section:
    section = Section("Throughput")
    found = facts.throughput
    if found.seconds is None:
        return section

    def rate(value: float | None, what: str) -> str:
        return UNKNOWN if value is None else f"{number(float(f'{value:.4g}'))} {what}"

    section.item("requests", f"{rate(found.requests, 'a second')} over {fine(found.seconds)}")
    section.item("successes", rate(found.successes, "a second"))
    if found.tokens is not None:
        section.item("tokens", rate(found.tokens, "a second"))
    section.item("in flight", f"{rate(found.in_flight_mean, 'on average')}, {found.in_flight_max} at most")
    if (good := facts.good_share.get(ALL)) is not None:
        section.item("goodput", f"{rate(facts.goodput.get(ALL), 'a second')} inside the SLO: {estimate(good)}")
    return section


def _prober(facts: Facts) -> Section:
    """How far the figures can be trusted."""
    section, found = Section("Prober"), facts.prober
    if found.lag_max is not None:
        section.item("event loop", f"late by {fine(found.lag_p99)} at p99, {fine(found.lag_max)} at most")
    if found.send_lag_max is not None:
        section.item("sending", f"late by {fine(found.send_lag_p99)} at p99, {fine(found.send_lag_max)} at most")
    if found.core_share is not None:
        text = f"{share(found.core_share)} of a core"
        if found.requests_per_core is not None:
            text += f"; a whole one could do {number(float(f'{found.requests_per_core:.2g}'))} such requests a second"
        section.item("CPU", text)
    if found.exact_share is not None:
        text = f"{share(found.exact_share)} of the answers timed by the kernel"
        if found.bounded_share:
            text += f"; {share(found.bounded_share)} of the chunks came with a later one: their times are upper bounds"
        section.item("receiving", text, "plain" if found.exact_share == 1 else "warn")
    if found.faults:
        section.item("own faults", f"{plural(found.faults, 'request')}, in no rate", STYLES["skipped"])
    return section
