"""The verbs that a drill needs, step by step and observer by observer, and whether its user has them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from chaosrunner.faults.base import Problem
from chaosrunner.playbook.models import Drill, Playbook


class Need(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One verb on one resource. `namespace` None: in all namespaces, or for a resource without one."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespace: str | None = None
    required: bool = True
    """Whether the drill cannot run without it; otherwise something is missing from what it sees."""
    purpose: str = ""

    @property
    def name(self) -> str:
        """As in a Role: `create pods/eviction`, `patch deployments.apps`."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{'/' + self.subresource if self.subresource else ''}{where}"


class Access(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A need and the API server's answer to it (SelfSubjectAccessReview)."""

    need: str
    purpose: str
    required: bool
    allowed: bool
    reason: str | None = None


def needs(drill: Drill, playbook: Playbook, namespace: str) -> list[Need]:
    """What the drill will ask of the API server, each once, in a fixed order."""
    found: dict[tuple[str, ...], Need] = {}

    def add(
        verbs: str,
        resource: str,
        purpose: str,
        *,
        group: str = "",
        sub: str = "",
        wide: bool = False,
        must: bool = True,
    ) -> None:
        for verb in verbs.split():
            where = None if wide else namespace
            need = Need(
                verb=verb,
                resource=resource,
                group=group,
                subresource=sub,
                namespace=where,
                required=must,
                purpose=purpose,
            )
            key = (verb, resource, group, sub, where or "")
            if key not in found or (must and not found[key].required):
                found[key] = need

    add("get list watch", "pods", "watching the workload")
    if drill.workload.service:
        add("get", "services", "resolving the workload")
    add(
        "list watch",
        "endpointslices",
        "watching endpoints",
        group="discovery.k8s.io",
        must=bool(drill.workload.service),
    )
    add("get", "replicasets", "finding the root controller", group="apps", must=False)
    kind, _, _ = (drill.workload.controller or "deployment/").partition("/")
    plural = CONTROLLERS.get(kind.lower())
    if plural:
        add("get", plural, "finding the root controller", group="apps", must=False)
    add("list watch", "poddisruptionbudgets", "watching budgets", group="policy", must=False)
    add("list watch", "events", "watching Events", must=False)
    add("list watch", "nodes", "watching nodes", wide=True, must=False)
    changes = False
    for step in playbook.steps:
        match step.kind:
            case "evict":
                add("create", "pods", "evicting Pods", sub="eviction")
                add("list", "poddisruptionbudgets", "predicting evictions", group="policy")
                changes = changes or not (step.evict and step.evict.dry_run)
            case "delete-pod":
                add("delete", "pods", "deleting Pods")
                changes = True
            case "cordon" | "uncordon":
                add("get list patch", "nodes", f"{step.kind}ing nodes", wide=True)
                changes = True
            case "drain":
                add("get list patch", "nodes", "cordoning the nodes of a drain", wide=True)
                add("get list", "pods", "finding the Pods of a node", wide=True)
                add("create", "pods", "evicting the Pods of a node", sub="eviction", wide=True)
                add("list", "poddisruptionbudgets", "predicting evictions", group="policy", wide=True)
                changes = True
    if changes:
        add("get create update", "leases", "one drill per target at a time", group="coordination.k8s.io")
        add("create", "events", "telling on each target which run did it", must=False)
    return list(found.values())


CONTROLLERS = {"deployment": "deployments", "statefulset": "statefulsets", "replicaset": "replicasets"}
"""Kinds of controllers that can be looked up by name, with the API's word for them (group apps)."""


def missing(accesses: Iterable[Access]) -> list[Problem]:
    """Problems out of what is not allowed: a refusal for what the drill cannot do without."""
    return [
        Problem(
            severity="refuse" if access.required else "warn",
            code="forbidden",
            text=f"not allowed to {access.need} ({access.purpose})",
            how="grant the verb by a Role or ClusterRole, or use another user (--as)",
        )
        for access in accesses
        if not access.allowed
    ]
