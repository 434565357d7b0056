"""The patches of the Kubernetes API as pure functions: none of them changes its arguments.

- `merge_patch`: RFC 7386
- `json_patch`: RFC 6902
- `strategic_merge`: Kubernetes' own: lists of objects merge by a key, with `$patch` directives. Server-side apply uses
  it too, as an update: who applied which field is not kept, so an apply adds and changes, and never removes.
"""

from __future__ import annotations

from typing import Any

from chaosrunner.lab.embedded.errors import bad_request, rejected_patch
from chaosrunner.lab.objects import Json

MERGE_KEYS: dict[str, str] = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "hostIPs": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "ports": "containerPort",
    "secrets": "name",
    "taints": "key",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Merge key of each list of objects that merges (`patchMergeKey` in the API types); all other lists are replaced."""
MERGED_SETS = ("finalizers", "podCIDRs")
"""Lists of plain values that merge (`patchStrategy=merge` without a key)."""


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes a member, objects merge, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def strategic_merge(target: Json, patch: Json, *, service: bool = False) -> Json:
    """Apply a strategic merge patch. `service`: the lists named `ports` belong to a Service and merge by `port`."""
    directive = patch.get("$patch")
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if directive == "delete":
        return {}
    retained = patch.get("$retainKeys")
    merged = {name: value for name, value in target.items() if retained is None or name in retained}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            merged[field] = [item for item in merged.get(field, ()) if item not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            present = merged.get(name)
            merged[name] = strategic_merge(present if isinstance(present, dict) else {}, value, service=service)
        elif isinstance(value, list):
            merged[name] = _merge_list(name, merged.get(name) or [], value, service)
        else:
            merged[name] = value
    return merged


def _merge_list(field: str, target: list[Any], patch: list[Any], service: bool) -> list[Any]:
    if field in MERGED_SETS:
        return [*target, *(item for item in patch if item not in target)]
    key = "port" if service and field == "ports" else MERGE_KEYS.get(field)
    plain = [item for item in patch if not (isinstance(item, dict) and item.get("$patch") == "replace")]
    if len(plain) < len(patch):
        return plain
    items = [item for item in patch if isinstance(item, dict)]
    if key is None or len(items) < len(patch) or any(key not in item for item in items):
        return patch
    merged = {item.get(key): item for item in target}
    places = {name: place for place, name in enumerate(merged)}
    for item in items:
        if item.get("$patch") == "delete":
            merged.pop(item[key], None)
        else:
            merged[item[key]] = strategic_merge(merged.get(item[key], {}), item, service=service)
    patched = [item[key] for item in items if item[key] in merged]
    return [merged[name] for name in _in_order(patched, places, [name for name in merged if name not in patched])]


def _in_order(patched: list[Any], places: dict[Any, int], others: list[Any]) -> list[Any]:
    """The patch's own order, the others put in where they stood; what is new (no place yet) goes before what is left.

    k8s.io/apimachinery/pkg/util/strategicpatch, normalizeElementOrder and mergeSortedSlice.
    """
    found = []
    for name in patched:
        while others and places[others[0]] <= places.get(name, -1):
            found.append(others.pop(0))
        found.append(name)
    return found + others


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902. ApiError 400 if it is no list of operations, 422 if one cannot be applied or a `test` fails."""
    if not isinstance(operations, list) or not all(isinstance(entry, dict) for entry in operations):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        )
    for entry in operations:
        target = _operate(target, entry)
    return target


def _operate(target: Any, entry: Json) -> Any:
    path = _pointer(entry.get("path"))
    match entry.get("op"):
        case "add":
            return _edit(target, path, "add", entry["value"] if "value" in entry else _refuse())
        case "replace":
            return _edit(target, path, "replace", entry["value"] if "value" in entry else _refuse())
        case "remove":
            return _edit(target, path, "remove")
        case "move":
            source = _pointer(entry.get("from"))
            if path[: len(source)] == source and path != source:
                _refuse()
            return _edit(_edit(target, source, "remove"), path, "add", _read(target, source))
        case "copy":
            return _edit(target, path, "add", _read(target, _pointer(entry.get("from"))))
        case "test":
            return target if _equal(_read(target, path), entry.get("value")) else _refuse()
        case _:
            return _refuse()


def _pointer(text: Any) -> list[str]:
    """RFC 6901: the reference tokens of a JSON pointer."""
    if text == "":
        return []
    if not isinstance(text, str) or not text.startswith("/"):
        _refuse()
    return [token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/")]


def _read(target: Any, path: list[str]) -> Any:
    for token in path:
        if isinstance(target, dict) and token in target:
            target = target[token]
        elif isinstance(target, list):
            target = target[_index(token, len(target) - 1)]
        else:
            _refuse()
    return target


def _edit(target: Any, path: list[str], operation: str, value: Any = None) -> Any:
    """A copy of `target` along `path`, changed at its end."""
    if not path:
        return None if operation == "remove" else value
    token, rest = path[0], path[1:]
    if isinstance(target, dict):
        # The real server takes a `replace` of what is not there for an `add`.
        if token not in target and (rest or operation == "remove"):
            _refuse()
        edited = dict(target)
        if rest:
            edited[token] = _edit(target[token], rest, operation, value)
        elif operation == "remove":
            del edited[token]
        else:
            edited[token] = value
        return edited
    if isinstance(target, list):
        items = list(target)
        if rest:
            at = _index(token, len(items) - 1)
            items[at] = _edit(items[at], rest, operation, value)
        elif operation == "add":
            items.insert(len(items) if token == "-" else _index(token, len(items)), value)
        elif operation == "remove":
            del items[_index(token, len(items) - 1)]
        else:
            items[_index(token, len(items) - 1)] = value
        return items
    return _refuse()


def _index(token: str, last: int) -> int:
    if not (token.isascii() and token.isdigit()) or (token != "0" and token.startswith("0")) or int(token) > last:
        _refuse()
    return int(token)


def _equal(left: Any, right: Any) -> bool:
    """Equality of JSON values: unlike in Python, true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(value, right[name]) for name, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)


def _refuse() -> Any:
    raise rejected_patch()
