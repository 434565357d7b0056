"""How requests were lost, in words."""

from __future__ import annotations

from chaosrunner.analysis.facts import Facts, LostRequest
from chaosrunner.reports.format import one_line, plural, seconds

_NOUNS = {"evict": "eviction", "delete_pod": "deletion"}


def fault_name(facts: Facts, action: int) -> str:
    """What we call the fault that was sent with this row."""
    names = {row: item.action for item in facts.evictions for row in item.evidence}
    return _NOUNS.get(names.get(action, ""), "fault")


def losses(facts: Facts, *, alone: bool = False) -> list[str]:
    """How requests were lost, in words: those that are alike in one line; HTTP 200 first, then the most.

    alone: of a probe without a cluster, where nobody speaks of Pods that the answer does not name.
    """
    groups: dict[tuple[str, int | None, str, str], list[LostRequest]] = {}
    for lost in facts.lost_requests:
        where, when = (f"on {lost.pod}" if lost.pod else "", "") if alone else _where(facts, lost)
        groups.setdefault((lost.outcome, lost.status, where, when), []).append(lost)
    lines = []
    for (outcome, status, where, when), requests in sorted(
        groups.items(), key=lambda group: (group[0][1] != 200, -len(group[1]))
    ):
        text = f"{len(requests)} × {outcome}" + (f", HTTP {status}" if status else "") + (f", {where}" if where else "")
        after = [lost.after_action for lost in requests if lost.after_action is not None]
        if after and when:
            low, high = seconds(min(after)), seconds(max(after))
            text += f", {low if low == high else f'{low} to {high}'} {when}"
        errors = list(dict.fromkeys(one_line(lost.error, 70) for lost in requests if lost.error))
        if errors:
            text += f": {errors[0]}" + (f" (and {plural(len(errors) - 1, 'other text')})" if errors[1:] else "")
        lines.append(text)
    return lines


def _where(facts: Facts, lost: LostRequest) -> tuple[str, str]:
    """Where a request was lost, and after what."""
    fault = fault_name(facts, lost.action) if lost.action else ""
    if lost.same_pod:
        return "on the victim", f"after its {fault}"
    when = f"after the {fault} of {lost.action_pod}" if fault else ""
    return ("on another Pod" if lost.pod else "on an unknown Pod"), when
