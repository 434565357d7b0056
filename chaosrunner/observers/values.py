"""Reading objects in which anything optional may be absent or null."""

from __future__ import annotations

from typing import TypedDict

from chaosrunner.cluster.resources import Object, meta
from chaosrunner.timeline import rows


class Identity(TypedDict):
    """The fields of `rows.Observed`."""

    at: float
    seen: rows.Seen
    gap: int | None
    name: str
    uid: str
    version: str
    namespace: str | None


def identity(obj: Object, seen: rows.Seen, at: float, gap: int | None) -> Identity:
    metadata = meta(obj)
    return Identity(
        at=at,
        seen=seen,
        gap=gap,
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        version=text(metadata.get("resourceVersion")),
        namespace=metadata.get("namespace"),
    )


def part(obj: Object, *path: str) -> Object:
    """The object at a path; empty where it, or anything above it, is absent or null."""
    for key in path:
        obj = obj.get(key) or {}
    return obj


def text(value: object) -> str:
    return "" if value is None else str(value)


def conditions(status: Object) -> list[rows.Condition]:
    """All conditions; heartbeat times, which change without any news, are left out."""
    return [
        rows.Condition(
            type=text(condition.get("type")),
            status=text(condition.get("status")),
            reason=condition.get("reason"),
            message=condition.get("message") or None,
            transition_time=condition.get("lastTransitionTime"),
        )
        for condition in status.get("conditions") or []
    ]
