"""Kubernetes' protobuf bodies, read into the same dictionaries as JSON: only what kubectl sends by its typed clients.

kubectl sends JSON for apply, patch, scale and evictions, but protobuf for `create namespace`, `create deployment`,
`auth can-i` and the like, and does not fall back to JSON on 415. Answers are always JSON, which it accepts.
Field numbers are those of the `generated.proto` files of k8s.io/api and k8s.io/apimachinery.
"""

from __future__ import annotations

from typing import Any

from chaosrunner.lab.embedded.errors import bad_request, unsupported_media_type
from chaosrunner.lab.objects import Json

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"
_UNKNOWN = {1: "typeMeta TypeMeta", 2: "raw bytes", 3: "contentEncoding string", 4: "contentType string"}

# Number: "name type"; `*` marks a list, `map` a map of strings, `count` a number that is left out when it is 0.
_META = {
    1: "name string", 2: "generateName string", 3: "namespace string", 6: "resourceVersion string",
    11: "labels map", 12: "annotations map", 14: "finalizers string*",
}  # fmt: skip
_MESSAGES: dict[str, dict[int, str]] = {
    "TypeMeta": {1: "apiVersion string", 2: "kind string"},
    "ObjectMeta": _META,
    "LabelSelector": {1: "matchLabels map", 2: "matchExpressions Requirement*"},
    "Requirement": {1: "key string", 2: "operator string", 3: "values string*"},
    "IntOrString": {1: "type count", 2: "intVal count", 3: "strVal string"},
    "DeleteOptions": {
        1: "gracePeriodSeconds int", 2: "preconditions Preconditions", 4: "propagationPolicy string",
        5: "dryRun string*",
    },
    "Preconditions": {1: "uid string", 2: "resourceVersion string"},
    "SelfSubjectReview": {1: "metadata ObjectMeta"},
    "SelfSubjectAccessReview": {1: "metadata ObjectMeta", 2: "spec AccessReviewSpec"},
    "AccessReviewSpec": {1: "resourceAttributes ResourceAttributes", 2: "nonResourceAttributes PathAttributes"},
    "ResourceAttributes": {
        1: "namespace string", 2: "verb string", 3: "group string", 4: "version string", 5: "resource string",
        6: "subresource string", 7: "name string",
    },
    "PathAttributes": {1: "path string", 2: "verb string"},
    "SelfSubjectRulesReview": {1: "metadata ObjectMeta", 2: "spec RulesReviewSpec"},
    "RulesReviewSpec": {1: "namespace string"},
    "Namespace": {1: "metadata ObjectMeta"},
    "ServiceAccount": {1: "metadata ObjectMeta"},
    "ConfigMap": {1: "metadata ObjectMeta", 2: "data map"},
    "PodDisruptionBudget": {1: "metadata ObjectMeta", 2: "spec BudgetSpec"},
    "BudgetSpec": {
        1: "minAvailable IntOrString", 2: "selector LabelSelector", 3: "maxUnavailable IntOrString",
        4: "unhealthyPodEvictionPolicy string",
    },
    "Deployment": {1: "metadata ObjectMeta", 2: "spec DeploymentSpec"},
    "DeploymentSpec": {1: "replicas int", 2: "selector LabelSelector", 3: "template PodTemplate"},
    "PodTemplate": {1: "metadata ObjectMeta", 2: "spec PodSpec"},
    "PodSpec": {2: "containers Container*", 3: "restartPolicy string", 4: "terminationGracePeriodSeconds int"},
    "Container": {1: "name string", 2: "image string", 3: "command string*", 4: "args string*", 6: "ports Port*"},
    "Port": {1: "name string", 3: "containerPort int", 4: "protocol string"},
}  # fmt: skip


def decode(body: bytes) -> Json:
    """The object in a protobuf body. ApiError 415 for a kind that kubectl is not known to send so, 400 if broken."""
    try:
        if not body.startswith(_MAGIC):
            raise ValueError("no magic number")
        envelope = _message(body[len(_MAGIC) :], _UNKNOWN)
        type_meta = envelope["typeMeta"]
        schema = _MESSAGES.get(type_meta["kind"])
        if schema is None:
            raise unsupported_media_type()
        return dict(type_meta) | _message(envelope.get("raw", b""), schema)
    except (ValueError, IndexError, KeyError) as error:
        raise bad_request(f"the protobuf body cannot be read: {error}") from None


def _message(data: bytes, schema: dict[int, str]) -> Json:
    """Fields that the schema does not name are skipped, empty values are left out, as Go's JSON does."""
    found: Json = {}
    for number, value in _fields(data):
        if number not in schema:
            continue
        name, kind = schema[number].split()
        item = _value(value, kind.rstrip("*"))
        if kind.endswith("*"):
            found.setdefault(name, []).append(item)
        elif kind == "map":
            found.setdefault(name, {}).update(item)
        elif item not in ("", {}, None):
            found[name] = item
    return found


def _value(value: int | bytes, kind: str) -> Any:
    if isinstance(value, int):
        signed = value - (1 << 64) if value >= 1 << 63 else value
        return None if kind == "count" and signed == 0 else signed
    match kind:
        case "bytes":
            return value
        case "string":
            return value.decode()
        case "map":
            entry = _message(value, {1: "key string", 2: "value string"})
            return {entry["key"]: entry.get("value", "")}
        case "IntOrString":
            either = _message(value, _MESSAGES[kind])
            return either.get("strVal", "") if "type" in either else either.get("intVal", 0)
        case _:
            return _message(value, _MESSAGES[kind])


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """(field number, value) of each field: varints as int, length-delimited ones as bytes."""
    found: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                number, at = _varint(data, at)
                found.append((tag >> 3, number))
            case 2:
                size, at = _varint(data, at)
                if at + size > len(data):
                    raise ValueError("cut short")
                found.append((tag >> 3, data[at : at + size]))
                at += size
            case wire_type:
                raise ValueError(f"wire type {wire_type}")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
