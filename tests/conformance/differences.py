"""Where the labs are known to differ: what the real one does, what the embedded one does, and why it stays so.

A test that meets an entry asserts each lab's own side; so an entry that no longer holds fails, as does a difference
that is not listed. Keep this short: what is cheap to mend is mended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

ABSENT = "(absent)"
WORDS = "(some words)"
"""Stands for a text that is nobody's contract: any but none."""
OBJECT = "(an object)"
"""Stands for what another form of the same answer is when it is read."""


@dataclass(frozen=True)
class Difference:
    """One known difference.

    `where`: of answers, "SCRIPT: LABEL: PATH within the answer", each as a pattern (`*`); else the name by which a test
    asks for it. Where one lab refuses what the other does, PATH ends at the two bodies, which `compare` names.
    """

    where: tuple[str, ...]
    real: Any
    embedded: Any
    why: str


_LOOPBACK = (
    "The embedded lab's Pods have addresses of 127.0.0.0/8, so its EndpointSlices must hold them; a real one refuses "
    "them."
)
_NO_NETWORK = "The embedded lab's Pods have no network of their own: nobody may be given the right to change it."
_NO_SCHEMAS = (
    "The embedded lab has no schemas: it keeps fields that a kind does not have, and neither warns (header Warning) "
    "nor refuses them (fieldValidation=Strict)."
)
_NO_MANAGED_FIELDS = "The embedded lab keeps no managedFields: server-side apply only merges, and never conflicts."
_JSON_ONLY = "The embedded lab answers in JSON whatever is accepted; a real one also writes YAML and protobuf."
_IMPERSONATION = (
    "The refusal names the verb of constrained impersonation; the embedded lab knows impersonation of users only."
)

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        ("a cut node's Pods can be reached",),
        False,
        True,
        "The embedded lab's Pods share the machine's loopback: it cuts a node from the API server only.",
    ),
    Difference(
        ("a container with NET_ADMIN: status", "ephemeral_containers: the right to the network: status"),
        200,
        403,
        _NO_NETWORK,
    ),
    Difference(("ephemeral_containers: the right to the network: body",), "Pod", "Status Forbidden", _NO_NETWORK),
    Difference(("services: loopback: status",), 422, 201, _LOOPBACK),
    Difference(("services: loopback: body",), "Status Invalid", "EndpointSlice", _LOOPBACK),
    Difference(
        ("paging: *: body.items*.data.ca.crt",),
        "PEM",
        "",
        "The embedded lab speaks plain HTTP: its kube-root-ca.crt is empty.",
    ),
    Difference(("creating: an unknown field: body.nope",), ABSENT, 1, _NO_SCHEMAS),
    Difference(
        ("creating: an unknown field: headers.Warning",), '299 - "unknown field \\"nope\\""', ABSENT, _NO_SCHEMAS
    ),
    Difference(("creating: an unknown field, strictly: status",), 400, 201, _NO_SCHEMAS),
    Difference(("creating: an unknown field, strictly: body",), "Status BadRequest", "ConfigMap", _NO_SCHEMAS),
    Difference(
        ("creating: a field twice: headers.Warning",),
        '299 - "duplicate field \\"metadata.name\\""',
        ABSENT,
        _NO_SCHEMAS,
    ),
    Difference(("patching: apply against another manager: status",), 409, 200, _NO_MANAGED_FIELDS),
    Difference(("patching: apply against another manager: body",), "Status Conflict", "ConfigMap", _NO_MANAGED_FIELDS),
    Difference(("forms: YAML: headers.Content-Type",), "application/yaml", "application/json", _JSON_ONLY),
    Difference(("forms: YAML: body",), WORDS, OBJECT, _JSON_ONLY),
    Difference(
        (
            "bodies: *: body.message",
            "creating: a label that is a number: body.message",
            "creating: another kind: body.message",
            "creating: another version: body.message",
            "deleting: options of another kind: body.message",
            "ephemeral_containers: put another kind: body.message",
            "evictions: an empty body: body.message",
            "evictions: another kind: body.message",
            "leases: a whole second: body.message",
            "leases: no time: body.message",
            "nodes: a word for unschedulable: body.*message",
            "paging: a broken token: body.message",
            "patching: merge a wrong type: body.*message",
            "scales: a word: body.*message",
            "scales: another kind: body.message",
            "workloads: a word for replicas: body.message",
        ),
        WORDS,
        WORDS,
        "The words of Go's decoders about a body that is no object of the kind. Status and reason are the same.",
    ),
    Difference(
        (
            "updating: a pod's node: body.*message",
            "patching: a pod's command: body.*message",
            "ephemeral_containers: by the pod: body.*message",
            "ephemeral_containers: another command: body.*message",
            "ephemeral_containers: a changed image: body.*message",
        ),
        WORDS,
        WORDS,
        "A real one shows what of the Pod's spec would change, as go-cmp prints it.",
    ),
    Difference(("rights: a stranger impersonates: body.details.kind",), "pods", "users", _IMPERSONATION),
    Difference(("rights: a stranger impersonates: body.details.name",), ABSENT, "jane", _IMPERSONATION),
    Difference(
        ("rights: a stranger impersonates: body.message",),
        'pods is forbidden: User "system:anonymous" cannot impersonate-on:user-info:list resource "pods" in API group '
        '"" in the namespace "NS"',
        'users "jane" is forbidden: User "system:anonymous" cannot impersonate resource "users" in API group "" at '
        "the cluster scope",
        _IMPERSONATION,
    ),
    Difference(
        ("reviews: *: body.status.reason",),
        "RBAC: allowed",
        ABSENT,
        "A real one names the binding and the role by which a review is allowed.",
    ),
)


def side(where: str, lab: str) -> Any:
    """What a lab does where the labs differ."""
    entry = next(entry for entry in DIFFERENCES if where in entry.where)
    return entry.real if lab == "real" else entry.embedded


def unlisted(script: str, label: str, real: Any, embedded: Any) -> list[tuple[str, Any, Any]]:
    """(path, real, embedded) of each place at which an answer differs and no entry says so."""
    return [
        found
        for found in compare(real, embedded)
        if not any(matches(entry, where, script, label, *found) for entry in DIFFERENCES for where in entry.where)
    ]


def matches(entry: Difference, where: str, script: str, label: str, path: str, real: Any, embedded: Any) -> bool:
    """Whether an entry, by one of its patterns, speaks of this difference."""
    parts = where.split(": ")
    if len(parts) != 3:
        return False
    places = zip((script, label, path), parts, strict=True)
    sides = ((entry.real, real), (entry.embedded, embedded))
    return all(fnmatchcase(*place) for place in places) and all(_is(said, seen) for said, seen in sides)


def _is(said: Any, seen: Any) -> bool:
    """Whether a side of an entry is what was seen."""
    if said == WORDS:
        return isinstance(seen, str) and seen not in ("", ABSENT)
    return isinstance(seen, dict) if said == OBJECT else bool(said == seen)


def _kind(value: Any) -> str | None:
    """The kind of a Kubernetes object, a refusal's with its reason; None of anything else."""
    if not isinstance(value, dict) or "kind" not in value or "apiVersion" not in value:
        return None
    return f"Status {value.get('reason')}" if value.get("status") == "Failure" else str(value["kind"])


def compare(real: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, real, other) of each place at which two JSON values differ; of objects of two kinds, what they are."""
    kinds = [_kind(value) for value in (real, other)]
    if None not in kinds and kinds[0] != kinds[1]:
        yield path, *kinds
    elif isinstance(real, dict) and isinstance(other, dict):
        for key in sorted(real.keys() | other.keys()):
            yield from compare(real.get(key, ABSENT), other.get(key, ABSENT), f"{path}.{key}" if path else key)
    elif isinstance(real, list) and isinstance(other, list) and len(real) == len(other):
        for index, (one, two) in enumerate(zip(real, other, strict=True)):
            yield from compare(one, two, f"{path}[{index}]")
    elif real != other:
        yield path, real, other
