"""Checks and the verdict of the run.

A check whose expression is unknown at the end, or whose answer depends on what nobody saw (requests of unknown
Pods, watch gaps, what came after the recording broke off) or on times that a buffer on the way made, is skipped: not
proven, never passed.
"""

from __future__ import annotations

from chaosrunner.analysis import direct
from chaosrunner.analysis.context import CheckContext
from chaosrunner.analysis.facts import CheckResult, Finding, RunFacts, Verdict
from chaosrunner.analysis.observations import Observations
from chaosrunner.analysis.picture import Picture
from chaosrunner.analysis.scope import MILESTONES, MetricScope, Side
from chaosrunner.analysis.spans import evidence
from chaosrunner.playbook.expressions import Comparison, Expression, Literal, Metric, Value, evaluate, walk

NO_END = "the recording has no end"

EXIT_CODES: dict[Verdict, int] = {"passed": 0, "failed": 1, "inconclusive": 3, "aborted": 4, "rollback_failed": 5}


def check(picture: Picture, wanted: CheckContext) -> CheckResult:
    """Evaluates one check on the whole run.

    Without confidence, the answer must be the same at the estimate and at both ends of what is possible. With
    `confidence: 95` it must hold at both ends of the 95 % interval: the bound is compared, not the estimate.
    """
    confident = wanted.confidence is not None
    sides: tuple[Side, ...] = ("point", "low", "high")
    known: dict[tuple[object, ...], Value] = {}
    scopes = {
        side: MetricScope(picture, probe=wanted.probe, side=side, confident=confident, judging=True, known=known)
        for side in sides
    }
    answers = {side: evaluate(wanted.expression, _OfTheService(scope)) for side, scope in scopes.items()}
    metrics = [node for node in walk(wanted.expression) if isinstance(node, Metric)]
    values = {str(node): scopes["point"].value(node.name, node.args, node.window) for node in metrics}
    notes = {str(node): note for node in metrics if (note := scopes["point"].note(node.name, node.args))}
    rows = [row for node in metrics for row in scopes["point"].evidence(node.name, node.args, node.window)]
    ends = {answers["low"], answers["high"]}
    reason: str | None = None
    verdict: bool | None
    if confident:
        verdict = None if answers["point"] is None else ends == {True}
    elif answers["point"] is None:
        # Unknown as a point, but perhaps decided by its window (an instant inside a watch gap).
        verdict = ends.pop() if len(ends) == 1 else None
    else:
        verdict = answers["point"] if ends == {answers["point"]} else None
    if not confident and any(_between(node, scopes) for node in walk(wanted.expression)):
        verdict = None
    if verdict is None:
        reason = _why(picture, metrics, values, scopes)
    text = f"{wanted.expression}: " + ", ".join(
        f"{name} = {_shown(node, values[name], scopes, confident)}" + (f" ({notes[name]})" if name in notes else "")
        for node in metrics
        if (name := str(node)) in values
    )
    return CheckResult(
        check=wanted.name or str(wanted.expression),
        verdict="skipped" if verdict is None else "passed" if verdict else "failed",
        values=values,
        text=text if reason is None else f"{text} ({reason})",
        reason=reason,
        confidence=wanted.confidence,
        evidence=evidence(rows),
        notes=notes,
    )


class _OfTheService:
    """The values of a scope, but for those that tell of the way to the service instead."""

    def __init__(self, scope: MetricScope) -> None:
        self._scope = scope

    def value(self, name: str, args: tuple[str, ...], window: float | None) -> Value:
        return None if self._scope.not_the_service(name, args) else self._scope.value(name, args, window)


def _between(node: Expression, scopes: dict[Side, MetricScope]) -> bool:
    """Whether a metric is compared for equality with a number that is neither of its ends, but possible."""
    match node:
        case Comparison(Metric() as metric, "==" | "!=", Literal(value=float(wanted))) | Comparison(
            Literal(value=float(wanted)), "==" | "!=", Metric() as metric
        ):
            low, high = (scopes[side].value(metric.name, metric.args, metric.window) for side in ("low", "high"))
        case _:
            return False
    return isinstance(low, int | float) and isinstance(high, int | float) and low < wanted < high


def _why(picture: Picture, metrics: list[Metric], values: dict[str, Value], scopes: dict[Side, MetricScope]) -> str:
    point = scopes["point"]
    for node in metrics:
        if why := point.not_the_service(node.name, node.args):
            return why
        if values[str(node)] is not None:
            continue
        if no_sample := point.no_sample(node.name, node.args, node.window):
            return no_sample
        if node.name == "loss_on_victim":
            if not picture.victims:
                return "no fault took a Pod"
            known = "was" if not point.exposure.unplaced else "is known to have been"
            return f"exposure 0: no stream {known} in flight on a victim when the fault was sent"
        if node.name.startswith(("replacement", "time_to_", "routing_delay")):
            if not picture.pairs:
                return "no fault took a Pod"
            stage = MILESTONES.get(node.name, "first_complete")
            reached = [(r.pod, getattr(r.milestones, stage).why) for r in point.replacements]
            if node.name == "routing_delay":
                reached = [(r.pod, r.served.why or r.routed.why) for r in direct.replacements(picture)]
            whys = [f"{pod}: {why}" for pod, why in reached if why]
            missing = [f"{pair.victim.name} has no replacement" for pair in picture.pairs if pair.replacement is None]
            cut = [NO_END] if point.open(node.name) else []
            return "; ".join([*missing, *whys, *cut]) or f"{node} is not known"
        if point.open(node.name):
            return NO_END
        if node.name in ("alert", "alert_fired"):
            return f"the state of {node.args[0]} is not known, or its silence proves nothing"
        gap = next(iter(picture.observations.watches.gaps), None)
        return f"{node} is not known" + (f": watch gap of {gap.resource}" if gap is not None else "")
    if any(point.open(node.name) for node in metrics):
        return NO_END
    return "requests of unknown Pods or watch gaps could tip it"


def _shown(node: Metric, value: Value, scopes: dict[Side, MetricScope], confident: bool) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    text = f"{value:.4g}"
    low, high = (scopes[side].value(node.name, node.args, node.window) for side in ("low", "high"))
    if isinstance(low, float) and isinstance(high, float) and low != high:
        text += f" [{low:.4g}, {high:.4g}]" + (" at 95 %" if confident else "")
    if node.name == "loss_on_victim":
        exposure = scopes["point"].exposure
        text += f" ({exposure.lost} of {exposure.exposed})"
    return text


def verdict(
    observations: Observations, run: RunFacts, findings: list[Finding], checks: list[CheckResult]
) -> tuple[Verdict, str]:
    """The run's verdict, and why. Precedence: rollback_failed, aborted, inconclusive run, failed, skipped check
    (inconclusive), passed."""
    undo = [row for row in observations.run.journal.values() if row.event == "undo_failed"]
    if undo:
        return "rollback_failed", f"{undo[0].fault} of {undo[0].target.name} could not be undone"
    if run.state == "aborted":
        return "aborted", run.reason or "the run was aborted"
    if run.state == "crashed":
        during = (
            "" if observations.run.event("aborting") is None else f", during an abort ({run.reason or 'no reason'})"
        )
        return "inconclusive", f"{NO_END}: the runner died, or is still running{during}"
    by_result = {result: [s for s in run.steps if s.result == result] for result in ("inconclusive", "failed")}
    for step in by_result["inconclusive"]:
        return "inconclusive", f"step {step.name or step.step}: {step.reason or 'inconclusive'}"
    for finding in findings:
        if finding.severity == "inconclusive":
            return "inconclusive", finding.text
    failed = [check for check in checks if check.verdict == "failed"]
    if failed:
        return "failed", "; ".join(check.check for check in failed)
    for step in by_result["failed"]:
        return "failed", f"step {step.name or step.step}: {step.reason or 'failed'}"
    for finding in findings:
        if finding.severity == "failure":
            return "failed", finding.text
    skipped = [check for check in checks if check.verdict == "skipped"]
    if skipped:
        return "inconclusive", "not proven: " + "; ".join(f"{check.check} ({check.reason})" for check in skipped)
    return "passed", f"all {len(checks)} checks passed" if checks else "no check failed"
