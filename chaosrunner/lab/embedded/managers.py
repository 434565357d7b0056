"""Who wrote a field last: `metadata.managedFields`, as a real server keeps it of updates and patches.

A field is its last writer's alone, and nobody's once it is gone; a write of the value that is there changes no writer.
Simpler than the real one: a list is one field, a map has no writer beside those of its fields, what an object was
created with has none yet, and the status never. (The form is that of metav1.ManagedFieldsEntry and FieldsV1: each key
of the path with `f:` before it.)
"""

from __future__ import annotations

from typing import Any

from chaosrunner.lab.objects import Json

Path = tuple[str, ...]

CONTROLLERS = "kube-controller-manager"
"""Writes what did not come over the API."""

_NOBODYS = ("apiVersion", "kind", "metadata", "status")


def fields_after(old: Json, new: Json, manager: str, now: str) -> list[Json]:
    """The managedFields of `new`, which `manager` has made of `old` at `now` (RFC 3339)."""
    before, after = _leaves(old), _leaves(new)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    owned: dict[str, tuple[Json, set[Path]]] = {
        entry["manager"]: (entry, _paths(entry["fieldsV1"])) for entry in old["metadata"].get("managedFields", ())
    }
    found = []
    if manager not in owned:
        owned[manager] = ({"manager": manager}, set())
    for name, (entry, paths) in owned.items():
        left = paths - changed
        if name == manager and changed & after.keys():
            left |= changed & after.keys()
            entry = {"manager": manager, "operation": "Update", "apiVersion": new["apiVersion"], "time": now}
        if left:
            found.append(entry | {"fieldsType": "FieldsV1", "fieldsV1": _tree(left)})
    return found


def _leaves(obj: Json) -> dict[Path, Any]:
    """Values by their paths, of what somebody may want of an object."""
    metadata = {key: value for key, value in obj["metadata"].items() if key in ("annotations", "finalizers", "labels")}
    found: dict[Path, Any] = {}
    _flatten({"metadata": metadata} | {key: value for key, value in obj.items() if key not in _NOBODYS}, (), found)
    return found


def _flatten(value: Any, path: Path, into: dict[Path, Any]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _flatten(item, (*path, key), into)
    else:
        into[path] = value


def _tree(paths: set[Path]) -> Json:
    tree: Json = {}
    for path in sorted(paths):
        at = tree
        for key in path:
            at = at.setdefault(f"f:{key}", {})
    return tree


def _paths(tree: Json, path: Path = ()) -> set[Path]:
    if not tree:
        return {path}
    return {found for key, below in tree.items() for found in _paths(below, (*path, key.removeprefix("f:")))}
