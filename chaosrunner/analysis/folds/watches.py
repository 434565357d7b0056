"""Watch gaps: stretches in which nothing is known of a resource."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaosrunner.timeline.rows import Watch


@dataclass
class WatchGap:
    resource: str
    begin: float
    """Last proof of life before the gap."""
    end: float | None
    """None while it is open."""
    reason: str | None
    rows: list[int] = field(default_factory=list)


class Watches:
    """Gaps by resource (`pods`, `endpointslices`, `poddisruptionbudgets`, ...; as the rows name it)."""

    def __init__(self) -> None:
        self.gaps: list[WatchGap] = []
        self.listed: set[str] = set()
        self.forbidden: dict[str, Watch] = {}
        self._by_row: dict[int, WatchGap] = {}
        self._open: dict[str, WatchGap] = {}

    def feed(self, row: Watch) -> None:
        match row.event:
            case "listed":
                self.listed.add(row.resource)
            case "gap_opened" if row.resource not in self._open:
                begin = row.at if row.last_alive is None else row.last_alive
                gap = WatchGap(row.resource, begin, None, row.reason, [row.id])
                self.gaps.append(gap)
                self._open[row.resource] = self._by_row[row.id] = gap
            case "gap_closed" if row.resource in self._open:
                gap = self._open.pop(row.resource)
                gap.end = row.at
                gap.rows.append(row.id)
            case "forbidden":
                self.forbidden[row.resource] = row

    def begin_of(self, row: int | None, otherwise: float) -> float:
        """When the gap began that the `watch` row with this id opened."""
        gap = None if row is None else self._by_row.get(row)
        return otherwise if gap is None else gap.begin

    def open(self, resource: str) -> WatchGap | None:
        return self._open.get(resource)

    def overlapping(self, resource: str, begin: float, end: float) -> list[WatchGap]:
        """Gaps of the resource that touch [begin, end]."""
        return [
            gap
            for gap in self.gaps
            if gap.resource == resource and gap.begin <= end and (gap.end is None or gap.end >= begin)
        ]
