"""Other people's clocks on ours: a reported time becomes an interval of the recording's clock.

A sample says that the owner's clock showed `reported` (or up to `resolution` more: reported times are truncated)
somewhere in [sent, received]. So their clock minus ours lies in
[reported - received, reported + resolution - sent]; samples of one owner are intersected. Where they contradict
each other (the clock was stepped), their hull is taken. An owner without samples gets the default bound.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, NamedTuple

from chaosrunner.timeline.rows import Skew


class Interval(NamedTuple):
    """Seconds on the recording's clock: the instant lies in [low, high]."""

    low: float
    high: float


Order = Literal["before", "after", "indeterminate"]


def order(a: Interval, b: Interval) -> Order:
    """How a lies to b; `indeterminate` where the intervals touch: then no claim follows from the order."""
    if a.high < b.low:
        return "before"
    if b.high < a.low:
        return "after"
    return "indeterminate"


@lru_cache(maxsize=4096)
def unix(time: str) -> tuple[float, float]:
    """An RFC 3339 time as unix seconds, and its resolution: 1 s without a fraction, 1 µs with one.

    One without an offset is taken as UTC, never as local time. Raises ValueError if it is none.
    """
    parsed = datetime.fromisoformat(time)
    parsed = parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed
    return parsed.timestamp(), 1e-6 if "." in time else 1.0


class Clocks:
    """Estimates each owner's skew from `Skew` rows. The order of the rows does not matter."""

    def __init__(self, anchor: float, default_skew: float) -> None:
        self._anchor = anchor
        self._default = default_skew
        self._inner: dict[str, Interval] = {}
        self._hull: dict[str, Interval] = {}
        self.samples: dict[str, int] = {}

    def feed(self, row: Skew) -> None:
        low = row.reported - (self._anchor + row.received)
        high = row.reported + row.resolution - (self._anchor + row.sent)
        inner = self._inner.get(row.owner, Interval(low, high))
        hull = self._hull.get(row.owner, Interval(low, high))
        self._inner[row.owner] = Interval(max(inner.low, low), min(inner.high, high))
        self._hull[row.owner] = Interval(min(hull.low, low), max(hull.high, high))
        self.samples[row.owner] = self.samples.get(row.owner, 0) + 1

    def skew(self, owner: str, node: str | None = None) -> Interval:
        """Their clock minus ours, seconds. With a node, the clock of that owner on that node is preferred."""
        for name in ([f"{owner}/{node}", f"node/{node}"] if node else []) + [owner]:
            inner = self._inner.get(name)
            if inner is not None:
                return inner if inner.low <= inner.high else self._hull[name]
        return Interval(-self._default, self._default)

    def interval(self, time: str, owner: str, node: str | None = None) -> Interval:
        """Where the reported time lies on the recording's clock. Raises ValueError if it is no RFC 3339 time."""
        seconds, resolution = unix(time)
        at = seconds - self._anchor
        skew = self.skew(owner, node)
        return Interval(at - skew.high, at + resolution - skew.low)

    def at(self, time: str) -> float:
        """The reported time taken at its word: no skew, no resolution."""
        return unix(time)[0] - self._anchor
