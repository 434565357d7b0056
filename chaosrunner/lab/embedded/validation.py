"""The few checks of a real API server that a drill's author or a controller can run into (HTTP 422)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chaosrunner.lab.embedded.errors import Cause, invalid
from chaosrunner.lab.embedded.resources import Resource
from chaosrunner.lab.embedded.selectors import Selector
from chaosrunner.lab.objects import Json

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_PERCENT_RULE = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)


def check(resource: Resource, obj: Json, old: Json | None = None) -> None:
    """Raise ApiError 422 with every cause that was found. `old` is given for an update."""
    causes = [*_metadata(resource, obj["metadata"]), *_KINDS.get(resource.plural, _nothing)(obj, old)]
    if causes:
        raise invalid(resource, obj["metadata"].get("name", ""), causes)


def metadata_of(obj: Json) -> Json:
    """A copy of an object's metadata without nulls. TypeError where a field has not the type that it must have."""
    found = obj.get("metadata") or {}
    if not isinstance(found, dict):
        raise TypeError("metadata is no object")
    meta = {name: value for name, value in found.items() if value is not None}
    for name in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        if not isinstance(meta.get(name, ""), str):
            raise TypeError(f"metadata.{name} is no string")
    for name in ("labels", "annotations"):
        entries = meta.get(name, {})
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
            raise TypeError(f"metadata.{name} is no map of strings")
    if not all(isinstance(entry, str) for entry in list(meta.get("finalizers", ()))):
        raise TypeError("metadata.finalizers is no list of strings")
    if not all(isinstance(entry["uid"], str) for entry in list(meta.get("ownerReferences", ()))):
        raise TypeError("metadata.ownerReferences has an entry without a uid")
    return meta


def required(field: str, message: str = "Required value") -> Cause:
    return ("FieldValueRequired", field, message)


def wrong(field: str, value: object, why: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return ("FieldValueInvalid", field, f"Invalid value: {shown}: {why}")


def _metadata(resource: Resource, meta: Json) -> Iterator[Cause]:
    name = meta.get("name")
    if not name:
        yield required("metadata.name", "Required value: name or generateName is required")
    elif len(name) > 253:
        yield wrong("metadata.name", name, "must be no more than 253 bytes")
    elif resource.group == "rbac.authorization.k8s.io":  # anything that a path may hold, like system:basic-user
        if name in (".", "..") or "/" in name or "%" in name:
            yield wrong("metadata.name", name, "may not be '.' or '..', and may not contain '/' or '%'")
    elif not re.fullmatch(_SUBDOMAIN, name):
        yield wrong("metadata.name", name, _SUBDOMAIN_RULE)


def _nothing(obj: Json, old: Json | None) -> Iterator[Cause]:
    yield from ()


def _pod(obj: Json, old: Json | None) -> Iterator[Cause]:
    yield from _pod_spec(obj.get("spec") or {}, "spec")
    if old is not None and _fixed(obj["spec"]) != _fixed(old["spec"]):
        yield (
            "FieldValueForbidden",
            "spec",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
            "previously negative)",
        )


def _fixed(spec: Json) -> Json:
    """A Pod's spec without the fields that may change while it lives."""
    free = ("tolerations", "activeDeadlineSeconds", "schedulingGates")
    kept = {key: value for key, value in spec.items() if key not in free}
    for field in ("containers", "initContainers"):
        kept[field] = [
            {key: value for key, value in entry.items() if key != "image"} for entry in spec.get(field) or ()
        ]
    return kept


def _pod_spec(spec: Json, path: str) -> Iterator[Cause]:
    containers = spec.get("containers")
    if not containers:
        yield required(f"{path}.containers")
    for index, container in enumerate(containers or ()):
        if not container.get("name"):
            yield required(f"{path}.containers[{index}].name")
        if not container.get("image"):
            yield required(f"{path}.containers[{index}].image")


def _workload(obj: Json, old: Json | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    selector = spec.get("selector")
    template = spec.get("template") or {}
    if not selector:
        yield required("spec.selector")
    if (spec.get("replicas") or 0) < 0:
        yield wrong("spec.replicas", spec["replicas"], "must be greater than or equal to 0")
    labels = (template.get("metadata") or {}).get("labels") or {}
    matching = Selector.of(selector)
    if selector and matching is not None and not matching.matches(labels):
        shown = "{" + ",".join(f'"{key}":"{labels[key]}"' for key in sorted(labels)) + "}"
        yield ("FieldValueInvalid", "spec.template.metadata.labels",
               f"Invalid value: {shown}: `selector` does not match template `labels`")  # fmt: skip
    yield from _pod_spec(template.get("spec") or {}, "spec.template.spec")
    if old is not None and selector != old["spec"].get("selector"):
        yield wrong("spec.selector", str(selector), "field is immutable")


def _service(obj: Json, old: Json | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if not spec.get("ports") and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield required("spec.ports")


def _budget(obj: Json, old: Json | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if "minAvailable" in spec and "maxUnavailable" in spec:
        yield wrong("spec", "minAvailable, maxUnavailable", "minAvailable and maxUnavailable cannot be both set")
    Selector.of(spec.get("selector"))
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field)
        if isinstance(value, str) and not re.fullmatch(r"(100|[0-9]{1,2})%", value):
            yield wrong(f"spec.{field}", value, _PERCENT_RULE)
        elif isinstance(value, int) and value < 0:
            yield wrong(f"spec.{field}", value, "must be greater than or equal to 0")


_KINDS = {
    "pods": _pod,
    "deployments": _workload,
    "replicasets": _workload,
    "services": _service,
    "poddisruptionbudgets": _budget,
}
