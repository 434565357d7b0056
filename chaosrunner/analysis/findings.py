"""Observations that explain themselves: what was noticed, how grave it is, which rows show it."""

from __future__ import annotations

from collections.abc import Iterator

from chaosrunner.analysis.exposure import unplaced_across
from chaosrunner.analysis.facts import Disruption, Facts, Finding, Replacement, Severity, Termination, Window
from chaosrunner.analysis.folds.actions import BUDGET_HELD, Call
from chaosrunner.analysis.folds.endpoints import RESOURCE as ENDPOINTS
from chaosrunner.analysis.picture import PODS, Picture
from chaosrunner.analysis.spans import evidence
from chaosrunner.timeline.outcomes import Outcome

PROBER_FAULT_LIMIT = 0.01
"""Share of prober_fault above which the run proves nothing about the service."""

STUCK_AFTER = 10.0
"""Seconds past its deadline after which a Pod that still has finalizers counts as stuck: the kubelet itself may
need a few (grace + 2 s was recorded on a real 1.37)."""

UNSEEN_AFTER = 10.0
"""Seconds after an accepted eviction by which a working watch has shown something of it."""

SETTLE = 0.25
"""Seconds by which a change of a budget may reach us later than the answer of the eviction that used it."""


def findings(picture: Picture, facts: Facts) -> list[Finding]:
    """All findings, in a fixed order. `facts` holds the figures made so far."""
    found: list[Finding] = []
    for source in (
        _gaps(picture),
        _unobserved(picture),
        _prober(picture, facts),
        _budgets(picture),
        _evictions(picture),
        _disruptions(facts.disruptions),
        _terminations(picture, facts.terminations),
        _outages(picture, facts.outages, facts.replacements),
        _warmup(picture, facts.replacements),
        _exposure(picture, facts),
        _alerts(picture),
        _journal(picture),
    ):
        found.extend(source)
    return found


def _finding(code: str, severity: Severity, text: str, rows: list[int], advice: str | None = None) -> Finding:
    return Finding(code=code, severity=severity, text=text, evidence=evidence(rows), advice=advice)


def _gaps(picture: Picture) -> Iterator[Finding]:
    """Case of a watch that went silent: nothing is concluded from what was not seen in the gap."""
    watches = picture.observations.watches
    for gap in watches.gaps:
        open_ = gap.end is None
        until = "the end of the recording" if gap.end is None else f"{gap.end:.1f} s"
        if gap.reason == "silent":
            text = f"the watch of {gap.resource} went silent; last proof of life at {gap.begin:.1f} s"
            yield _finding("watch_stalled", "warning", text, gap.rows)
        needed = gap.resource in (PODS, ENDPOINTS) and picture.fault_at is not None
        yield _finding(
            "observations_incomplete",
            "inconclusive" if open_ and needed else "warning",
            f"nothing is known of {gap.resource} from {gap.begin:.1f} s to {until}",
            gap.rows,
        )
    for resource, row in watches.forbidden.items():
        yield _finding("watch_forbidden", "warning", f"{resource} may not be watched", [row.id])


def _unobserved(picture: Picture) -> Iterator[Finding]:
    """The cross-check of a watch: a Pod that we took away must have been seen to go."""
    for call, pod in picture.victims:
        answered = call.answered
        if answered is None or picture.now - answered.at < UNSEEN_AFTER:
            continue
        if pod is None or (pod.deletion is None and pod.gone is None):
            text = f"the {call.sent.action} of {call.sent.target.name} was accepted, but no row shows it going"
            yield _finding("fault_not_observed", "inconclusive", text, call.rows)


def _prober(picture: Picture, facts: Facts) -> Iterator[Finding]:
    share = facts.prober.faults_share
    if share:
        severity: Severity = "inconclusive" if share > PROBER_FAULT_LIMIT else "warning"
        text = f"{facts.prober.faults} requests ({share:.1%}) failed on the runner's own side"
        rows = picture.requests.ids(picture.requests.is_outcome(Outcome.PROBER_FAULT))
        yield _finding("prober_fault", severity, text, rows, "run chaosrunner on a calmer machine, or lower the load")


def _budgets(picture: Picture) -> Iterator[Finding]:
    """An eviction accepted although the budget allowed none: the budget is not enforced."""
    budgets = picture.observations.budgets
    for call in picture.observations.actions.calls:
        if call.sent.action != "evict" or not call.disrupts or call.answered is None or not call.pod_ready:
            continue
        for pdb in call.budgets:
            stale = pdb.generation is not None and (pdb.observed_generation or 0) < pdb.generation
            if pdb.allowed != 0 or stale:
                continue
            near = budgets.between(pdb.uid, call.at, call.answered.at + SETTLE)
            late = budgets.between(pdb.uid, call.at, call.answered.at + UNSEEN_AFTER)
            hidden = picture.observations.watches.overlapping("poddisruptionbudgets", pdb.at, call.answered.at + SETTLE)
            opened = any((row.allowed or 0) > 0 for row in near)
            spent = any(call.sent.target.name in row.disrupted_times for row in late)
            if not (opened or spent or hidden):
                text = (
                    f"the eviction of {call.sent.target.name} was accepted although the budget {pdb.name} allowed "
                    "no disruption: the API server does not enforce it"
                )
                yield _finding("budget_not_enforced", "failure", text, [pdb.id, *call.rows])


def _evictions(picture: Picture) -> Iterator[Finding]:
    blocked: dict[str, list[Call]] = {}
    for call in picture.observations.actions.calls:
        result = call.result
        name = call.sent.target.name
        if call.sent.action not in ("evict", "delete_pod"):
            continue
        if result.answer == "precondition_failed" and call.sent.action == "evict" and not call.sent.dry_run:
            yield _held(call)
        elif result.answer == "multiple_budgets":
            pdbs = ", ".join(sorted(call.pdbs)) or "several budgets"
            text = f"{name} is under {pdbs}; the API server answers 500 for ever: overlapping budgets, not an outage"
            severity: Severity = "info" if result.expected else "failure"
            yield _finding("overlapping_budgets", severity, text, call.rows, "let one budget match each Pod")
        elif result.answer == "blocked_by_budget" and call.self_inflicted and call.held_by is not None:
            holder = call.held_by.sent.target.name
            text = f"the 429 for {name} is our own doing: our failed eviction of {holder} holds the budget"
            yield _finding("self_inflicted_429", "info", text, [*call.rows, *call.held_by.rows])
        elif result.answer == "blocked_by_budget" and result.expected is False:
            blocked.setdefault(name, []).append(call)
    for name, calls in blocked.items():
        pdbs = ", ".join(sorted(set().union(*(call.pdbs for call in calls)))) or "its budget"
        when = f"{len(calls)} times, {calls[0].at:.1f} to {calls[-1].at:.1f} s"
        text = f"{pdbs} did not allow the eviction of {name} ({when})"
        yield _finding("blocked_by_budget", "warning", text, [row for call in calls for row in call.rows])


def _held(call: Call) -> Finding:
    until = (call.answered or call.sent).at + BUDGET_HELD
    pdbs = ", ".join(sorted(call.pdbs)) or "its budget"
    return _finding(
        "budget_held_by_our_eviction",
        "warning",
        f"the eviction of {call.sent.target.name} failed its precondition after {pdbs} had been charged: the budget "
        f"is held by our failed eviction until {until:.0f} s (two minutes)",
        call.rows,
    )


def _disruptions(disruptions: list[Disruption]) -> Iterator[Finding]:
    for disruption in disruptions:
        if disruption.type == "node_shutdown":
            text = (
                f"{disruption.pod} was ended by its kubelet, without a deletionTimestamp: a node shutdown, "
                "not a crash of the application"
            )
            yield _finding("node_shutdown", "warning", text, disruption.evidence)
            if disruption.endpoint_lag:
                lag = disruption.endpoint_lag
                text = f"the endpoint of {disruption.pod} stayed ready for {lag:.1f} s after it had failed"
                yield _finding("endpoint_lag", "warning", text, disruption.evidence)
        elif not disruption.ours and disruption.type != "deletion":
            text = f"{disruption.pod} was taken away by somebody else: {disruption.type}"
            yield _finding("other_disruption", "warning", text, disruption.evidence)


def _terminations(picture: Picture, terminations: list[Termination]) -> Iterator[Finding]:
    for termination in terminations:
        deadline = termination.deadline.high
        if termination.gone.high is not None:
            if termination.late_by.low is not None and termination.late_by.low > 0 and termination.late_by.value:
                text = f"{termination.pod} went {termination.late_by.value:.1f} s after its grace period had ended"
                yield _finding("grace_exceeded", "info", text, termination.evidence)
        elif termination.finalizers and deadline is not None and picture.now > deadline + STUCK_AFTER:
            if picture.observations.watches.overlapping(PODS, deadline, picture.now):
                continue
            text = (
                f"{termination.pod} is stuck terminating, {picture.now - deadline:.0f} s past its deadline: "
                f"finalizer {', '.join(termination.finalizers)}"
            )
            advice = "the controller that owns the finalizer must remove it; the Pod has not left"
            yield _finding("stuck_terminating", "failure", text, termination.evidence, advice)


def _outages(picture: Picture, outages: list[Window], replacements: list[Replacement]) -> Iterator[Finding]:
    for outage in outages:
        text = f"nobody was served for {outage.seconds:.1f} s (from {outage.begin:.1f} s)"
        yield _finding("outage", "warning", text, outage.evidence)
        ready = [
            milestone.at
            for replacement in replacements
            if (milestone := replacement.milestones.ready).at is not None and outage.begin <= milestone.at < outage.end
        ]
        if ready and len(ready) == len(picture.pairs):
            text = f"every replacement was Ready for {outage.end - max(ready):.1f} s before a request was served again"
            yield _finding("ready_but_not_serving", "warning", text, outage.evidence)
    history = picture.observations.endpoints.history
    if picture.victims and any(point.ready == 0 and point.at >= picture.victims[0][0].at for point in history):
        yield from _unprotected(picture)


def _unprotected(picture: Picture) -> Iterator[Finding]:
    """Why all endpoints went at once, as far as the rows at the fault tell."""
    call = picture.victims[0][0]
    pods = [pod for pod in (picture.pods.by_uid.get(key) for key in call.ready_keys) if pod is not None]
    nodes = {pod.node for pod in pods}
    if len(pods) > 1 and len(nodes) == 1 and None not in nodes:
        text = f"all {len(pods)} ready replicas were on one node, {nodes.pop()}"
        yield _finding(
            "all_replicas_on_one_node", "warning", text, call.rows, "spread them (topologySpreadConstraints)"
        )
    budgets = picture.observations.watches.listed & {"poddisruptionbudgets"} or picture.observations.budgets.history
    if budgets and all(victim.pod and not victim.budgets for victim, _ in picture.victims):
        yield _finding("no_budget", "warning", "no PodDisruptionBudget matches the victims", call.rows)


def _warmup(picture: Picture, replacements: list[Replacement]) -> Iterator[Finding]:
    for pod, replacement in zip(picture.replacements, replacements, strict=True):
        span = replacement.ready_to_warm.value
        if span is not None and span > 0 and (replacement.warmup_failed or replacement.warmup_slow):
            text = (
                f"{pod.name} was Ready {span:.1f} s before it was warm: "
                f"{replacement.warmup_failed} failed and {replacement.warmup_slow} slow requests on it meanwhile"
            )
            yield _finding("ready_before_warm", "warning", text, replacement.milestones.warm.evidence)


def _exposure(picture: Picture, facts: Facts) -> Iterator[Finding]:
    if picture.victims and not facts.exposure.exposed:
        text = "no stream was in flight on a victim when the fault was sent: the drill proves nothing about the drain"
        advice: str | None = 'wait for exposure: when: "in_flight(target) >= 1"'
        if facts.exposure.unplaced:
            text, advice = text.replace("no stream was", "no stream is known to have been"), None
        rows = [row for call, _ in picture.victims for row in call.rows]
        yield _finding("not_exposed", "warning", text, rows, advice)
    if picture.victims and facts.exposure.unplaced:
        text = f"the Pod of {facts.exposure.unplaced} requests across the fault is not known; they bound the loss"
        yield _finding("unplaced", "warning", text, picture.requests.ids(unplaced_across(picture)))


def _alerts(picture: Picture) -> Iterator[Finding]:
    alerts = picture.observations.alerts
    early_until = 0.0 if picture.fault_at is None else picture.fault_at
    for name, history in alerts.by_name.items():
        if early := [one for one in alerts.early(name, picture.fault_at) if one.end is None or one.end > early_until]:
            text = f"{name} was pending or firing before the first fault: what it did later is not the fault's doing"
            yield _finding("alert_before_fault", "warning", text, [row for one in early for row in one.evidence])
        if history.unstable:
            text = (
                f"the labels of {name} change with every evaluation, so its `for` starts anew each time: it can "
                "never fire; silence proves nothing"
            )
            advice = "move the changing value from the labels to the annotations"
            yield _finding("label_identity_unstable", "warning", text, alerts.evidence(name), advice)
        if history.resets:
            text = f"{name} vanished {len(history.resets)} times with a failed scrape: a reset, not a recovery"
            rows = [row for episode in history.resets for row in episode.evidence]
            yield _finding("staleness_reset", "warning", text, rows)
        if history.ever_broken:
            error = history.rule.error if history.rule is not None else None
            text = f"the rule of {name} could not be evaluated{f' ({error})' if error else ''}: its old state is frozen"
            yield _finding("rule_broken", "warning", text, [history.broken_row])
    if alerts.failed:
        text = f"{len(alerts.failed)} of {alerts.polls} polls of alerts failed"
        yield _finding("alerts_unknown", "warning", text, alerts.failed)


def _journal(picture: Picture) -> Iterator[Finding]:
    for row in picture.observations.run.journal.values():
        target = f"{row.target.kind} {row.target.name}"
        if row.event == "changed_by_others":
            text = f"{target} was changed by others and was not put back: {row.detail or row.fault}"
            yield _finding("changed_by_others", "warning", text, [row.id])
        elif row.event == "undo_failed":
            text = f"{row.fault} of {target} could not be undone: {row.detail or 'see the journal'}"
            yield _finding("undo_failed", "warning", text, [row.id])
