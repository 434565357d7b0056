"""Endpoints of the Service: slices merged by Pod UID, and how many of them were ready when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chaosrunner.analysis.folds.watches import Watches
from chaosrunner.timeline.rows import Endpoint, EndpointSlice, Watch

RESOURCE = "endpointslices"


@dataclass(frozen=True)
class Point:
    """From `at` on, `ready` endpoints were ready; None: not known (a watch gap)."""

    at: float
    ready: int | None
    row: int


@dataclass(frozen=True)
class Change:
    """An endpoint's readiness as first seen at `at`; `low` is earlier where a gap hides the instant."""

    at: float
    low: float
    ready: bool
    row: int


class Endpoints:
    """Merges slices. An endpoint may briefly be in two of them: the one that was written last is believed."""

    def __init__(self, watches: Watches, service: str | None) -> None:
        self._watches = watches
        self._service = service
        self._slices: dict[str, dict[str, bool]] = {}
        """Slice -> endpoint -> ready."""
        self._written: dict[str, int] = {}
        """Slice -> id of the row that last wrote it."""
        self._holders: dict[str, set[str]] = {}
        """Endpoint -> slices that have it."""
        self._shared: set[str] = set()
        """Endpoints in several slices: whenever one of these is written, another one may be believed."""
        self._ready: set[str] = set()
        self._versions: dict[str, set[str]] = {}
        self._gone: set[str] = set()
        self._settling = False
        """True while the rows of one list come in: they describe one instant."""
        self.history: list[Point] = []
        self.changes: dict[str, list[Change]] = {}
        """By Pod UID (or name, or address, where an endpoint has none)."""

    @property
    def ready(self) -> int | None:
        """Ready endpoints now; None where not known."""
        return self.history[-1].ready if self.history else None

    @property
    def ready_keys(self) -> frozenset[str]:
        return frozenset(self._ready)

    def feed_watch(self, row: Watch) -> None:
        if row.resource != RESOURCE:
            return
        if row.event == "listed" and not self.history and (self._slices or row.items == 0):
            self._point(row.at, row.id)
            self._settling = True
        elif row.event == "gap_opened" and self.history and self.history[-1].ready is not None:
            begin = row.at if row.last_alive is None else max(row.last_alive, self.history[-1].at)
            self.history.append(Point(begin, None, row.id))
        elif row.event == "gap_closed" and self.history and self.history[-1].ready is None:
            self._point(row.at, row.id)
            self._settling = True

    def feed(self, row: EndpointSlice) -> None:
        if self._service is not None and row.service is not None and row.service != self._service:
            return
        leaving = row.seen in ("DELETED", "VANISHED")
        versions = self._versions.setdefault(row.uid, set())
        if row.uid in self._gone or (row.version != "" and row.version in versions and not leaving):
            return
        versions.add(row.version)
        if leaving:
            self._gone.add(row.uid)
        listed = row.seen in ("LISTED", "RELISTED", "VANISHED")
        low = self._watches.begin_of(row.gap, row.at)
        old = self._slices.pop(row.uid, {})
        new = {} if leaving else {key: _ready(e) for e in row.endpoints if (key := _key(e)) is not None}
        if not leaving:
            self._slices[row.uid] = new
        self._written[row.uid] = row.id
        for key in {key for key, _ in old.items() ^ new.items()} | self._shared:
            self._hold(key, row.uid, key in new)
            self._judge(key, Change(row.at, low, False, row.id))
        inside_gap = bool(self.history) and self.history[-1].ready is None
        if inside_gap:
            return
        if self._settling and listed and self.history:
            self.history[-1] = Point(self.history[-1].at, len(self._ready), self.history[-1].row)
        else:
            self._settling = listed
            self._point(row.at, row.id)

    def _hold(self, key: str, slice_: str, held: bool) -> None:
        holders = self._holders.setdefault(key, set())
        (holders.add if held else holders.discard)(slice_)
        (self._shared.add if len(holders) > 1 else self._shared.discard)(key)

    def _judge(self, key: str, change: Change) -> None:
        holders = self._holders[key]
        ready = bool(holders) and self._slices[max(holders, key=self._written.__getitem__)][key]
        if ready == (key in self._ready):
            return
        (self._ready.add if ready else self._ready.discard)(key)
        self.changes.setdefault(key, []).append(Change(change.at, change.low, ready, change.row))

    def _point(self, at: float, row: int) -> None:
        ready = len(self._ready)
        if not self.history or self.history[-1].ready != ready:
            self.history.append(Point(at, ready, row))

    def first_ready(self, uid: str) -> Change | None:
        """When the Pod's endpoint was first ready."""
        return next((change for change in self.changes.get(uid, ()) if change.ready), None)

    def not_ready_after(self, uid: str, at: float) -> Change | None:
        """The first change of the Pod's endpoint to not ready (or absent) at or after `at`."""
        return next((c for c in self.changes.get(uid, ()) if not c.ready and c.at >= at), None)

    def ready_at(self, uid: str, at: float) -> bool:
        """Whether the Pod's endpoint was ready at `at`, as far as was seen."""
        state = False
        for change in self.changes.get(uid, ()):
            if change.at > at:
                break
            state = change.ready
        return state

    def segments(self, end: float) -> Iterator[tuple[float, float, int | None, int]]:
        """(begin, end, ready, row id), without holes, from the first knowledge to `end`."""
        for index, point in enumerate(self.history):
            until = self.history[index + 1].at if index + 1 < len(self.history) else end
            if until > point.at or index + 1 == len(self.history):
                yield point.at, max(point.at, until), point.ready, point.row


def _ready(endpoint: Endpoint) -> bool:
    """Ready as Services without publishNotReadyAddresses mean it; those with it call every endpoint ready."""
    return endpoint.ready and endpoint.serving and not endpoint.terminating


def _key(endpoint: Endpoint) -> str | None:
    return endpoint.uid or endpoint.pod or (endpoint.addresses[0] if endpoint.addresses else None)
