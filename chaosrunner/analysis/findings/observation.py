"""How well all could be seen: watches, polls, the runner itself, and what was put back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chaosrunner.analysis.facts import Facts, Finding, ProberFacts, Severity
from chaosrunner.analysis.findings.base import finding, plural
from chaosrunner.analysis.folds.endpoints import RESOURCE as ENDPOINTS
from chaosrunner.analysis.own import LATE
from chaosrunner.analysis.picture import PODS, Picture
from chaosrunner.analysis.requests import Floats
from chaosrunner.timeline.outcomes import Outcome

PROBER_FAULT_LIMIT = 0.01
"""Share of prober_fault above which the run proves nothing about the service."""

LATE_LIMIT = 0.01
"""Share of requests sent late, if it is more than one, above which latencies and rates are the runner's own doing."""

LAG_LIMIT = 1.0
"""Seconds of lateness of the event loop with which the load is not the one asked for: in two of the run's seconds, and
in one of a hundred, as a machine may stand still once. What the kernel stamps is right even then."""

LAG_LIMIT_INEXACT = 0.25
"""The same where receive times are the event loop's own, which its lateness moves."""

BUSY = 0.8
"""Share of a core from which on the runner is short of it."""

FILES_LIMIT = 0.9
"""Share of the allowed descriptors in use above which connections may soon fail on our side."""

UNSEEN_AFTER = 10.0
"""Seconds after an accepted eviction by which a working watch has shown something of it."""


def gaps(picture: Picture) -> Iterator[Finding]:
    """Case of a watch that went silent: nothing is concluded from what was not seen in the gap."""
    watches = picture.observations.watches
    for gap in watches.gaps:
        open_ = gap.end is None
        until = "the end of the recording" if gap.end is None else f"{gap.end:.1f} s"
        if gap.reason == "silent":
            text = f"the watch of {gap.resource} went silent; last proof of life at {gap.begin:.1f} s"
            yield finding("watch_stalled", "warning", text, gap.rows)
        needed = gap.resource in (PODS, ENDPOINTS) and picture.fault_at is not None
        yield finding(
            "observations_incomplete",
            "inconclusive" if open_ and needed else "warning",
            f"nothing is known of {gap.resource} from {gap.begin:.1f} s to {until}",
            gap.rows,
        )
    for resource, row in watches.forbidden.items():
        yield finding("watch_forbidden", "warning", f"{resource} may not be watched", [row.id])


def unobserved(picture: Picture) -> Iterator[Finding]:
    """The cross-check of a watch: a Pod that we took away must have been seen to go."""
    for victim in picture.taken:
        call, pod = victim.call, victim.pod
        answered = call.answered
        if answered is None or picture.now - answered.at < UNSEEN_AFTER:
            continue
        if pod is None or (pod.deletion is None and pod.gone is None):
            text = f"the {call.sent.action} of {call.sent.target.name} was accepted, but no row shows it going"
            yield finding("fault_not_observed", "inconclusive", text, call.rows)


def prober(picture: Picture, facts: Facts) -> Iterator[Finding]:
    for row in picture.observations.run.died:
        text = f"probe {row.probe}: {row.reason}; from then on the load was not what was asked for"
        yield finding("worker_died", "inconclusive", text, [row.id], "see the system's log: was memory short?")
    share = facts.prober.faults_share
    if share:
        severity: Severity = "inconclusive" if share > PROBER_FAULT_LIMIT else "warning"
        text = f"{facts.prober.faults} requests ({share:.1%}) failed on the runner's own side"
        rows = picture.requests.ids(picture.requests.is_outcome(Outcome.PROBER_FAULT))
        yield finding("prober_fault", severity, text, rows, _cure(facts.prober))
    yield from _late(facts.prober, np.array(picture.observations.run.lags))
    files = facts.prober.files_share
    if files is not None and files > FILES_LIMIT:
        text = f"{files:.0%} of the file descriptors that the runner may have were in use"
        fullest = picture.observations.run.fullest
        rows = [] if fullest is None else [fullest.id]
        yield finding("prober_files", "warning", text, rows, "raise the limit (ulimit -n), or lower the load")


def _late(prober: ProberFacts, lags: Floats) -> Iterator[Finding]:
    if prober.late_share is not None and prober.late_sends:
        many = prober.late_sends > 1 and prober.late_share > LATE_LIMIT
        severity: Severity = "inconclusive" if many else "warning"
        text = (
            f"{prober.late_sends} scheduled requests ({prober.late_share:.1%}) were sent more than {LATE:g} s late or "
            f"not at all, as the runner did not keep up{_strength(prober)}"
        )
        yield finding("prober_late", severity, text, [], _cure(prober))
    exact = prober.exact_share is None or prober.exact_share > 0.99
    limit = LAG_LIMIT if exact else LAG_LIMIT_INEXACT
    above = int(np.count_nonzero(lags > limit))
    if above > max(1.0, LATE_LIMIT * len(lags)):
        text = (
            f"the runner's event loop was late by more than {limit:g} s in {above} of {plural(len(lags), 'second')}"
            f"{_strength(prober)}"
        )
        yield finding("prober_lag", "inconclusive", text, [], _cure(prober))


def _strength(prober: ProberFacts) -> str:
    """What it used, and what it could have held."""
    if prober.core_share is None:
        return ""
    text = f"; it used {prober.core_share:.0%} of a core"
    held = [
        f"{value:,.0f} {what} a second"
        for value, what in ((prober.requests_per_core, "requests"), (prober.chunks_per_core, "chunks"))
        if value is not None
    ]
    return text + (f", and by what they cost here a core holds {' or '.join(held)}" if held else "")


def _cure(prober: ProberFacts) -> str:
    if prober.core_share is not None and prober.core_share > BUSY:
        return "lower the load, or give the probe more workers"
    return "run chaosrunner on a calmer machine, or lower the load"


def unsent(facts: Facts) -> Iterator[Finding]:
    """The in-flight cap was reached: the service holds requests longer than the schedule has room for."""
    for name, load in facts.scheduled.items():
        if load.not_sent:
            share = load.not_sent / load.planned
            whose = "its own" if name in {probe.probe for probe in facts.direct} else "the"
            text = (
                f"{load.not_sent} of {load.planned} planned requests of {name} ({share:.1%}) were not sent, as "
                f"max_in_flight were in flight; they count against {whose} success rate"
            )
            advice = "raise max_in_flight if the service may hold so many"
            yield finding("in_flight_cap", "warning", text, load.evidence, advice)


def alerts(picture: Picture) -> Iterator[Finding]:
    alerts = picture.observations.alerts
    early_until = 0.0 if picture.fault_at is None else picture.fault_at
    for name, history in alerts.by_name.items():
        if early := [one for one in alerts.early(name, picture.fault_at) if one.end is None or one.end > early_until]:
            text = f"{name} was pending or firing before the first fault: what it did later is not the fault's doing"
            yield finding("alert_before_fault", "warning", text, [row for one in early for row in one.evidence])
        if history.unstable:
            text = (
                f"the labels of {name} change with every evaluation, so its `for` starts anew each time: it can "
                "never fire; silence proves nothing"
            )
            advice = "move the changing value from the labels to the annotations"
            yield finding("label_identity_unstable", "warning", text, alerts.evidence(name), advice)
        if history.resets:
            text = f"{name} vanished {len(history.resets)} times with a failed scrape: a reset, not a recovery"
            rows = [row for episode in history.resets for row in episode.evidence]
            yield finding("staleness_reset", "warning", text, rows)
        if history.ever_broken:
            error = history.rule.error if history.rule is not None else None
            text = f"the rule of {name} could not be evaluated{f' ({error})' if error else ''}: its old state is frozen"
            yield finding("rule_broken", "warning", text, [history.broken_row])
    if alerts.failed:
        text = f"{len(alerts.failed)} of {alerts.polls} polls of alerts failed"
        yield finding("alerts_unknown", "warning", text, alerts.failed)


def effects(picture: Picture) -> Iterator[Finding]:
    """Faults that did not do what they were made for, or are still there."""
    for rows in picture.observations.run.effects.values():
        last = rows[-1]
        what = f"{last.fault} of {last.target.name}"
        seen = f": {last.detail}" if last.detail else ""
        wrong = next((row for row in rows if row.event == "not_bitten"), None)
        if wrong is not None:
            text = f"the fault did not bite: {what}, by {wrong.by}" + (f": {wrong.detail}" if wrong.detail else "")
            yield finding("did_not_bite", "inconclusive", text, [wrong.id])
        elif last.event == "not_healed":
            yield finding("did_not_heal", "failure", f"{what} was undone, but is still there{seen}", [last.id])
        elif last.event == "unknown":
            text = f"whether {what} is there could not be told{seen}"
            yield finding("effect_unknown", "warning", text, [last.id])


def journal(picture: Picture) -> Iterator[Finding]:
    for row in picture.observations.run.journal.values():
        target = f"{row.target.kind} {row.target.name}"
        if row.event == "changed_by_others":
            text = f"{target} was changed by others and was not put back: {row.detail or row.fault}"
            yield finding("changed_by_others", "warning", text, [row.id])
        elif row.event == "undo_failed":
            text = f"{row.fault} of {target} could not be undone: {row.detail or 'see the journal'}"
            yield finding("undo_failed", "warning", text, [row.id])
