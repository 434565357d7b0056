"""Evictions and the budgets that they meet."""

from __future__ import annotations

from collections.abc import Iterator

from chaosrunner.analysis.facts import Finding, Severity
from chaosrunner.analysis.findings.base import finding
from chaosrunner.analysis.folds.actions import BUDGET_HELD, Call
from chaosrunner.analysis.folds.pods import PodState
from chaosrunner.analysis.picture import Picture

SETTLE = 0.25
"""Seconds by which a change of a budget may reach us later than the answer of the eviction that used it."""

SPENT_WITHIN = 10.0
"""Seconds after an accepted eviction by which a budget that was charged has shown it."""


def budgets(picture: Picture) -> Iterator[Finding]:
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
            late = budgets.between(pdb.uid, call.at, call.answered.at + SPENT_WITHIN)
            hidden = picture.observations.watches.overlapping("poddisruptionbudgets", pdb.at, call.answered.at + SETTLE)
            opened = any((row.allowed or 0) > 0 for row in near)
            spent = any(call.sent.target.name in row.disrupted_times for row in late)
            if not (opened or spent or hidden):
                text = (
                    f"the eviction of {call.sent.target.name} was accepted although the budget {pdb.name} allowed "
                    "no disruption: the API server does not enforce it"
                )
                yield finding("budget_not_enforced", "failure", text, [pdb.id, *call.rows])


def evictions(picture: Picture) -> Iterator[Finding]:
    blocked: dict[str, list[Call]] = {}
    for call in picture.observations.actions.calls:
        result = call.result
        name = call.sent.target.name
        if call.sent.action not in ("evict", "delete_pod"):
            continue
        if result.ok is None and call.disrupts and call.pod is not None:
            yield _concluded(call, call.pod)
        if result.answer == "precondition_failed" and call.sent.action == "evict" and not call.sent.dry_run:
            yield _held(picture, call)
        elif result.answer == "multiple_budgets":
            pdbs = ", ".join(sorted(call.pdbs)) or "several budgets"
            text = f"{name} is under {pdbs}; the API server answers 500 for ever: overlapping budgets, not an outage"
            severity: Severity = "info" if result.expected else "failure"
            yield finding("overlapping_budgets", severity, text, call.rows, "let one budget match each Pod")
        elif result.answer == "blocked_by_budget" and call.self_inflicted and call.held_by is not None:
            holder = call.held_by.sent.target.name
            text = f"the 429 for {name} is our own doing: our failed eviction of {holder} holds the budget"
            yield finding("self_inflicted_429", "info", text, [*call.rows, *call.held_by.rows])
        elif result.answer == "blocked_by_budget" and result.expected is False:
            blocked.setdefault(name, []).append(call)
    for name, calls in blocked.items():
        pdbs = ", ".join(sorted(set().union(*(call.pdbs for call in calls)))) or "its budget"
        when = f"{len(calls)} times, {calls[0].at:.1f} to {calls[-1].at:.1f} s"
        text = f"{pdbs} did not allow the eviction of {name} ({when})"
        yield finding("blocked_by_budget", "warning", text, [row for call in calls for row in call.rows])


def _concluded(call: Call, pod: PodState) -> Finding:
    """A removal whose answer told nothing, or never came, and that counts for what was seen of the Pod after it."""
    moments = [(pod.gone.high, pod.gone.row)] if pod.gone is not None else []
    if pod.deletion is not None and pod.deletion.at >= call.at:
        moments.append((pod.deletion.at, pod.deletion.id))
    seen, row = min(moments)
    what = "eviction" if call.sent.action == "evict" else "delete"
    text = (
        f"no answer told what became of the {what} of {call.sent.target.name} "
        f"({call.result.message or call.result.answer}), and {seen - call.at:.2f} s after it was sent the Pod was seen "
        "to go: it counts as accepted"
    )
    return finding("accepted_by_effect", "info", text, [*call.rows, row])


def _held(picture: Picture, call: Call) -> Finding:
    """Graded by what the budget's own rows show: charged, charged and let go again, or neither."""
    name = call.sent.target.name
    answered = (call.answered or call.sent).at
    until = answered + BUDGET_HELD
    pdbs = ", ".join(sorted(call.pdbs)) or "its budget"
    calls = picture.observations.actions.calls
    # From another eviction of this Pod on, it is that one that charges.
    again = min((c.at for c in calls if c.at > call.at and c.sent.target.name == name and c.disrupts), default=until)
    hold = picture.observations.budgets.hold(name, call.at, min(until, again))
    rows, failed = list(call.rows), f"the eviction of {name} failed its precondition"
    if hold is None:
        text = (
            f"{failed}; the API server charges a budget before it checks: {pdbs} may be held by our failed eviction "
            f"until {until:.0f} s (two minutes)"
        )
    else:
        rows.append(hold.charged.id)
        text = f"{failed} after {pdbs} had been charged: the budget "
        if hold.released is None:
            text += f"is held by our failed eviction until {until:.0f} s (two minutes)"
        else:
            rows.append(hold.released.id)
            text += f"was held by our failed eviction until {hold.released.at:.1f} s"
    advice = "a 429 on this budget until then says nothing about the workload"
    return finding("budget_held_by_our_eviction", "warning", text, rows, advice)
