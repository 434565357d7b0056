"""events.k8s.io/v1 as the second view of v1 Events: the same objects under other field names."""

from __future__ import annotations

from chaosrunner.lab.embedded import errors
from chaosrunner.lab.embedded.resources import Resource
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
    shown = {_NAMES.get(name, name): value for name, value in event.items()} | {"apiVersion": "events.k8s.io/v1"}
    for name in ("reportingController", "reportingInstance"):
        if not shown.get(name):
            shown.pop(name, None)
    return shown


def from_v1(event: Json) -> Json:
    """The v1 form of an events.k8s.io/v1 Event. ApiError 422 for one that lacks what only this group demands."""
    causes = []
    if not event.get("eventTime"):
        causes.append(("FieldValueRequired", "eventTime", "Required value"))
    if event.get("type") not in ("Normal", "Warning"):
        causes.append(("FieldValueInvalid", "type", f'Invalid value: "": has invalid value: {event.get("type", "")}'))
    if causes:
        raise errors.invalid(Resource("events", "Event"), event["metadata"].get("name", ""), causes)
    return {_BACK.get(name, name): value for name, value in event.items()} | {"apiVersion": "v1"}
