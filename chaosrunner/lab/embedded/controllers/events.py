"""Kubernetes Events as the components of a real cluster write them, repeated ones counted."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from chaosrunner.lab.embedded.store import ApiError, Store, timestamp
from chaosrunner.lab.objects import Json


def micro_time(instant: datetime) -> str:
    """A `metav1.MicroTime`: RFC 3339 in UTC with six decimals."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def event_name(about: str) -> str:
    """`NAME.HEX`, the hexadecimal number being nanoseconds since 1970, as client-go's recorder names events."""
    return f"{about}.{time.time_ns():x}"


class Recorder:
    """Writes core/v1 Events of one component. The same event again raises `count` and `lastTimestamp`."""

    def __init__(self, store: Store, component: str, host: str = "") -> None:
        self._store = store
        self._component = component
        self._host = host
        self._seen: dict[tuple[Any, ...], str] = {}

    def normal(self, obj: Json, reason: str, message: str, field_path: str = "") -> None:
        self._record(obj, "Normal", reason, message, field_path)

    def warning(self, obj: Json, reason: str, message: str, field_path: str = "") -> None:
        self._record(obj, "Warning", reason, message, field_path)

    def _record(self, obj: Json, type_: str, reason: str, message: str, field_path: str) -> None:
        meta = obj["metadata"]
        namespace = meta.get("namespace") or "default"
        same = (meta.get("uid"), namespace, meta["name"], field_path, type_, reason, message)
        now = timestamp(self._store.now())
        name = self._seen.get(same)
        if name is not None and self._store.find("events", name, namespace) is not None:

            def again(event: Json) -> None:
                event["count"] += 1
                event["lastTimestamp"] = now

            self._store.mutate("events", name, namespace, again)
            return
        source = {"component": self._component} | ({"host": self._host} if self._host else {})
        event = {
            "metadata": {"name": event_name(meta["name"]), "namespace": namespace},
            "involvedObject": reference(obj) | ({"fieldPath": field_path} if field_path else {}),
            "reason": reason,
            "message": message,
            "source": source,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": type_,
            "eventTime": None,
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }
        # An Event that cannot be written (its namespace goes away) is dropped, as in any cluster.
        try:
            self._store.create("events", event)
        except ApiError:
            return
        self._seen[same] = event["metadata"]["name"]  # type: ignore[index]


def reference(obj: Json) -> Json:
    """The `v1.ObjectReference` of an object, without what it does not have."""
    meta = obj["metadata"]
    fields = {
        "kind": obj["kind"],
        "namespace": meta.get("namespace"),
        "name": meta["name"],
        "uid": meta.get("uid"),
        "apiVersion": obj["apiVersion"],
        "resourceVersion": meta.get("resourceVersion"),
    }
    return {name: value for name, value in fields.items() if value}


def record_scheduler_event(store: Store, pod: Json, type_: str, reason: str, action: str, note: str) -> None:
    """An Event of the scheduler, which alone of the components here uses events.k8s.io/v1: eventTime, no count."""
    meta = pod["metadata"]
    event = {
        "metadata": {"name": event_name(meta["name"]), "namespace": meta["namespace"]},
        "involvedObject": reference(pod),
        "reason": reason,
        "message": note,
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "type": type_,
        "eventTime": micro_time(store.now()),
        "action": action,
        "reportingComponent": "default-scheduler",
        "reportingInstance": "default-scheduler-lab",
    }
    try:
        store.create("events", event)
    except ApiError:
        return
