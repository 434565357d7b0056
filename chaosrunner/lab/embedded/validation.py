"""The few checks of a real API server that a drill's author or a controller can run into (HTTP 422)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_network

from chaosrunner.lab.embedded import names
from chaosrunner.lab.embedded.errors import Cause, invalid
from chaosrunner.lab.embedded.resources import Resource
from chaosrunner.lab.embedded.selectors import Selector
from chaosrunner.lab.objects import Json

_PERCENT_RULE = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)


def check(resource: Resource, obj: Json, old: Json | None = None, subresource: str | None = None) -> None:
    """Raise ApiError 422 with every cause that was found. `old` is given for an update, perhaps of a subresource."""
    rules = _injected if subresource == "ephemeralcontainers" else _KINDS.get(resource.plural, _nothing)
    causes = [*_metadata(resource, obj["metadata"], old), *rules(obj, old)]
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
    shown = json.dumps(value, separators=(",", ":"))
    return ("FieldValueInvalid", field, f"Invalid value: {shown}: {why}")


def unsupported(field: str, value: str, supported: tuple[str, ...]) -> Cause:
    listed = ", ".join(f'"{name}"' for name in supported)
    return ("FieldValueNotSupported", field, f'Unsupported value: "{value}": supported values: {listed}')


def _metadata(resource: Resource, meta: Json, old: Json | None) -> Iterator[Cause]:
    name = meta.get("name")
    if not name:
        yield required("metadata.name", "Required value: name or generateName is required")
    elif resource.group == "rbac.authorization.k8s.io":  # anything that a path may hold, like system:basic-user
        if name in (".", "..") or "/" in name or "%" in name:
            yield wrong("metadata.name", name, "may not be '.' or '..', and may not contain '/' or '%'")
    else:
        yield from (wrong("metadata.name", name, why) for why in names.of_object(name))
        if resource.plural == "namespaces" and "." in name:
            yield wrong("metadata.name", name, "must not contain dots")
    for field in ("labels", "annotations"):
        for key in meta.get(field) or {}:
            yield from (wrong(f"metadata.{field}", key, why) for why in names.of_key(key))
    for value in (meta.get("labels") or {}).values():
        yield from (wrong("metadata.labels", value, why) for why in names.of_value(value))
    if old is not None and old["metadata"].get("deletionTimestamp"):
        added = [entry for entry in meta.get("finalizers") or () if entry not in old["metadata"].get("finalizers", ())]
        if added:
            listed = ", ".join(f'"{entry}"' for entry in added)
            why = "no new finalizers can be added if the object is being deleted, found new finalizers"
            yield "FieldValueForbidden", "metadata.finalizers", f"Forbidden: {why} []string{{{listed}}}"


def _nothing(obj: Json, old: Json | None) -> Iterator[Cause]:
    yield from ()


def _pod(obj: Json, old: Json | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    yield from _pod_spec(spec, "spec")
    if old is None and spec.get("ephemeralContainers"):
        yield "FieldValueForbidden", "spec.ephemeralContainers", "Forbidden: cannot be set on create"
    if old is not None and _fixed(obj["spec"]) != _fixed(old["spec"]):
        yield (
            "FieldValueForbidden",
            "spec",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
            "previously negative)",
        )


def _injected(obj: Json, old: Json | None) -> Iterator[Cause]:
    """Of an update of ephemeralcontainers: entries may come, and none may go or change."""
    yield from _pod_spec(obj["spec"], "spec")
    given = {entry.get("name"): entry for entry in obj["spec"].get("ephemeralContainers", ())}
    for present in (old or obj)["spec"].get("ephemeralContainers", ()):
        name = present["name"]
        if given.get(name) != present:
            what = "changed" if name in given else "removed"
            why = f'Forbidden: existing ephemeral containers "{name}" may not be {what}\n'
            yield "FieldValueForbidden", "spec.ephemeralContainers", why


def _fixed(spec: Json) -> Json:
    """A Pod's spec without the fields that may change while it lives."""
    free = ("tolerations", "activeDeadlineSeconds", "schedulingGates")
    kept = {key: value for key, value in spec.items() if key not in free}
    for field in ("containers", "initContainers"):
        kept[field] = [
            {key: value for key, value in entry.items() if key != "image"} for entry in spec.get(field) or ()
        ]
    return kept


_RESTART = ("Always", "OnFailure", "Never")


def _pod_spec(spec: Json, path: str) -> Iterator[Cause]:
    containers = spec.get("containers")
    if not containers:
        yield required(f"{path}.containers")
    seen: set[str] = set()
    for index, container in enumerate(containers or ()):
        at, name = f"{path}.containers[{index}]", container.get("name")
        if not name:
            yield required(f"{at}.name")
        elif name in seen:
            yield "FieldValueDuplicate", f"{at}.name", f'Duplicate value: "{name}"'
        else:
            yield from (wrong(f"{at}.name", name, why) for why in names.of_container(name))
        seen.add(name)
        if not container.get("image"):
            yield required(f"{at}.image")
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if container.get(probe):
                yield from _probe(container[probe], f"{at}.{probe}")
    targets = seen | {entry.get("name", "") for entry in spec.get("initContainers") or ()}
    yield from _ephemeral(spec.get("ephemeralContainers") or (), targets, f"{path}.ephemeralContainers")
    policy = spec.get("restartPolicy", "Always")
    if policy not in _RESTART:
        yield unsupported(f"{path}.restartPolicy", policy, _RESTART)


_PULL = ("Always", "IfNotPresent", "Never")
_NOT_EPHEMERAL = ("ports", "resources", "resizePolicy", "restartPolicy", "livenessProbe", "readinessProbe",
                  "startupProbe", "lifecycle")  # fmt: skip


def _ephemeral(containers: Sequence[Json], targets: set[str], path: str) -> Iterator[Cause]:
    """`targets`: the names of the Pod's own containers."""
    seen = set(targets)
    for index, container in enumerate(containers):
        at, name = f"{path}[{index}]", container.get("name") or ""
        if not name:
            yield required(f"{at}.name")
        else:
            yield from (wrong(f"{at}.name", name, why) for why in names.of_container(name))
        if not container.get("image"):
            yield required(f"{at}.image")
        if container["imagePullPolicy"] not in _PULL:
            yield unsupported(f"{at}.imagePullPolicy", container["imagePullPolicy"], _PULL)
        if name in seen:
            yield "FieldValueDuplicate", f"{at}.name", f'Duplicate value: "{name}"'
        seen.add(name)
        target = container.get("targetContainerName")
        if target and target not in targets:
            yield "FieldValueNotFound", f"{at}.targetContainerName", f'Not found: "{target}"'
        for field in _NOT_EPHEMERAL:
            if container.get(field):
                why = "Forbidden: cannot be set for an Ephemeral Container"
                yield "FieldValueForbidden", f"{at}.{field}", why


def _probe(probe: Json, path: str) -> Iterator[Cause]:
    handler = next((name for name in ("exec", "httpGet", "tcpSocket", "grpc") if probe.get(name)), None)
    if handler is None:
        yield required(path, "Required value: must specify a handler type")
    elif "port" in probe[handler]:
        yield from _port(probe[handler]["port"], f"{path}.{handler}.port")
    for field in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        if probe.get(field, 0) < 0:
            yield wrong(f"{path}.{field}", probe[field], "must be greater than or equal to 0")


def _port(port: int | str, path: str) -> Iterator[Cause]:
    if isinstance(port, int) and not 1 <= port <= 65535:
        yield wrong(path, port, "must be between 1 and 65535, inclusive")


def _workload(obj: Json, old: Json | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    selector = spec.get("selector")
    template = spec.get("template") or {}
    if selector is None:
        yield required("spec.selector")
    elif not selector:
        yield wrong("spec.selector", {}, f"empty selector is invalid for {obj['kind'].lower()}")
    if (spec.get("replicas") or 0) < 0:
        yield wrong("spec.replicas", spec["replicas"], "must be greater than or equal to 0")
    labels = (template.get("metadata") or {}).get("labels")
    matching = Selector.of(selector)
    if selector != {} and (matching is None or not matching.matches(labels)):
        shown = dict(sorted(labels.items())) if labels else None
        yield wrong("spec.template.metadata.labels", shown, "`selector` does not match template `labels`")
    yield from _pod_spec(template.get("spec") or {}, "spec.template.spec")
    policy = (template.get("spec") or {}).get("restartPolicy", "Always")
    if policy in _RESTART[1:]:
        yield unsupported("spec.template.spec.restartPolicy", policy, _RESTART[:1])
    rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    if rolling.get("maxSurge") in (0, "0%") and rolling.get("maxUnavailable") in (0, "0%"):
        yield wrong("spec.strategy.rollingUpdate.maxUnavailable", 0, "may not be 0 when `maxSurge` is 0")
    if old is not None and selector != old["spec"].get("selector"):
        yield wrong("spec.selector", selector, "field is immutable")


_SERVICE_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")


def _service(obj: Json, old: Json | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    ports = spec.get("ports") or ()
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield required("spec.ports")
    for index, port in enumerate(ports):
        at = f"spec.ports[{index}]"
        if len(ports) > 1 and not port.get("name"):
            yield required(f"{at}.name")
        yield from _port(port["port"], f"{at}.port")
        yield from _port(port["targetPort"], f"{at}.targetPort")
    if spec["type"] not in _SERVICE_TYPES:
        yield unsupported("spec.type", spec["type"], _SERVICE_TYPES)


_POLICIES = ("AlwaysAllow", "IfHealthyBudget")


def _budget(obj: Json, old: Json | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if "minAvailable" in spec and "maxUnavailable" in spec:
        shown = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        yield wrong("spec", shown, "minAvailable and maxUnavailable cannot be both set")
    for index, entry in enumerate((spec.get("selector") or {}).get("matchExpressions") or ()):
        if entry.get("operator") not in ("In", "NotIn", "Exists", "DoesNotExist"):
            field = f"spec.selector.matchExpressions[{index}].operator"
            yield wrong(field, entry.get("operator"), "not a valid selector operator")
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in _POLICIES:
        yield unsupported("spec.unhealthyPodEvictionPolicy", policy, _POLICIES)
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field)
        if isinstance(value, str) and not re.fullmatch(r"[0-9]+%", value):
            yield wrong(f"spec.{field}", value, _PERCENT_RULE)
        elif isinstance(value, str) and int(value[:-1]) > 100:
            yield wrong(f"spec.{field}", value, "must not be greater than 100%")
        elif isinstance(value, int) and value < 0:
            yield wrong(f"spec.{field}", value, "must be greater than or equal to 0")


def _lease(obj: Json, old: Json | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    duration = spec.get("leaseDurationSeconds")
    if duration is not None and duration <= 0:
        yield wrong("spec.leaseDurationSeconds", duration, "must be greater than 0")
    for field in ("acquireTime", "renewTime"):
        if spec.get(field) is not None and not re.fullmatch(_MICRO_TIME, spec[field]):
            raise TypeError(f"spec.{field} is no time with a fraction of a second")


_MICRO_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|[-+]\d\d:\d\d)"


def _slice(obj: Json, old: Json | None) -> Iterator[Cause]:
    """Loopback addresses are allowed here, unlike in a real one: the lab's Pods have no others."""
    if not obj.get("addressType"):
        yield required("addressType")
        return
    for index, entry in enumerate(obj.get("endpoints") or ()):
        at = f"endpoints[{index}].addresses"
        if not entry.get("addresses"):
            yield required(at)
        for place, text in enumerate(entry.get("addresses") or ()):
            try:
                address = ip_address(text)
            except ValueError:
                yield wrong(f"{at}[{place}]", text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
                continue
            if f"IPv{address.version}" != obj["addressType"]:
                yield wrong(at, text, f"must be an {obj['addressType']} address")
            elif address.is_link_local:
                why = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
                yield wrong(f"{at}[{place}]", text, why)


def _event(obj: Json, old: Json | None) -> Iterator[Cause]:
    about = obj["involvedObject"].get("namespace", "")
    if about and about != obj["metadata"]["namespace"]:
        yield wrong("involvedObject.namespace", about, "does not match event.namespace")


_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TAINT = ("key", "value", "effect")


def _node(obj: Json, old: Json | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if not isinstance(spec.get("unschedulable", False), bool):
        raise TypeError("spec.unschedulable is neither true nor false")
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(spec.get("taints") or ()):
        at, key, value, effect = f"metadata.taints[{index}]", *(taint.get(name, "") for name in _TAINT)
        yield from (wrong(f"{at}.key", key, why) for why in names.of_key(key))
        yield from (wrong(f"{at}.value", value, why) for why in names.of_value(value))
        if not effect:
            yield required(f"{at}.effect")
        elif effect not in _EFFECTS:
            yield unsupported(f"{at}.effect", effect, _EFFECTS)
        if (key, effect) in seen:
            given = {"Key": key, "Value": value, "Effect": effect, "TimeAdded": taint.get("timeAdded")}
            shown = json.dumps(given, separators=(",", ":"))
            why = f"Duplicate value: {shown}: taints must be unique by key and effect pair"
            yield "FieldValueDuplicate", at, why
        seen.add((key, effect))


def _policy(obj: Json, old: Json | None) -> Iterator[Cause]:
    """A NetworkPolicy, which nobody enforces here."""
    spec = obj.get("spec") or {}
    for way, other in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(way) or ()):
            at = f"spec.{way}[{index}]"
            for place, port in enumerate(rule.get("ports") or ()):
                yield from _port(port.get("port", 1), f"{at}.ports[{place}].port")
            for place, peer in enumerate(rule.get(other) or ()):
                yield from _peer(peer, f"{at}.{other}[{place}]")
    for index, type_ in enumerate(spec.get("policyTypes") or ()):
        if type_ not in _POLICY_TYPES:
            yield unsupported(f"spec.policyTypes[{index}]", type_, _POLICY_TYPES)


_POLICY_TYPES = ("Ingress", "Egress")


def _peer(peer: Json, path: str) -> Iterator[Cause]:
    kinds = [name for name in ("podSelector", "namespaceSelector", "ipBlock") if name in peer]
    if "ipBlock" in kinds:
        block = peer["ipBlock"].get("cidr", "")
        try:
            ip_network(block, strict=False)
        except ValueError:
            why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            yield wrong(f"{path}.ipBlock.cidr", block, why) if block else required(f"{path}.ipBlock.cidr")
    if not kinds:
        yield required(path, "Required value: must specify a peer")
    elif len(kinds) > 1 and "ipBlock" in kinds:
        yield "FieldValueForbidden", path, "Forbidden: may not specify both ipBlock and another peer"


_KINDS = {
    "pods": _pod,
    "deployments": _workload,
    "replicasets": _workload,
    "services": _service,
    "poddisruptionbudgets": _budget,
    "leases": _lease,
    "endpointslices": _slice,
    "events": _event,
    "nodes": _node,
    "networkpolicies": _policy,
}
