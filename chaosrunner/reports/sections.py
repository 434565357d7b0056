"""The report's content, once, for every text format: titled sections of lines and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from chaosrunner.analysis.facts import ALL, PHASES, CheckResult, Facts, Replacement
from chaosrunner.reports.format import (
    UNKNOWN,
    estimate,
    instant,
    milestone,
    plural,
    row_ids,
    seconds,
    share,
    span,
    window,
)
from chaosrunner.timeline.outcomes import SUCCESSES

Style = Literal["plain", "good", "bad", "warn", "dim"]

MOST_LISTED = 12
"""Most rows that a table of single requests shows; the JSON report has all."""

STYLES: dict[str, Style] = {
    "passed": "good",
    "failed": "bad",
    "skipped": "warn",
    "inconclusive": "warn",
    "aborted": "warn",
    "rollback_failed": "bad",
    "failure": "bad",
    "warning": "warn",
    "info": "dim",
}
"""Colour of a verdict or a severity."""


@dataclass(frozen=True)
class Cell:
    text: str
    style: Style = "plain"


@dataclass(frozen=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    right: frozenset[int] = frozenset()
    """Columns that are aligned to the right."""


@dataclass
class Section:
    title: str
    lines: list[Cell] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[Cell] = field(default_factory=list)
    """Lines below the tables."""

    def line(self, text: str, style: Style = "plain") -> None:
        self.lines.append(Cell(text, style))

    def note(self, text: str, style: Style = "dim") -> None:
        self.notes.append(Cell(text, style))

    @property
    def empty(self) -> bool:
        return not self.lines and not self.tables


def headline(facts: Facts) -> Cell:
    """The verdict in one line."""
    return Cell(f"{facts.verdict.replace('_', ' ').upper()}: {facts.reason}", STYLES[facts.verdict])


def sections(facts: Facts) -> list[Section]:
    """Everything that the report says, most important first; sections without news are left out."""
    made = [
        _summary(facts),
        _checks(facts),
        _findings(facts),
        _lost(facts),
        _recovery(facts),
        _evictions(facts),
        _availability(facts),
        _outcomes(facts),
        _latency(facts),
        _alerts(facts),
        _steps(facts),
        _observation(facts),
    ]
    return [section for section in made if not section.empty]


def _summary(facts: Facts) -> Section:
    section = Section("Summary")
    exposure = facts.exposure
    if exposure.victims:
        text = (
            f"exposure: {plural(exposure.exposed, 'stream')} in flight on the victim; {exposure.lost} lost; "
            f"loss on the victim {share(exposure.loss_on_victim)}"
        )
        if exposure.unplaced:
            text += f" (between {share(exposure.lower)} and {share(exposure.upper)}: {exposure.unplaced} unplaced)"
        if exposure.exposed == 0:
            section.line(f"{text}. Nothing was in flight there: this proves nothing about the drain", "warn")
        else:
            section.line(text, "bad" if exposure.lost else "good")
    success = facts.success_rate[ALL]
    section.line(f"success rate: {estimate(success)}" + (f"; {success.note}" if success.note else ""))
    incomplete = facts.incomplete_200[ALL]
    section.line(f"incomplete streams that had HTTP 200: {incomplete}", "bad" if incomplete else "plain")
    recovery = facts.recovery
    if facts.replacements or recovery.missing:
        parts = [
            f"time to serve: {span(recovery.time_to_serve)}",
            f"Ready after {span(recovery.time_to_ready)}",
            f"first complete stream after {span(recovery.time_to_first_stream)}",
        ]
        if recovery.missing:
            parts.append(f"no replacement for {', '.join(recovery.missing)}")
        section.line("; ".join(parts) + (f"; under {recovery.measured_under}" if recovery.measured_under else ""))
    if any(value is not None for value in facts.goodput.values()):
        good = facts.good_share.get(ALL)
        rate = facts.goodput.get(ALL)
        section.line(
            f"goodput: {UNKNOWN if rate is None else f'{rate:.2f}/s'} inside the SLO"
            + (f"; good share {estimate(good)}" if good else "")
        )
    return section


def _values(check: CheckResult) -> str:
    return ", ".join(f"{name} = {UNKNOWN if value is None else _value(value)}" for name, value in check.values.items())


def _value(value: float | bool | str) -> str:
    if isinstance(value, bool | str):
        return str(value).lower()
    return f"{value:.6g}"


def _checks(facts: Facts) -> Section:
    section = Section("Checks")
    if facts.checks:
        section.tables.append(
            Table(
                ("verdict", "check", "found", "rows"),
                [
                    (
                        Cell(check.verdict, STYLES[check.verdict]),
                        check.check + (" (95 % bound)" if check.confidence else ""),
                        _values(check) + (f"; {check.reason}" if check.reason else ""),
                        row_ids(check.evidence),
                    )
                    for check in facts.checks
                ],
            )
        )
    return section


def _findings(facts: Facts) -> Section:
    section = Section("Findings")
    for finding in facts.findings:
        text = f"{finding.code}: {finding.text}" + (f" ({row_ids(finding.evidence)})" if finding.evidence else "")
        section.line(text, "bad" if finding.severity == "failure" else STYLES.get(finding.severity, "plain"))
        if finding.advice:
            section.line(f"  {finding.advice}")
    return section


def _lost(facts: Facts) -> Section:
    section = Section("Lost requests")
    if not facts.lost_requests:
        return section
    table = [
        (
            lost.request,
            Cell(lost.outcome, "bad"),
            str(lost.status or UNKNOWN),
            lost.pod or UNKNOWN,
            instant(lost.sent),
            instant(lost.ended),
            _before(lost.after_action, lost.action_pod, lost.same_pod, lost.action),
            lost.error or "",
            f"#{lost.row}",
        )
        for lost in facts.lost_requests[:MOST_LISTED]
    ]
    section.tables.append(
        Table(
            ("request", "outcome", "HTTP", "Pod", "sent", "ended", "preceded by", "error", "row"),
            table,
            frozenset({4, 5}),
        )
    )
    more = len(facts.lost_requests) + facts.lost_omitted - len(table)
    if more:
        section.note(f"and {more} more; the JSON report lists them")
    return section


def _before(after: float | None, pod: str | None, same: bool | None, row: int | None) -> str:
    if row is None or after is None:
        return "no fault"
    where = {True: "its own Pod", False: f"another Pod, {pod}", None: f"{pod}"}[same]
    return f"fault on {where} {seconds(after)} before (#{row})"


STAGES = (
    "created",
    "scheduled",
    "initialized",
    "started",
    "ready",
    "endpoint_ready",
    "first_routed",
    "first_complete",
    "warm",
)


def _recovery(facts: Facts) -> Section:
    section = Section("Recovery")
    if not facts.replacements:
        return section
    rows: list[list[Cell | str]] = []
    for stage in STAGES:
        row: list[Cell | str] = [stage.replace("_", " ")]
        for item in facts.replacements:
            value = getattr(item.milestones, stage)
            text = milestone(value, item.fault_at)
            row.append(
                f"{text}  {row_ids(value.evidence, 1)}"
                if value.evidence
                else text + (f" ({value.why})" if value.why else "")
            )
        rows.append(row)
    for title, figure in (("time to serve", "time_to_serve"), ("Ready to warm", "ready_to_warm")):
        rows.append([title, *(span(getattr(item, figure)) for item in facts.replacements)])
    rows.append(["warm-up requests", *(_warmup(item) for item in facts.replacements)])
    columns = ["after the fault was sent", *(f"{item.pod} (for {item.replaces})" for item in facts.replacements)]
    section.tables.append(Table(columns, rows))
    for gone in facts.terminations:
        codes = ", ".join(f"{name} exit {code}" for name, code in gone.exit_codes.items())
        section.note(
            f"{gone.pod}: deletion requested {window(gone.requested)}, grace {seconds(gone.grace)}, "
            f"containers ended {milestone(gone.containers_terminated)}{f' ({codes})' if codes else ''}, "
            f"gone {milestone(gone.gone)} ({row_ids(gone.evidence, 3)})"
            + (f"; finalizers left: {', '.join(gone.finalizers)}" if gone.finalizers else ""),
            "plain",
        )
    return section


def _warmup(item: Replacement) -> str:
    return f"{item.warmup_failed} failed, {item.warmup_slow} slow"


def _evictions(facts: Facts) -> Section:
    section = Section("Evictions and deletes")
    if facts.evictions:
        section.tables.append(
            Table(
                ("at", "action", "Pod", "answer", "HTTP", "message", "rows"),
                [
                    (
                        instant(item.at),
                        item.action + (" (dry run)" if item.dry_run else ""),
                        item.pod,
                        Cell(
                            (item.answer or "no answer") + (" (self-inflicted)" if item.self_inflicted else ""),
                            "bad" if item.expected is False else "plain",
                        ),
                        str(item.status or UNKNOWN),
                        (item.message or "") + (f" [{', '.join(item.pdbs)}]" if item.pdbs else ""),
                        row_ids(item.evidence),
                    )
                    for item in facts.evictions[:MOST_LISTED]
                ],
                frozenset({0}),
            )
        )
        more = len(facts.evictions) - MOST_LISTED
        if more > 0:
            section.note(f"and {more} more; the JSON report lists them")
    return section


def _availability(facts: Facts) -> Section:
    section = Section("Availability")
    for title, windows in (("no ready endpoint", facts.zero_ready), ("outage seen by the probes", facts.outages)):
        for stretch in windows:
            section.line(
                f"{title}: {seconds(stretch.seconds)} from {instant(stretch.begin)} to {instant(stretch.end)}"
                f"{' (still so at the end)' if stretch.open else ''} ({row_ids(stretch.evidence)})",
                "bad",
            )
    if facts.endpoints_back is False:
        section.line("fewer ready endpoints at the end than before the first fault", "bad")
    if facts.restarts:
        section.line(f"container restarts: {facts.restarts}", "warn")
    for item in facts.disruptions:
        if not item.ours:
            section.line(
                f"{item.pod}: {item.type.replace('_', ' ')} that was not ours at {instant(item.at)} "
                f"({row_ids(item.evidence)})",
                "warn",
            )
    return section


def _outcomes(facts: Facts) -> Section:
    section = Section("Outcomes by phase")
    phases = [phase.name for phase in facts.phases if phase.name in facts.outcomes]
    keys = [*phases, ALL]
    names = sorted(facts.outcomes.get(ALL, {}), key=lambda name: (name not in SUCCESSES, name))
    if not names:
        return section
    rows: list[list[Cell | str]] = [
        [
            Cell(name, "plain" if name in SUCCESSES else "bad"),
            *(str(facts.outcomes.get(key, {}).get(name, 0)) for key in keys),
        ]
        for name in names
    ]
    rows.append(
        [
            "success rate",
            *(share(facts.success_rate[key].value) if key in facts.success_rate else UNKNOWN for key in keys),
        ]
    )
    section.tables.append(Table(("outcome", *keys), rows, frozenset(range(1, len(keys) + 1))))
    for phase in facts.phases:
        if phase.open and phase.name == "during":
            section.line(f"the service was not whole again when the recording ended: {phase.why}", "warn")
    return section


def _latency(facts: Facts) -> Section:
    section = Section("Latency of successful requests")
    rows: list[list[Cell | str]] = []
    for metric, phases in facts.latency.items():
        for key in (*PHASES, ALL):
            figures = phases.get(key)
            if figures is None or figures.n == 0:
                continue
            marks = figures.flags
            values = (
                seconds(value) + ("*" if name in marks else "")
                for name, value in (
                    ("p50", figures.p50),
                    ("p90", figures.p90),
                    ("p95", figures.p95),
                    ("p99", figures.p99),
                )
            )
            rows.append([metric, key, str(figures.n), *values, seconds(figures.max)])
    if rows:
        section.tables.append(
            Table(("metric", "phase", "n", "p50", "p90", "p95", "p99", "max"), rows, frozenset(range(2, 8)))
        )
        if any(isinstance(cell, str) and cell.endswith("*") for row in rows for cell in row):
            section.note("* too few requests for this percentile: it is the maximum")
    return section


def _alerts(facts: Facts) -> Section:
    section = Section("Alerts")
    if facts.alerts:
        section.tables.append(
            Table(
                ("alert", "labels", "pending", "firing", "end", "why", "rows"),
                [
                    (
                        item.name,
                        ", ".join(f"{key}={value}" for key, value in sorted(item.labels.items()) if key != "alertname"),
                        instant(item.pending_from),
                        instant(item.firing_from),
                        instant(item.end),
                        (item.end_reason or "").replace("_", " "),
                        row_ids(item.evidence),
                    )
                    for item in facts.alerts
                ],
            )
        )
    return section


def _steps(facts: Facts) -> Section:
    section = Section("Steps")
    if facts.run.steps:
        section.tables.append(
            Table(
                ("step", "began", "took", "result", ""),
                [
                    (
                        item.name,
                        instant(item.begin),
                        seconds(None if item.end is None else item.end - item.begin),
                        Cell(item.result or "never ended", "plain" if item.result == "ok" else "warn"),
                        item.reason or "",
                    )
                    for item in facts.run.steps
                ],
                frozenset({1, 2}),
            )
        )
    return section


def _observation(facts: Facts) -> Section:
    section = Section("Observation")
    for gap in facts.gaps:
        end = "the end" if gap.end is None else instant(gap.end)
        section.line(
            f"nothing is known of {gap.resource} from {instant(gap.begin)} to {end}"
            f" ({gap.reason}; {row_ids(gap.evidence)})",
            "warn",
        )
    if facts.unfinished:
        section.line(f"{plural(len(facts.unfinished), 'request')} without an end: the runner died first", "warn")
    for once in facts.once:
        section.line(
            f"{once.request}: {once.outcome}, HTTP {once.status or UNKNOWN} (#{once.row})",
            "bad" if once.expected is False else "plain",
        )
    prober = facts.prober
    section.line(
        f"runner: event loop late by {seconds(prober.lag_max)} at most"
        + (f"; {plural(prober.faults, 'request')} spoiled by the runner itself" if prober.faults else ""),
        "dim",
    )
    for skew in facts.skews:
        section.line(
            f"clock of {skew.owner}: {skew.low:+.2f} to {skew.high:+.2f} s against ours "
            f"({plural(skew.samples, 'sample')})",
            "dim",
        )
    return section


def side_by_side(runs: Sequence[Facts]) -> Section:
    """Several runs in short, one column each."""
    section = Section("Side by side")

    def row(title: str, *values: Cell | str) -> list[Cell | str]:
        return [title, *values]

    rows = [
        row("verdict", *(Cell(f.verdict, STYLES[f.verdict]) for f in runs)),
        row("streams on the victim", *(str(f.exposure.exposed) for f in runs)),
        row("lost of them", *(Cell(str(f.exposure.lost), "bad" if f.exposure.lost else "good") for f in runs)),
        row("loss on the victim", *(share(f.exposure.loss_on_victim) for f in runs)),
        row("incomplete HTTP 200", *(str(f.incomplete_200[ALL]) for f in runs)),
        row("success rate", *(share(f.success_rate[ALL].value) for f in runs)),
        row("requests", *(str(f.success_rate[ALL].total) for f in runs)),
        row("how streams were lost", *(_kinds(f) for f in runs)),
        row("time to Ready", *(span(f.recovery.time_to_ready) for f in runs)),
        row("time to first stream", *(span(f.recovery.time_to_first_stream) for f in runs)),
        row("time to serve (warm)", *(span(f.recovery.time_to_serve) for f in runs)),
        row("victim left after", *(_left(f) for f in runs)),
        row("failed checks", *(", ".join(c.check for c in f.checks if c.verdict == "failed") or UNKNOWN for f in runs)),
        row(
            "skipped checks", *(", ".join(c.check for c in f.checks if c.verdict == "skipped") or UNKNOWN for f in runs)
        ),
    ]
    section.tables.append(Table(["", *(f.run.drill for f in runs)], rows))
    return section


def _kinds(facts: Facts) -> str:
    counted = facts.outcomes.get(ALL, {})
    return (
        ", ".join(f"{count} {name}" for name, count in sorted(counted.items()) if name not in SUCCESSES and count)
        or UNKNOWN
    )


def _left(facts: Facts) -> str:
    spans = [
        gone.gone.at - eviction.at
        for gone in facts.terminations
        for eviction in facts.evictions
        if eviction.uid == gone.uid and not eviction.dry_run and gone.gone.at is not None
    ]
    return seconds(max(spans)) if spans else UNKNOWN
