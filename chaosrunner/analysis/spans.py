"""Instants and spans as facts."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from chaosrunner.analysis.facts import EVIDENCE_LIMIT, Milestone, Span
from chaosrunner.analysis.folds.pods import Moment

UNKNOWN = Span(value=None, low=None, high=None)


def evidence(rows: Iterable[int]) -> list[int]:
    """Row ids, ascending, each once, cut to the limit."""
    return sorted(set(rows))[:EVIDENCE_LIMIT]


def milestone(moment: Moment) -> Milestone:
    """A moment that a row showed."""
    why = None
    if moment.at is None:
        why = "before the first row of it" if not isfinite(moment.low) else "known only to lie in this window"
    return Milestone(
        at=moment.at,
        low=moment.low if isfinite(moment.low) else None,
        high=moment.high,
        sent=None,
        why=why,
        evidence=[moment.row],
    )


def never(why: str) -> Milestone:
    """Something that did not happen, or of which nothing is known."""
    return Milestone(at=None, low=None, high=None, sent=None, why=why, evidence=[])


def between(begin: Milestone | float, end: Milestone) -> Span:
    """Seconds from one instant to another. `value` only where both are known, the window where it is bounded."""
    at, low, high = (begin.at, begin.low, begin.high) if isinstance(begin, Milestone) else (begin, begin, begin)
    if high is None or end.high is None:
        return UNKNOWN
    return Span(
        value=None if at is None or end.at is None else end.at - at,
        low=None if end.low is None else end.low - high,
        high=None if low is None else end.high - low,
    )


def worst(spans: list[Span]) -> Span:
    """The longest; unknown while one of them is."""
    if not spans:
        return UNKNOWN
    values = [span.value for span in spans]
    lows = [span.low for span in spans]
    highs = [span.high for span in spans]
    return Span(value=_most(values), low=_most(lows), high=_most(highs))


def _most(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None
