"""Rows into counters and histograms, at a cost of about a microsecond a row.

Rows come from the event loop's thread, which waits for nobody; whoever reads the figures, from another one, reads them
as they are. A scrape may so see a request in one histogram and not yet in the next; none is lost. Only the gaps between
chunks are counted by both threads, and so by one at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from threading import Lock
from typing import Any

import numpy as np

from chaosrunner.timeline import rows
from chaosrunner.timeline.outcomes import SUCCESSES, Outcome
from chaosrunner.timeline.rows import Row

TTFT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
WHOLE = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper edges of buckets, seconds, beside those that an SLO asks for."""

WAITING = 4096
"""Requests whose chunk gaps may wait to be counted; a scrape counts them, or the next request if none comes."""


class Histogram:
    """Values by bucket. An edge belongs to the bucket below it, as Prometheus has it (`le`)."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Iterable[float]) -> None:
        self.edges = sorted(set(edges))
        self.counts = [0] * (len(self.edges) + 1)
        """One for each edge, and one for what is above the last."""
        self.total = 0.0

    def add(self, value: float, find: Callable[[list[float], float], int] = bisect_left) -> None:
        self.counts[find(self.edges, value)] += 1
        self.total += value

    def add_all(self, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
        found = np.bincount(np.searchsorted(self.edges, values), minlength=len(self.counts))
        self.counts = [count + int(more) for count, more in zip(self.counts, found, strict=True)]
        self.total += float(values.sum())


class ProbeFold:
    """The figures of one probe. Latencies are those of the report: of successful requests, from the scheduled time
    where there is one, else from sending."""

    def __init__(self, edges: Mapping[str, Iterable[float]]) -> None:
        self.outcomes: dict[str, int] = dict.fromkeys((outcome.value for outcome in Outcome), 0)
        self.in_flight: set[str] = set()
        self.tokens = 0
        """Completion tokens of successes, by usage."""
        self.ttft = Histogram(edges["ttft"])
        self.tpot = Histogram(edges["tpot"])
        self.e2e = Histogram(edges["e2e"])
        self.chunk_gap = Histogram(edges["chunk_gap"])
        self._chunks: deque[list[float]] = deque()
        self._counting = Lock()

    def request(self, row: rows.Request) -> None:
        self.in_flight.discard(row.request)
        self.outcomes[row.outcome] += 1
        if row.outcome not in SUCCESSES:
            return
        zero = row.sent if row.scheduled is None else row.scheduled
        first, tokens = row.first_token, row.tokens
        self.e2e.add(row.at - zero)
        if first is not None:
            self.ttft.add(first - zero)
        if tokens is not None:
            self.tokens += tokens
            if tokens > 1 and first is not None and row.last_token is not None:
                self.tpot.add((row.last_token - first) / (tokens - 1))
        if row.chunks is not None and len(row.chunks) > 1:
            self._chunks.append(row.chunks)
            if len(self._chunks) > WAITING and self._counting.acquire(blocking=False):  # else a scrape is at it
                try:
                    self._count_gaps()
                finally:
                    self._counting.release()

    def count_gaps(self) -> None:
        """Counts the gaps of all requests so far: many at a time, since a request has as many as it has chunks."""
        with self._counting:
            self._count_gaps()

    def _count_gaps(self) -> None:
        waiting: list[list[float]] = []
        while self._chunks:
            waiting.append(self._chunks.popleft())
        if waiting:
            times = np.fromiter(chain.from_iterable(waiting), np.float64)
            inside = np.ones(len(times), dtype=bool)
            inside[np.cumsum([0, *map(len, waiting[:-1])])] = False  # no gap leads from one request to the next
            self.chunk_gap.add_all(np.diff(times, prepend=0.0)[inside])


class Fold:
    """The figures of one run.

    slos: of each probe, by name, limits in seconds (`ttft`, `tpot`, ...). Each limit is an edge of the buckets, in all
    probes alike, so that they can be added up.
    """

    def __init__(self, slos: Mapping[str, Mapping[str, float]]) -> None:
        def edges(name: str, usual: tuple[float, ...]) -> tuple[float, ...]:
            return (*usual, *(limits[name] for limits in slos.values() if name in limits))

        self._edges = {
            "ttft": edges("ttft", TTFT),
            "tpot": edges("tpot", PER_TOKEN),
            "e2e": edges("e2e", WHOLE),
            "chunk_gap": edges("chunk_gap", PER_TOKEN),
        }
        self.probes = {name: ProbeFold(self._edges) for name in slos}
        self.actions: dict[tuple[str, str], int] = {}
        """Answers to calls that change the cluster, by action and class of the answer; dry runs apart."""
        self.processes: dict[tuple[str, str], rows.Prober] = {}
        """The runner's processes, by probe and worker (both empty for the main one): how each last was."""
        self._feeds: dict[type, Callable[[Any], None]] = {
            rows.RequestSent: self._sent,
            rows.Request: self._request,
            rows.Action: self._action,
            rows.Prober: self._prober,
        }

    def feed(self, row: Row) -> None:
        feed = self._feeds.get(type(row))
        if feed is not None:
            feed(row)

    def _sent(self, row: rows.RequestSent) -> None:
        if not row.once:
            self.probes[row.probe].in_flight.add(row.request)

    def _request(self, row: rows.Request) -> None:
        if not row.once:
            self.probes[row.probe].request(row)

    def _action(self, row: rows.Action) -> None:
        if row.event == "answered" and not row.dry_run:
            key = row.action, row.answer or ""
            self.actions[key] = self.actions.get(key, 0) + 1

    def _prober(self, row: rows.Prober) -> None:
        self.processes[row.probe or "", "" if row.worker is None else str(row.worker)] = row
