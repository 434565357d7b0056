"""The table of kinds that the embedded API server knows."""

from __future__ import annotations

from dataclasses import dataclass

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
READ_WRITE = ("get", "patch", "update")


@dataclass(frozen=True)
class Resource:
    """One kind as discovery shows it.

    `generation`: the server counts changes of the desired state in metadata.generation.
    `unconditional`: an update may leave out metadata.resourceVersion.
    `put_creates`: an update of what is not there creates it.
    `returned`: a delete answers with the deleted object, not with a Status.
    """

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    generation: bool = False
    unconditional: bool = True
    put_creates: bool = False
    returned: bool = False
    verbs: tuple[str, ...] = ALL_VERBS
    stored: bool = True

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def qualified(self) -> str:
        """The plural with its group, as error messages name it: `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


_TABLE = (
    Resource("configmaps", "ConfigMap", short=("cm",)),
    Resource("events", "Event", short=("ev",)),
    Resource(
        "namespaces",
        "Namespace",
        namespaced=False,
        short=("ns",),
        subresources=("status",),
        verbs=tuple(verb for verb in ALL_VERBS if verb != "deletecollection"),
    ),
    Resource("nodes", "Node", namespaced=False, short=("no",), subresources=("status",)),
    Resource(
        "pods",
        "Pod",
        short=("po",),
        categories=("all",),
        subresources=("binding", "ephemeralcontainers", "eviction", "log", "status"),
        generation=True,
        returned=True,
    ),
    Resource("secrets", "Secret"),
    Resource("serviceaccounts", "ServiceAccount", short=("sa",), subresources=("token",), returned=True),
    Resource("services", "Service", short=("svc",), categories=("all",), subresources=("status",), returned=True),
    Resource(
        "deployments",
        "Deployment",
        "apps",
        short=("deploy",),
        categories=("all",),
        subresources=("scale", "status"),
        generation=True,
    ),
    Resource(
        "replicasets",
        "ReplicaSet",
        "apps",
        short=("rs",),
        categories=("all",),
        subresources=("scale", "status"),
        generation=True,
    ),
    Resource("daemonsets", "DaemonSet", "apps", short=("ds",), categories=("all",), generation=True),
    Resource("events", "Event", "events.k8s.io", short=("ev",), stored=False),
    Resource("selfsubjectreviews", "SelfSubjectReview", "authentication.k8s.io", namespaced=False, verbs=("create",)),
    Resource(
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        "authorization.k8s.io",
        namespaced=False,
        verbs=("create",),
    ),
    Resource(
        "selfsubjectrulesreviews",
        "SelfSubjectRulesReview",
        "authorization.k8s.io",
        namespaced=False,
        verbs=("create",),
    ),
    Resource("networkpolicies", "NetworkPolicy", "networking.k8s.io", short=("netpol",), generation=True),
    Resource(
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        "policy",
        short=("pdb",),
        subresources=("status",),
        generation=True,
        unconditional=False,
    ),
    Resource("clusterrolebindings", "ClusterRoleBinding", "rbac.authorization.k8s.io", namespaced=False),
    Resource("clusterroles", "ClusterRole", "rbac.authorization.k8s.io", namespaced=False),
    Resource("rolebindings", "RoleBinding", "rbac.authorization.k8s.io"),
    Resource("roles", "Role", "rbac.authorization.k8s.io"),
    Resource("leases", "Lease", "coordination.k8s.io", unconditional=False, put_creates=True),
    Resource("endpointslices", "EndpointSlice", "discovery.k8s.io", generation=True, unconditional=False),
)

RESOURCES: dict[tuple[str, str], Resource] = {(entry.group, entry.plural): entry for entry in _TABLE}
"""Every resource by (group, plural)."""

STORED: dict[str, Resource] = {
    entry.plural: entry for entry in _TABLE if entry.stored and set(entry.verbs) & {"list", "get"}
}
"""The resources that the store keeps, by plural alone; events.k8s.io/v1 is a second view of v1 events."""
