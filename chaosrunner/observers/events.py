"""Kubernetes Events as rows: an interval and a count, however the reporter filled its five time fields."""

from __future__ import annotations

from chaosrunner.cluster.resources import Object, meta
from chaosrunner.observers.values import identity, part
from chaosrunner.timeline import rows

MICRO = 1e-6
SECOND = 1.0


def to_row(obj: Object, *, seen: rows.Seen, at: float, gap: int | None = None) -> rows.Event:
    """One Event, in the core or the events.k8s.io spelling.

    Its last time is the first that is there of series.lastObservedTime, lastTimestamp, eventTime, firstTimestamp,
    creationTimestamp; its first time of firstTimestamp, eventTime, and then the last time. MicroTime fields tick in
    microseconds, the others in seconds; `resolution` is the last time's.
    """
    series = part(obj, "series")
    involved = part(obj, "involvedObject") or part(obj, "regarding")
    source = part(obj, "source") or part(obj, "deprecatedSource")
    first_time = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp")
    last, resolution = next(
        (
            (value, ticks)
            for value, ticks in (
                (series.get("lastObservedTime"), MICRO),
                (obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp"), SECOND),
                (obj.get("eventTime"), MICRO),
                (first_time, SECOND),
                (meta(obj).get("creationTimestamp"), SECOND),
            )
            if value
        ),
        (None, SECOND),
    )
    return rows.Event(
        **identity(obj, seen, at, gap),
        reason=obj.get("reason"),
        message=obj.get("message") or obj.get("note"),
        type=obj.get("type"),
        count=int(series.get("count") or obj.get("count") or obj.get("deprecatedCount") or 1),
        object_kind=involved.get("kind"),
        object_name=involved.get("name"),
        object_uid=involved.get("uid"),
        component=source.get("component") or obj.get("reportingComponent") or obj.get("reportingController") or None,
        host=source.get("host") or obj.get("reportingInstance") or None,
        first_time=first_time or obj.get("eventTime") or last,
        last_time=last,
        resolution=resolution,
    )


class Interest:
    """Which Events are about the drill: those about objects that it knows, and about what their controllers make.

    Watches of different kinds have no mutual order: an Event about a new Pod may come before the Pod. So names
    count as well as UIDs: everything under a root controller is named after it.
    """

    def __init__(self, nodes: frozenset[str] | None = None) -> None:
        """`nodes`: names, None for all."""
        self._uids: set[str] = set()
        self._names: set[str] = set()
        self._nodes = nodes

    def add(self, pod: rows.Pod) -> None:
        """A Pod of the workload, and with it all that its owners make."""
        self._uids.add(pod.uid)
        for owner in (pod.owner, pod.root):
            if owner is not None:
                self._uids.add(owner.uid)
                self._names.add(owner.name)

    def add_name(self, name: str) -> None:
        self._names.add(name)

    def covers(self, event: rows.Event) -> bool:
        if event.object_uid in self._uids:
            return True
        name = event.object_name or ""
        if event.object_kind == "Node":
            return self._nodes is None or name in self._nodes
        if event.object_kind == "PodDisruptionBudget":
            return True
        return name in self._names or any(name.startswith(f"{known}-") for known in self._names)
