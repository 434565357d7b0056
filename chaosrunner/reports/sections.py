"""The report's content, once, for every text format."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import NamedTuple

from chaosrunner.analysis.facts import (
    ALL,
    PHASES,
    CheckResult,
    DirectProbe,
    DirectReplica,
    Facts,
    LostRequest,
    Milestone,
    Replacement,
)
from chaosrunner.playbook.expressions import METRICS, Quantity
from chaosrunner.reports.document import STYLES, Cell, Section, Table
from chaosrunner.reports.format import (
    UNKNOWN,
    estimate,
    first_row,
    instant,
    milestone,
    number,
    offset,
    one_line,
    plural,
    row_ids,
    seconds,
    share,
    span,
    window,
)
from chaosrunner.reports.losses import fault_name, losses
from chaosrunner.timeline.outcomes import SUCCESSES

MOST_LISTED = 12
"""Most rows that a table of single requests or calls shows; the JSON report has all."""

MOST_SIDE_BY_SIDE = 3
"""Most replacements that are shown beside each other."""


def headline(facts: Facts) -> Cell:
    """The verdict in one line."""
    return Cell(f"{facts.verdict.replace('_', ' ').upper()}: {facts.reason}", STYLES[facts.verdict])


def sections(facts: Facts) -> list[Section]:
    """Everything that the report says, most important first; sections without news are left out."""
    made = [
        _summary(facts),
        checks_section(facts),
        findings_section(facts),
        _lost(facts),
        _recovery(facts),
        *map(_direct, facts.direct),
        _terminations(facts),
        _evictions(facts),
        _availability(facts),
        _outcomes(facts),
        _latency(facts),
        _alerts(facts),
        _steps(facts),
        _observation(facts),
    ]
    return [section for section in made if section.parts]


def _summary(facts: Facts) -> Section:
    section = Section("Summary")
    exposure = facts.exposure
    if exposure.victims:
        text = f"{plural(exposure.exposed, 'stream')} in flight on it, {exposure.lost} lost"
        text += f" ({share(exposure.loss_on_victim)})" if exposure.exposed else ""
        if exposure.unplaced:
            bounds = f"between {share(exposure.lower)} and {share(exposure.upper)}"
            text += f"; {bounds}, as the Pod of {plural(exposure.unplaced, 'request')} is not known"
        if exposure.exposed == 0:
            text += ": this proves nothing about how it shuts down"
        style = STYLES["skipped"] if exposure.exposed == 0 else "bad" if exposure.lost else "good"
        section.item("victim" if len(exposure.victims) == 1 else "victims", text, style)
    success = facts.success_rate[ALL]
    text = estimate(success) + (f"; {success.note}" if success.note else "")
    if facts.unfinished:
        text += f"; {len(facts.unfinished)} unfinished, not counted"
    section.item("success rate", text)
    incomplete = facts.incomplete_200[ALL]
    section.item("incomplete 200", f"{plural(incomplete, 'stream')}", "bad" if incomplete else "plain")
    recovery = facts.recovery
    if facts.replacements or recovery.missing:
        text = (
            f"{span(recovery.time_to_serve)} until warm (Ready {span(recovery.time_to_ready)}, "
            f"first stream {span(recovery.time_to_first_stream)})"
        )
        if recovery.missing:
            text += f"; no replacement for {', '.join(recovery.missing)}"
        section.item("time to serve", text)
        if recovery.measured_under:
            section.item("measured under", recovery.measured_under)
    if any(value is not None for value in facts.goodput.values()):
        rate, good = facts.goodput.get(ALL), facts.good_share.get(ALL)
        text = estimate(good) if good else UNKNOWN
        section.item("inside the SLO", text + (f"; {rate:.2f}/s" if rate is not None else ""))
    return section


def value(metric: str, found: float | bool | str | None) -> str:
    """What a metric of a check was, in its unit. `metric` is as written in the expression."""
    if found is None:
        return UNKNOWN
    if isinstance(found, bool | str):
        return str(found).lower()
    known = METRICS.get(metric.partition("(")[0].partition("[")[0])
    match known.quantity if known else None:
        case Quantity.SHARE:
            return share(found)
        case Quantity.SECONDS:
            return seconds(found)
        case Quantity.RATE:
            return f"{number(found)}/s"
        case _:
            return number(found)


def found_in(check: CheckResult) -> str:
    """Only the value where the check itself says of what, else each metric with its value."""

    def shown(metric: str) -> str:
        note = check.notes.get(metric)
        return value(metric, check.values[metric]) + (f" ({note})" if note else "")

    if len(check.values) == 1 and (metric := next(iter(check.values))) in check.check:
        text = shown(metric)
    else:
        text = ", ".join(f"{metric} = {shown(metric)}" for metric in check.values)
    return text + (f"; {check.reason}" if check.reason else "")


def checks_section(facts: Facts) -> Section:
    section = Section("Checks")
    if facts.checks:
        rows = [
            (
                Cell(check.verdict, STYLES[check.verdict]),
                check.check + (f" ({check.confidence} % bound)" if check.confidence else ""),
                found_in(check),
                row_ids(check.evidence),
            )
            for check in facts.checks
        ]
        section.table(Table(("verdict", "check", "found", "rows"), rows, wrap=frozenset({1, 2, 3})))
    return section


def findings_section(facts: Facts) -> Section:
    section = Section("Findings")
    for finding in facts.findings:
        text = f"{finding.code}: {finding.text}" + (f" ({row_ids(finding.evidence)})" if finding.evidence else "")
        section.line(text, STYLES.get(finding.severity, "plain"))
        if finding.advice:
            section.line(f"  {finding.advice}")
    return section


# --- what was lost ------------------------------------------------------------------------------------------


def _lost(facts: Facts) -> Section:
    section = Section("Lost requests")
    total = len(facts.lost_requests) + facts.lost_omitted
    if total > MOST_LISTED:
        for line in losses(facts):
            section.line(line, "bad")
    listed = sorted(facts.lost_requests[:MOST_LISTED], key=lambda lost: (_preceding(lost), lost.row))
    for (pod, action, action_pod, _), group in groupby(listed, _preceding):
        requests = list(group)
        zero = requests[0].ended - (requests[0].after_action or 0) if action else 0.0
        where = f"on {pod}" if pod else "on an unknown Pod"
        if action:
            by = fault_name(facts, action)
            fault = f"its {by}" if requests[0].same_pod else f"the {by} of {action_pod}"
            section.line(f"{where}; times are after {fault} at {instant(zero)} (#{action})")
        else:
            section.line(f"{where}; no fault preceded")
        rows = [
            (
                lost.request,
                Cell(lost.outcome, "bad"),
                str(lost.status or UNKNOWN),
                offset(lost.sent - zero) if action else instant(lost.sent),
                offset(lost.ended - zero) if action else instant(lost.ended),
                f"#{lost.row}",
                one_line(lost.error),
            )
            for lost in requests
        ]
        columns = ("request", "outcome", "HTTP", "sent", "ended", "row", "error")
        section.table(Table(columns, rows, right=frozenset({3, 4}), cut=frozenset({6})))
    if total > len(listed):
        section.line(f"and {total - len(listed)} more; the JSON report lists them", "dim")
    return section


def _preceding(lost: LostRequest) -> tuple[str, int, str, bool]:
    return lost.pod or "", lost.action or 0, lost.action_pod or "", bool(lost.same_pod)


# --- how it came back ---------------------------------------------------------------------------------------

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
    slowest = sorted(facts.replacements, key=lambda item: -(item.time_to_serve.value or float("inf")))
    shown = [item for item in facts.replacements if item in slowest[:MOST_SIDE_BY_SIDE]]
    if not shown:
        return section
    rows: list[list[Cell | str]] = [["in place of", *(item.replaces for item in shown)]]
    for stage in STAGES:
        rows.append([stage.replace("_", " "), *(_stage(item, stage) for item in shown)])
    rows.append(["time to serve", *(span(item.time_to_serve) for item in shown)])
    rows.append(["Ready to warm", *(span(item.ready_to_warm) for item in shown)])
    rows.append(["until it was warm", *(f"{item.warmup_failed} failed, {item.warmup_slow} slow" for item in shown)])
    columns = ["after the fault was sent", *(item.pod for item in shown)]
    section.table(Table(columns, rows, wrap=frozenset(range(1, len(columns)))))
    if len(facts.replacements) > len(shown):
        more = len(facts.replacements) - len(shown)
        section.line(f"and {more} more, which served sooner; the JSON report has them", "dim")
    return section


def _stage(item: Replacement, stage: str) -> str:
    found = getattr(item.milestones, stage)
    text = milestone(found, item.fault_at)
    if found.at is None and found.why:
        text += f" ({found.why})"
    return text + (f"  {first_row(found.evidence)}" if found.evidence else "")


COMING = {
    "served": "served directly",
    "ready": "Ready",
    "endpoint_ready": "endpoint ready",
    "routed": "first by the gateway",
}
"""Milestones of a replica that came, in the report's words."""


def _direct(probe: DirectProbe) -> Section:
    """A probe of the replicas: when each served and when the gateway sent to it; then how each answered either way."""
    section = Section(f"Replicas, asked directly by {probe.probe}")
    if not probe.replicas:
        section.line("no replica had an address", "warn")
        return section
    text = f"success rate {estimate(probe.success_rate[ALL])}; in no figure of the service"
    if probe.early:
        text += f"; {plural(probe.early, 'request')} more before Ready, {probe.early_served} of them served"
    section.line(text)
    if shown := [replica for replica in probe.replicas if replica.fresh][:MOST_SIDE_BY_SIDE]:
        rows: list[list[Cell | str]] = [
            [words, *(_came(item, stage) for item in shown)] for stage, words in COMING.items()
        ]
        rows.append(["routing delay", *(span(item.routing_delay) for item in shown)])
        others = ("" if item.passed_by is None else plural(item.passed_by, "request") for item in shown)
        rows.append(["to others meanwhile", *(text or UNKNOWN for text in others)])
        columns = ["in the recording", *(item.pod for item in shown)]
        section.table(Table(columns, rows, wrap=frozenset(range(1, len(columns)))))
    listed = [
        (
            replica.pod,
            f"{replica.successes} of {replica.requests}",
            seconds(replica.ttft.p50),
            f"{replica.routed_successes} of {replica.routed_requests}",
            seconds(replica.routed_ttft.p50),
            instant(replica.stopped.at),
            str(replica.routed_after) if replica.stopped.at is not None else UNKNOWN,
        )
        for replica in probe.replicas[:MOST_LISTED]
    ]
    names = ("Pod", "directly", "TTFT p50", "by the gateway", "TTFT p50", "stopped", "sent after")
    section.table(Table(names, listed, right=frozenset(range(1, len(names))), wrap=frozenset({0})))
    if len(probe.replicas) > MOST_LISTED:
        section.line(f"and {len(probe.replicas) - MOST_LISTED} more; the JSON report lists them", "dim")
    return section


def _came(replica: DirectReplica, stage: str) -> str:
    found: Milestone = getattr(replica, stage)
    return f"{milestone(found)}  {first_row(found.evidence)}".rstrip()


def _terminations(facts: Facts) -> Section:
    section = Section("Terminations")
    for gone in facts.terminations[:MOST_LISTED]:
        codes = ", ".join(f"{name} exit {code}" for name, code in gone.exit_codes.items())
        section.line(
            f"{gone.pod}: deletion requested {window(gone.requested)}, grace {seconds(gone.grace)}, "
            f"containers ended {milestone(gone.containers_terminated)}{f' ({codes})' if codes else ''}, "
            f"gone {milestone(gone.gone)} ({row_ids(gone.evidence, 3)})"
            + (f"; finalizers left: {', '.join(gone.finalizers)}" if gone.finalizers else "")
        )
    return section


def _evictions(facts: Facts) -> Section:
    section = Section("Evictions and deletes")
    if not facts.evictions:
        return section
    rows = [
        (
            instant(item.at),
            item.action.replace("_", " ") + (" (dry run)" if item.dry_run else ""),
            item.pod,
            Cell(
                (item.answer or "no answer")
                + (f" {item.status}" if item.status else "")
                + (" (self-inflicted)" if item.self_inflicted else ""),
                "bad" if item.expected is False else "plain",
            ),
            first_row(item.evidence),
        )
        for item in facts.evictions[:MOST_LISTED]
    ]
    section.table(Table(("at", "action", "Pod", "answer", "row"), rows, right=frozenset({0}), wrap=frozenset({2})))
    for item in facts.evictions[:MOST_LISTED]:
        if item.message:
            budgets = f" [{', '.join(item.pdbs)}]" if item.pdbs else ""
            section.line(f"{first_row(item.evidence)}: {one_line(item.message)}{budgets}", "dim")
    if len(facts.evictions) > MOST_LISTED:
        section.line(f"and {len(facts.evictions) - MOST_LISTED} more; the JSON report lists them", "dim")
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


LATER = {"baseline": "after the fault", "during": "after the service was whole again"}
"""When a request ended that straddles the end of a phase."""


class _Late(NamedTuple):
    """Requests sent in one phase that ended in a later one."""

    successes: int
    lost: Counter[str]
    """By outcome."""


def _straddling(facts: Facts) -> dict[str, _Late]:
    """By the phase in which they were sent; phases without any are left out."""
    late = set(facts.straddling)
    found = {}
    for phase in LATER:
        lost = Counter(lost.outcome for lost in facts.lost_requests if lost.phase == phase and lost.request in late)
        successful = facts.latency.get("e2e", {}).get(phase)
        successes = successful.straddling if successful else 0
        if lost or successes:
            found[phase] = _Late(successes, lost)
    return found


def _outcomes(facts: Facts) -> Section:
    section = Section("Outcomes by phase")
    keys = [*(phase.name for phase in facts.phases if phase.name in facts.outcomes), ALL]
    names = sorted(facts.outcomes.get(ALL, {}), key=lambda name: (name not in SUCCESSES, name))
    if not names:
        return section
    straddling = _straddling(facts)

    def count(key: str, name: str) -> str:
        requests = facts.outcomes.get(key, {}).get(name, 0)
        late = straddling.get(key)
        marked = late and requests and (late.successes if name in SUCCESSES else late.lost[name])
        return f"{requests}*" if marked else str(requests)

    def rate(key: str) -> str:
        found = facts.success_rate.get(key)
        return share(found.value if found else None) + ("*" if key in straddling else "")

    rows: list[list[Cell | str]] = [
        [Cell(name, "plain" if name in SUCCESSES else "bad"), *(count(key, name) for key in keys)] for name in names
    ]
    rows.append(["success rate", *map(rate, keys)])
    section.table(Table(("sent in", *keys), rows, right=frozenset(range(1, len(keys) + 1))))
    for key, late in straddling.items():
        lost, sent = late.lost.total(), sum(facts.outcomes[key].values())
        section.line(
            f"* {late.successes + lost} of the {plural(sent, 'request')} sent in {key} ended {LATER[key]}; "
            f"{lost or 'none'} of them lost",
            "warn" if lost else "dim",
        )
    for phase in facts.phases:
        if phase.open and phase.name == "during":
            section.line(f"the service was not whole again when the recording ended: {phase.why}", "warn")
    return section


def _latency(facts: Facts) -> Section:
    section = Section("Latency of successful requests")
    rows: list[list[Cell | str]] = []
    few = False
    for metric, phases in facts.latency.items():
        if metric == "ttft_answer" and phases == facts.latency.get("ttft"):
            continue  # nothing but answers came
        name = metric
        for key in (*PHASES, ALL):
            figures = phases.get(key)
            if figures is None or figures.n == 0:
                continue
            values = [getattr(figures, percentile) for percentile in ("p50", "p90", "p95", "p99")]
            marks = ["*" if percentile in figures.flags else "" for percentile in ("p50", "p90", "p95", "p99")]
            few = few or any(marks)
            shown = [seconds(value) + mark for value, mark in zip(values, marks, strict=True)]
            rows.append([name, key, str(figures.n), *shown, seconds(figures.max)])
            name = ""
    if rows:
        columns = ("metric", "sent in", "n", "p50", "p90", "p95", "p99", "max")
        section.table(Table(columns, rows, right=frozenset(range(2, 8))))
        if facts.scheduled:
            names = ", ".join(facts.scheduled)
            section.line(f"ttft, ttft_answer and e2e of {names} count from the scheduled time (open loop)", "dim")
    if few:
        section.line("* too few values for this percentile: it is the maximum", "dim")
    return section


def _alerts(facts: Facts) -> Section:
    section = Section("Alerts")
    if facts.alerts:
        rows = [
            (
                item.name,
                ", ".join(f"{key}={value}" for key, value in sorted(item.labels.items()) if key != "alertname"),
                instant(item.pending_from),
                instant(item.firing_from),
                instant(item.end),
                (item.end_reason or "").replace("_", " "),
                row_ids(item.evidence, 3),
            )
            for item in facts.alerts
        ]
        columns = ("alert", "labels", "pending", "firing", "end", "why", "rows")
        section.table(Table(columns, rows, right=frozenset({2, 3, 4}), wrap=frozenset({0, 1, 6})))
    return section


def _steps(facts: Facts) -> Section:
    section = Section("Steps")
    if facts.run.steps:
        rows = [
            (
                str(item.index + 1),
                item.name,
                instant(item.begin),
                seconds(None if item.end is None else item.end - item.begin),
                Cell(item.result or "never ended", "plain" if item.result == "ok" else "warn"),
                item.reason or "",
            )
            for item in facts.run.steps
        ]
        columns = ("", "step", "began", "took", "result", "reason")
        section.table(Table(columns, rows, right=frozenset({0, 2, 3}), wrap=frozenset({1, 5})))
    return section


def _observation(facts: Facts) -> Section:
    section = Section("Observation")
    for gap in facts.gaps:
        end = "the end" if gap.end is None else instant(gap.end)
        section.line(
            f"nothing is known of {gap.resource} from {instant(gap.begin)} to {end}"
            f" ({gap.reason or 'no reason given'}; {row_ids(gap.evidence)})",
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
    if prober.lag_max is not None:
        section.line(f"runner: event loop late by {seconds(prober.lag_max)} at most", "dim")
    if prober.send_lag_p99 is not None:
        late = f"{seconds(prober.send_lag_p99)} (p99), {seconds(prober.send_lag_max)} at most"
        section.line(f"runner: scheduled requests sent late by {late}", "dim")
    if prober.faults:
        section.line(f"{plural(prober.faults, 'request')} spoiled by the runner itself", "warn")
    for skew in facts.skews:
        section.line(
            f"clock of {skew.owner}: {offset(skew.low)} to {offset(skew.high)} against ours "
            f"({plural(skew.samples, 'sample')})",
            "dim",
        )
    return section
