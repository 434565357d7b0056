"""Watching and nothing else: Pods, EndpointSlices, Nodes, PDBs, Events and alerts become rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chaosrunner.observers import endpoints, events, nodes, pdbs, pods
from chaosrunner.observers.observe import AlertScope, LastLook, ObserveScope, observe
from chaosrunner.timeline import rows

__all__ = ["CONVERTERS", "AlertScope", "LastLook", "ObserveScope", "observe", "to_row"]

CONVERTERS: Mapping[str, Callable[..., rows.Pod | rows.EndpointSlice | rows.Node | rows.Pdb | rows.Event]] = {
    "Pod": pods.to_row,
    "EndpointSlice": endpoints.to_row,
    "Node": nodes.to_row,
    "PodDisruptionBudget": pdbs.to_row,
    "Event": events.to_row,
}
"""By the Kubernetes kind of the object."""


def to_row(
    kind: str, obj: dict[str, Any], seen: rows.Seen, at: float, gap: int | None = None
) -> rows.Pod | rows.EndpointSlice | rows.Node | rows.Pdb | rows.Event:
    """An object of any observed kind as a row; pure. Raises KeyError for another kind."""
    return CONVERTERS[kind](obj, seen=seen, at=at, gap=gap)
