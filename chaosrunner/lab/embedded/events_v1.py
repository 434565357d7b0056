"""events.k8s.io/v1 as the second view of v1 Events: the same objects under other field names."""

from __future__ import annotations

from chaosrunner.lab.objects import Json

_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_BACK = {new: old for old, new in _NAMES.items()}


def to_v1(event: Json) -> Json:
    """The events.k8s.io/v1 form of a v1 Event."""
    return {_NAMES.get(name, name): value for name, value in event.items()} | {"apiVersion": "events.k8s.io/v1"}


def from_v1(event: Json) -> Json:
    """The v1 form of an events.k8s.io/v1 Event."""
    return {_BACK.get(name, name): value for name, value in event.items()} | {"apiVersion": "v1"}
