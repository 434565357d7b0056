"""The verbs that a drill needs, step by step and observer by observer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chaosrunner.cluster.access import Access, Permission
from chaosrunner.faults.base import Problem
from chaosrunner.playbook.models import Drill, Evict, Playbook

CONTROLLERS = {"deployment": "deployments", "statefulset": "statefulsets", "replicaset": "replicasets"}
"""Kinds of controllers of the group apps, with the API's word for them."""

NODE_EVENTS = "default"
"""Namespace of Events about objects that have none."""


class Right(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One verb that the drill needs, and the API server's word on it (SelfSubjectAccessReview)."""

    right: str
    """As in a Role: `create pods/eviction in demo`."""
    purpose: str
    required: bool
    """Whether the drill cannot run without it; otherwise something is missing from what it sees or tells."""
    allowed: bool | None = None
    """None where the server could not be asked."""
    reason: str | None = None


def needs(drill: Drill, playbook: Playbook, namespace: str) -> dict[Access, Right]:
    """What the drill will ask of the API server, each once, in the order of use."""
    found: dict[Access, Right] = {}

    def add(
        verbs: str,
        resource: str,
        purpose: str,
        *,
        group: str = "",
        sub: str = "",
        everywhere: bool = False,
        required: bool = True,
        where: str = namespace,
    ) -> None:
        for verb in verbs.split():
            access = Access(verb, resource, None if everywhere else where, group, sub)
            if access not in found or (required and not found[access].required):
                found[access] = Right(right=str(access), purpose=purpose, required=required)

    workload = drill.workload
    add("get list watch", "pods", "watching the workload")
    if workload.service:
        add("get", "services", "resolving the workload")
        add("list watch", "endpointslices", "watching endpoints", group="discovery.k8s.io")
    add("get", "replicasets", "finding the root controller", group="apps", required=False)
    kind = (workload.controller or "").partition("/")[0].lower()
    if kind in CONTROLLERS:
        add("get", CONTROLLERS[kind], "reading the controller", group="apps")
    add("list watch", "poddisruptionbudgets", "watching budgets", group="policy", required=False)
    add("list watch", "events", "watching Events", required=False)
    add("list watch", "nodes", "watching nodes", everywhere=True, required=False)
    changes = False
    for step in playbook.steps:
        match step.kind:
            case "evict":
                add("create", "pods", "evicting Pods", sub="eviction")
                add("list", "poddisruptionbudgets", "predicting evictions", group="policy")
                changes |= not (isinstance(step.body, Evict) and step.body.dry_run)
            case "delete-pod":
                add("delete", "pods", "deleting Pods")
                changes = True
            case "cordon" | "uncordon":
                add("get list patch", "nodes", f"{step.kind}ing nodes", everywhere=True)
                changes = True
            case "drain":
                add("get list patch", "nodes", "cordoning the nodes of a drain", everywhere=True)
                add("get list", "pods", "finding the Pods of a node", everywhere=True)
                for allowed in drill.limits.namespaces or [namespace]:
                    eviction = Access("create", "pods", allowed, "", "eviction")
                    found[eviction] = Right(right=str(eviction), purpose="evicting the Pods of a node", required=True)
                add("list", "poddisruptionbudgets", "predicting evictions", group="policy")
                add("list", "daemonsets", "judging their Pods", group="apps", everywhere=True, required=False)
                changes = True
    if changes:
        add("get create update delete", "leases", "one drill per target at a time", group="coordination.k8s.io")
        telling = "telling on each target which run did it"
        add("create", "events", telling, required=False)
        if any(step.kind in ("cordon", "uncordon", "drain") for step in playbook.steps):
            add("create", "events", telling, required=False, where=NODE_EVENTS)
    return found


def answer(rights: dict[Access, Right], permissions: Sequence[Permission]) -> list[Right]:
    """The rights with the server's word on each."""
    return [msgspec.structs.replace(rights[p.access], allowed=p.allowed, reason=p.reason or None) for p in permissions]


def problems(rights: Sequence[Right]) -> list[Problem]:
    """A refusal for each right that the drill cannot do without, a warning for the others and for the unknown."""
    found = []
    for right in rights:
        if right.allowed is None:
            text = f"the server could not be asked whether we may {right.right}: {right.reason}"
            found.append(Problem(severity="warn", code="access_unknown", text=text))
        elif not right.allowed:
            found.append(
                Problem(
                    severity="refuse" if right.required else "warn",
                    code="forbidden",
                    text=f"not allowed to {right.right} ({right.purpose})",
                    how="grant it by a Role or ClusterRole, or use another user (--as)",
                )
            )
    return found
