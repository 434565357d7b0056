"""The analysis while a run lasts: the same folds, fed row by row."""

from __future__ import annotations

from chaosrunner.analysis.analyse import facts
from chaosrunner.analysis.context import AnalysisContext
from chaosrunner.analysis.facts import Facts
from chaosrunner.analysis.folds.pods import PodState
from chaosrunner.analysis.observations import Observations
from chaosrunner.analysis.picture import Picture
from chaosrunner.analysis.placement import serving
from chaosrunner.analysis.scope import MetricScope
from chaosrunner.timeline.rows import Row


class Live:
    """Takes rows in the order of their ids (subscribe `feed` to the writer) and answers at any time."""

    def __init__(self, context: AnalysisContext) -> None:
        self.context = context
        self.observations = Observations(context)
        self._picture: tuple[int, float, Picture] | None = None

    def feed(self, row: Row) -> None:
        self.observations.feed(row)

    def picture(self, now: float | None = None) -> Picture:
        """What follows from the rows so far; `now` (default: the last row's time) in seconds."""
        at = self.observations.last_at if now is None else now
        key = self.observations.rows
        if self._picture is None or self._picture[:2] != (key, at):
            self._picture = (key, at, Picture(self.observations, at))
        return self._picture[2]

    def scope(self, target: str | None = None, *, now: float | None = None) -> MetricScope:
        """Values for an expression at `now`; `target` is the UID of the Pod that `in_flight(target)` means."""
        return MetricScope(self.picture(now), target=target)

    def facts(self) -> Facts:
        """All facts so far, as `analyse` would give for a recording of these rows."""
        return facts(self.picture())

    def in_flight(self, uid: str | None = None) -> int:
        """Requests sent and not ended: all, or those on this Pod, as `in_flight_by_pod` places them."""
        if uid is None:
            return len(self.observations.flight.requests)
        return self.in_flight_by_pod().get(uid, 0)

    def in_flight_by_pod(self) -> dict[str, int]:
        """Pod UID -> requests in flight on it: by the response header or, where the probe has none, the peer's address.

        Requests without headers yet are on no Pod.
        """
        counts: dict[str, int] = {}
        for flying in self.observations.flight.requests.values():
            pod = serving(flying, self.observations.pods, self.context)
            if pod is not None:
                counts[pod.uid] = counts.get(pod.uid, 0) + 1
        return counts

    def pods(self) -> list[PodState]:
        """Pods of the workload that are not gone, as last seen."""
        matches = self.context.selector.matches
        return [pod for pod in self.observations.pods.all if pod.last and pod.gone is None and matches(pod.labels)]

    def replacements(self) -> list[PodState]:
        return self.picture().replacements
