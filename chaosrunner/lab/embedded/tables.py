"""`as=Table`: the rows and columns that `kubectl get` prints, as the real server computes them.

Columns and cells follow pkg/printers/internalversion of Kubernetes and recorded Tables of 1.37; the descriptions of
columns, which kubectl does not show, are left empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from chaosrunner.lab.embedded.resources import Resource
from chaosrunner.lab.embedded.selectors import Selector
from chaosrunner.lab.objects import Json

NONE = "<none>"
NAME = "Name*"


def table(resource: Resource, objects: Iterable[Json], now: datetime, include: str = "Metadata") -> Json:
    """A `meta.k8s.io/v1` Table. `include`: what a row's object holds: None, Metadata or Object."""
    columns, cells = _KINDS.get(resource.plural, _OTHER)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": [_column(text) for text in columns],
        "rows": [_row(obj, cells(obj, now), include) for obj in objects],
    }


def _row(obj: Json, cells: Sequence[Any], include: str) -> Json:
    if include == "None":
        return {"cells": cells, "object": None}
    if include == "Object":
        return {"cells": cells, "object": obj}
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
    return {"cells": cells, "object": partial}


def _column(text: str) -> Json:
    """`Name*` is the column of names, `Desired#` holds integers, `IP+` shows only with -o wide."""
    return {
        "name": text.rstrip("*#+"),
        "type": "integer" if "#" in text else "string",
        "format": "name" if "*" in text else "",
        "description": "",
        "priority": 1 if "+" in text else 0,
    }


def age(since: str | None, now: datetime) -> str:
    """Time since an RFC 3339 instant as kubectl shows it: 6s, 2m14s, 3h5m, 2d (`HumanDuration`)."""
    if not since:
        return "<unknown>"
    seconds = int((now - datetime.fromisoformat(since)).total_seconds())
    if seconds < 0:
        return "0s" if seconds >= -1 else "<invalid>"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _pair(minutes, "m", seconds % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _pair(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _pair(days, "d", hours % 24, "h")
    return f"{days}d" if days < 730 else f"{days // 365}y"


def _pair(large: int, unit: str, small: int, lesser: str) -> str:
    return f"{large}{unit}{small}{lesser}" if small else f"{large}{unit}"


def _created(obj: Json, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _joined(values: Iterable[Any]) -> str:
    return ",".join(str(value) for value in values) or NONE


def _pod(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj["status"]
    statuses = status.get("containerStatuses", ())
    ready = sum(1 for entry in statuses if entry.get("ready") and "running" in entry.get("state", {}))
    gates = spec.get("readinessGates") or ()
    true = {entry["type"] for entry in status.get("conditions", ()) if entry["status"] == "True"}
    return [
        obj["metadata"]["name"],
        f"{ready}/{len(spec['containers'])}",
        _pod_status(obj),
        _restarts(statuses, now),
        _created(obj, now),
        status.get("podIP") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{sum(gate['conditionType'] in true for gate in gates)}/{len(gates)}" if gates else NONE,
    ]


def _pod_status(obj: Json) -> str:
    status = obj["status"]
    reason = str(status.get("reason") or status.get("phase") or "Unknown")
    running = False
    for entry in reversed(status.get("containerStatuses", ())):
        state = entry.get("state", {})
        if state.get("waiting", {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif "terminated" in state:
            ended = state["terminated"]
            code = f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"
            reason = ended.get("reason") or code
        elif "running" in state and entry.get("ready"):
            running = True
    if reason == "Completed" and running:
        reason = "Running"
    ended = status.get("phase") in ("Succeeded", "Failed")
    return "Terminating" if obj["metadata"].get("deletionTimestamp") and not ended else reason


def _restarts(statuses: Sequence[Json], now: datetime) -> str:
    count = sum(entry.get("restartCount", 0) for entry in statuses)
    ends = [
        ended["finishedAt"]
        for entry in statuses
        if (ended := entry.get("lastState", {}).get("terminated")) and ended.get("finishedAt")
    ]
    return f"{count} ({age(max(ends), now)} ago)" if count and ends else str(count)


def _node(obj: Json, now: datetime) -> list[Any]:
    status, labels = obj["status"], obj["metadata"].get("labels") or {}
    ready = next((entry["status"] for entry in status.get("conditions", ()) if entry["type"] == "Ready"), None)
    shown = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    prefix = "node-role.kubernetes.io/"
    roles = sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix))
    addresses = {entry["type"]: entry["address"] for entry in reversed(status.get("addresses", ()))}
    info = status.get("nodeInfo") or {}
    kernel, architecture = info.get("kernelVersion"), info.get("architecture")
    return [
        obj["metadata"]["name"],
        shown + (",SchedulingDisabled" if obj["spec"].get("unschedulable") else ""),
        _joined(roles),
        _created(obj, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage") or "<unknown>",
        (f"{kernel} ({architecture})" if architecture else kernel) or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _workload_tail(spec: Json) -> list[Any]:
    containers = spec["template"]["spec"]["containers"]
    return [
        ",".join(entry["name"] for entry in containers),
        ",".join(entry["image"] for entry in containers),
        str(Selector.of(spec["selector"])),
    ]


def _deployment(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj["status"]
    return [
        obj["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{spec['replicas']}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _created(obj, now),
        *_workload_tail(spec),
    ]


def _replicaset(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj["status"]
    return [
        obj["metadata"]["name"],
        spec["replicas"],
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        _created(obj, now),
        *_workload_tail(spec),
    ]


def _budget(obj: Json, now: datetime) -> list[Any]:
    spec = obj["spec"]
    return [
        obj["metadata"]["name"],
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        obj["status"]["disruptionsAllowed"],
        _created(obj, now),
    ]


def _limited(values: Sequence[str], empty: str) -> str:
    more = f" + {len(values) - 3} more..." if len(values) > 3 else ""
    return ",".join(values[:3]) + more if values else empty


def _endpointslice(obj: Json, now: datetime) -> list[Any]:
    addresses = [address for endpoint in obj.get("endpoints") or () for address in endpoint["addresses"]]
    ports = [str(entry["port"]) for entry in obj.get("ports") or () if entry.get("port") is not None]
    return [
        obj["metadata"]["name"],
        obj.get("addressType", ""),
        _limited(ports, "<unset>"),
        _limited(addresses, "<unset>"),
        _created(obj, now),
    ]


def _service(obj: Json, now: datetime) -> list[Any]:
    spec = obj["spec"]
    ports = (
        f"{entry['port']}{':' + str(entry['nodePort']) if entry.get('nodePort') else ''}/{entry['protocol']}"
        for entry in spec.get("ports") or ()
    )
    return [
        obj["metadata"]["name"],
        spec["type"],
        spec.get("clusterIP") or NONE,
        _joined(spec.get("externalIPs") or ()),
        _joined(ports),
        _created(obj, now),
        _joined(f"{key}={value}" for key, value in sorted((spec.get("selector") or {}).items())),
    ]


def _event(obj: Json, now: datetime) -> list[Any]:
    about, source = obj["involvedObject"], obj.get("source") or {}
    once = obj.get("eventTime")
    series = obj.get("series") or {}
    first = age(obj.get("firstTimestamp") or once, now)
    last = age(series.get("lastObservedTime") or obj.get("lastTimestamp") or once, now)
    component = source.get("component") or obj.get("reportingComponent", "")
    host = source.get("host") or obj.get("reportingInstance", "")
    return [
        last,
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        obj.get("message", "").strip(),
        first,
        series.get("count") or obj.get("count") or 1,
        obj["metadata"]["name"],
    ]


def _namespace(obj: Json, now: datetime) -> list[Any]:
    return [obj["metadata"]["name"], obj["status"]["phase"], _created(obj, now)]


def _lease(obj: Json, now: datetime) -> list[Any]:
    return [obj["metadata"]["name"], (obj.get("spec") or {}).get("holderIdentity", ""), _created(obj, now)]


def _data(obj: Json, now: datetime) -> list[Any]:
    return [obj["metadata"]["name"], len(obj.get("data") or {}) + len(obj.get("binaryData") or {}), _created(obj, now)]


def _plain(obj: Json, now: datetime) -> list[Any]:
    return [obj["metadata"]["name"], _created(obj, now)]


def _policy(obj: Json, now: datetime) -> list[Any]:
    return [obj["metadata"]["name"], str(Selector.of(obj["spec"]["podSelector"])) or NONE, _created(obj, now)]


_TEMPLATE = ("Containers+", "Images+", "Selector+")
_OTHER: tuple[tuple[str, ...], Callable[[Json, datetime], list[Any]]] = ((NAME, "Age"), _plain)
_KINDS: dict[str, tuple[tuple[str, ...], Callable[[Json, datetime], list[Any]]]] = {
    "configmaps": ((NAME, "Data#", "Age"), _data),
    "deployments": ((NAME, "Ready", "Up-to-date", "Available", "Age", *_TEMPLATE), _deployment),
    "endpointslices": ((NAME, "AddressType", "Ports", "Endpoints", "Age"), _endpointslice),
    "events": (
        ("Last Seen", "Type", "Reason", "Object", "Subobject+", "Source+", "Message", "First Seen+", "Count+",
         "Name*+"),
        _event,
    ),
    "leases": ((NAME, "Holder", "Age"), _lease),
    "namespaces": ((NAME, "Status", "Age"), _namespace),
    "networkpolicies": ((NAME, "Pod-Selector", "Age"), _policy),
    "nodes": (
        (NAME, "Status", "Roles", "Age", "Version", "Internal-IP+", "External-IP+", "OS-Image+", "Kernel-Version+",
         "Container-Runtime+"),
        _node,
    ),
    "poddisruptionbudgets": ((NAME, "Min Available", "Max Unavailable", "Allowed Disruptions#", "Age"), _budget),
    "pods": (
        (NAME, "Ready", "Status", "Restarts", "Age", "IP+", "Node+", "Nominated Node+", "Readiness Gates+"),
        _pod,
    ),
    "replicasets": ((NAME, "Desired#", "Current#", "Ready#", "Age", *_TEMPLATE), _replicaset),
    "services": ((NAME, "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector+"), _service),
}  # fmt: skip
