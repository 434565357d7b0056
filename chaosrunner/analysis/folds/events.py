"""Kubernetes Events about Pods, by the Pods' UIDs."""

from __future__ import annotations

from chaosrunner.analysis.clocks import Clocks, Interval
from chaosrunner.timeline.rows import Event


class Events:
    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._by_uid: dict[str, list[Event]] = {}

    def feed(self, row: Event) -> None:
        if row.object_kind == "Pod" and row.object_uid is not None:
            self._by_uid.setdefault(row.object_uid, []).append(row)

    def of(self, uid: str, reason: str) -> list[Event]:
        """Events of one reason about a Pod, in the order of their arrival."""
        return [row for row in self._by_uid.get(uid, ()) if row.reason == reason]

    def interval(self, row: Event) -> Interval:
        """When it last happened, by the reporter's clock; not after it was received."""
        if row.last_time is None:
            return Interval(float("-inf"), row.at)
        known = self._clocks.interval(row.last_time, row.component or "", row.host)
        return Interval(min(known.low, row.at), min(known.high, row.at))
