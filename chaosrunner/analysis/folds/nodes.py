"""Nodes: when they were not Ready. Heartbeats, where a recording has them, say nothing new."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaosrunner.analysis.clocks import Clocks, Interval
from chaosrunner.analysis.folds.watches import Watches
from chaosrunner.timeline.rows import Node


@dataclass
class NodeOutage:
    """A node was not Ready from `begin` on: known by its arrival; in [low, begin] where a gap hides the instant, -inf
    where it was so in the first row."""

    node: str
    begin: float
    low: float
    ready: str
    """Unknown: its kubelet gave no sign of life. False: it says so itself."""
    reason: str | None
    heartbeat: Interval | None
    """When its kubelet last gave a sign of life by its status."""
    rows: list[int] = field(default_factory=list)
    end: float | None = None
    """When it was Ready again; None: not while the recording lasted."""


class Nodes:
    def __init__(self, clocks: Clocks, watches: Watches) -> None:
        self._clocks = clocks
        self._watches = watches
        self._last: dict[str, Node] = {}
        self._open: dict[str, NodeOutage] = {}
        self.outages: list[NodeOutage] = []

    def feed(self, row: Node) -> None:
        before, self._last[row.name] = self._last.get(row.name), row
        outage = self._open.get(row.name)
        if row.ready in ("Unknown", "False"):
            if outage is None:
                self._begin(before, row)
            elif outage.ready != row.ready:
                outage.rows.append(row.id)
        elif outage is not None and row.ready == "True":
            outage.end = row.at
            outage.rows.append(row.id)
            del self._open[row.name]

    def _begin(self, before: Node | None, row: Node) -> None:
        reason = next((c.reason for c in row.conditions if c.type == "Ready"), None)
        heartbeat = None
        if row.heartbeat_time is not None:
            known = self._clocks.interval(row.heartbeat_time, "kubelet", row.name)
            heartbeat = Interval(min(known.low, row.at), min(known.high, row.at))
        low = self._watches.begin_of(row.gap, row.at) if before is not None else float("-inf")
        assert row.ready is not None
        outage = NodeOutage(row.name, row.at, low, row.ready, reason, heartbeat, [row.id])
        self._open[row.name] = outage
        self.outages.append(outage)
