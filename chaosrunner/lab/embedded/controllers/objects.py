"""What the controllers read off Kubernetes objects."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from chaosrunner.lab.embedded.store import Store
from chaosrunner.lab.objects import Json, has_ended, is_terminating


def is_active(pod: Json) -> bool:
    """Neither ended nor being deleted: what a ReplicaSet counts as one of its replicas."""
    return not has_ended(pod) and not is_terminating(pod)


def controller_of(obj: Json) -> Json | None:
    """The owner reference with controller=true, or None."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return dict(owner)
    return None


def owned(store: Store, resource: str, owner: Json) -> list[Json]:
    """Objects of the owner's namespace that it controls."""
    uid = owner["metadata"]["uid"]
    found = []
    for obj in store.list(resource, owner["metadata"]["namespace"]):
        reference = controller_of(obj)
        if reference is not None and reference["uid"] == uid:
            found.append(obj)
    return found


def owner_reference(owner: Json) -> Json:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def scaled(value: Any, total: int, *, up: bool) -> int:
    """An IntOrString of `total`: a percentage is rounded up or down to whole Pods."""
    if isinstance(value, str) and value.endswith("%"):
        share = total * int(value[:-1]) / 100
        return math.ceil(share) if up else math.floor(share)
    return int(value)


def instant(text: str) -> datetime:
    """An RFC 3339 time in UTC."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)


def set_condition(conditions: list[Json], new: Json) -> None:
    """Replace the condition of the same type, or append; lastTransitionTime stays while the status does."""
    for index, old in enumerate(conditions):
        if old["type"] == new["type"]:
            if old["status"] == new["status"]:
                new = new | {"lastTransitionTime": old["lastTransitionTime"]}
            conditions[index] = new
            return
    conditions.append(new)
