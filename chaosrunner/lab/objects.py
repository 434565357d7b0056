"""Kubernetes objects as the lab holds them, plain dictionaries, and what is read off them in both labs."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
"""An object of the API, or a part of one."""


def condition(obj: Json, type_: str) -> Json | None:
    """The status condition of that type, or None."""
    for entry in obj.get("status", {}).get("conditions") or ():
        if entry["type"] == type_:
            return dict(entry)
    return None


def is_ready(pod: Json) -> bool:
    """Whether the Pod's condition Ready is True."""
    ready = condition(pod, "Ready")
    return ready is not None and ready["status"] == "True"


def is_terminating(obj: Json) -> bool:
    """Whether somebody has asked for the object's end."""
    return "deletionTimestamp" in obj["metadata"]


def has_ended(pod: Json) -> bool:
    """Whether the Pod's containers have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
