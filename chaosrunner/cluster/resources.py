"""The resources that a drill deals with, and the paths under which the API serves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object as the API serves it: `group` is empty for the core group, `plural` is the path's word."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of one object, or of the collection (of all namespaces where none is given)."""
        parts = ["", "apis", self.group, self.version] if self.group else ["", "api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
SERVICES = Resource("", "v1", "services", "Service")
EVENTS = Resource("", "v1", "events", "Event")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
PDBS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
JOBS = Resource("batch", "v1", "jobs", "Job")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)

KNOWN = {
    (resource.api_version, resource.kind): resource
    for resource in (
        PODS, NODES, SERVICES, EVENTS, ENDPOINT_SLICES, PDBS, DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS,
        DAEMON_SETS, JOBS, LEASES, NETWORK_POLICIES,
    )
}  # fmt: skip
"""By apiVersion and kind, so that these need no discovery."""


Object = dict[str, Any]
"""A Kubernetes object as the API gave it."""


def meta(obj: dict[str, Any]) -> dict[str, Any]:
    """The object's metadata; empty where there is none (legal in bookmarks and in hand-made objects)."""
    return obj.get("metadata") or {}


def labels(obj: dict[str, Any]) -> dict[str, str]:
    return meta(obj).get("labels") or {}


def controller(obj: dict[str, Any]) -> dict[str, Any] | None:
    """The ownerReference that says `controller: true`; None for a bare object."""
    return next((ref for ref in meta(obj).get("ownerReferences") or [] if ref.get("controller")), None)


def finished(pod: dict[str, Any]) -> bool:
    """Whether the Pod has run to its end (Succeeded or Failed)."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def terminating(pod: dict[str, Any]) -> bool:
    return bool(meta(pod).get("deletionTimestamp"))


def ready(pod: dict[str, Any]) -> bool:
    """The Ready condition is True: what the disruption controller calls healthy."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
