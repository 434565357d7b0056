"""The rights that a drill needs: every call that a run makes of the API server, step by step and observer by observer.

What any authenticated user may do is not among them: asking about one's own rights (role system:basic-user), reading
what kinds there are (system:discovery) and the server's version (system:public-info-viewer).
https://kubernetes.io/docs/reference/access-authn-authz/rbac/#discovery-roles
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from chaosrunner.cluster.access import Access, Permission
from chaosrunner.cluster.lease import name_for
from chaosrunner.cluster.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    EVENTS,
    JOBS,
    LEASES,
    NETWORK_POLICIES,
    NODES,
    PDBS,
    PODS,
    REPLICA_SETS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from chaosrunner.faults.base import Problem
from chaosrunner.plan.targets import pool_of
from chaosrunner.playbook.drill import Drill
from chaosrunner.playbook.playbook import Playbook
from chaosrunner.playbook.steps import (
    DeletePod,
    Drain,
    Evict,
    Freeze,
    Kill,
    Network,
    NodeTarget,
    PodSet,
    RolloutRestart,
    Scale,
    Step,
    Taint,
)

CONTROLLERS: dict[str, tuple[Resource, ...]] = {
    "deployment": (REPLICA_SETS, DEPLOYMENTS),
    "replicaset": (REPLICA_SETS,),
    "statefulset": (STATEFUL_SETS,),
    "daemonset": (DAEMON_SETS,),
    "job": (JOBS,),
    "rollout": (REPLICA_SETS, Resource("argoproj.io", "v1alpha1", "rollouts", "Rollout")),
    "leaderworkerset": (
        STATEFUL_SETS,
        PODS,
        Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet"),
    ),
    "stormservice": (
        Resource("orchestration.aibrix.ai", "v1alpha1", "rolesets", "RoleSet"),
        Resource("orchestration.aibrix.ai", "v1alpha1", "stormservices", "StormService"),
    ),
    "rayclusterfleet": (
        Resource("ray.io", "v1", "rayclusters", "RayCluster"),
        Resource("orchestration.aibrix.ai", "v1alpha1", "rayclusterreplicasets", "RayClusterReplicaSet"),
        Resource("orchestration.aibrix.ai", "v1alpha1", "rayclusterfleets", "RayClusterFleet"),
    ),
}
"""Kinds of a drill's controllers, each with all that stands between it and its Pods, from the Pods upwards."""

UNNAMED = (REPLICA_SETS, DEPLOYMENTS, STATEFUL_SETS)
"""What may stand above the Pods of a drill that names no controller, as far as can be told without a cluster."""

LOOK_FIRST = "checking just before that each Pod is still the chosen one, and after that it goes"

NODE_EVENTS = "default"
"""Namespace of Events about objects that have none."""


class Right(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One verb that the drill needs, and the API server's word on it (SelfSubjectAccessReview)."""

    right: str
    """As in a Role: `create pods/eviction in demo`."""
    purpose: str
    without: str | None = None
    """What is missing from what the drill sees or tells without it; None where it cannot run without it."""
    allowed: bool | None = None
    """None where the server could not be asked."""
    reason: str | None = None

    @property
    def required(self) -> bool:
        return self.without is None


class _Needs:
    """Collects rights, each once. A required one stays required whatever else it is for."""

    def __init__(self, namespace: str) -> None:
        self.found: dict[Access, Right] = {}
        self._namespace = namespace

    def add(
        self,
        verbs: str,
        resource: Resource,
        purpose: str,
        *,
        without: str | None = None,
        sub: str = "",
        names: Iterable[str] = (),
        namespace: str | None = "",
    ) -> None:
        """`namespace`: another than the workload's; None for all of them. `names`: the only objects."""
        where = (namespace if namespace != "" else self._namespace) if resource.namespaced else None
        for name in sorted(names) or [""]:
            for verb in verbs.split():
                access = Access(verb, resource.plural, where, resource.group, sub, name)
                if access not in self.found or (without is None and not self.found[access].required):
                    self.found[access] = Right(right=str(access), purpose=purpose, without=without)

    def least(self) -> dict[Access, Right]:
        """Without what others cover."""
        return {
            access: right
            for access, right in self.found.items()
            if not any(other.covers(access) for other in self.found if other != access)
        }


def needs(
    drill: Drill,
    playbook: Playbook,
    namespace: str,
    *,
    target: str | None = None,
    owners: Sequence[Resource] = (),
) -> dict[Access, Right]:
    """What the drill will ask of the API server, and nothing that another of its rights covers, in the order of use.

    `target` (what the Lease is named after) and `owners` (kinds above the Pods) are what a plan found on the cluster;
    without a cluster they are what the drill's `controller` tells.
    """
    needs, workload = _Needs(namespace), drill.workload
    needs.add("list watch", PODS, "finding and watching the workload's Pods")
    if workload.service:
        needs.add("list watch", ENDPOINT_SLICES, "watching the endpoints of the Service")
        unseen = "a Service that does not exist looks like one without endpoints"
        needs.add("get", SERVICES, "checking that the Service exists", without=unseen)
    for owner in dict.fromkeys([*_above_pods(workload.controller, owners), *owners]):
        unseen = "replacements are matched by the lowest controller that can be read, and no rollout is noticed"
        needs.add("get", owner, "finding the controller of the Pods and how many it wants", without=unseen)
    _steps(needs, drill, playbook, namespace)
    _observers(needs)
    _lock(needs, target or workload.controller)
    return needs.least()


def _above_pods(controller: str | None, found: Sequence[Resource]) -> Sequence[Resource]:
    if controller is None:
        return () if found else UNNAMED
    return CONTROLLERS.get(kind_of(controller), ())


def kind_of(controller: str) -> str:
    """The kind in a drill's `controller`, in lower case."""
    return controller.partition("/")[0].lower()


def _observers(needs: _Needs) -> None:
    """What is only watched: without it the recording tells less."""
    unseen = "the budgets' state is not on the timeline"
    needs.add("list watch", PDBS, "watching budgets", without=unseen)
    needs.add("list watch", EVENTS, "watching Events of the workload", without="Events are not on the timeline")
    unseen = "a node that fails, or that others cordon or drain, is not seen"
    needs.add("list watch", NODES, "watching nodes", without=unseen)
    unseen = "Events about nodes are not on the timeline"
    needs.add("list watch", EVENTS, "watching Events about nodes", namespace=NODE_EVENTS, without=unseen)


def _steps(needs: _Needs, drill: Drill, playbook: Playbook, namespace: str) -> None:
    for step in playbook.steps:
        match step.body:
            case Evict() as body:
                _evictions(needs, namespace)
                if not body.dry_run:
                    _announcing(needs, namespace)
            case DeletePod():
                needs.add("get", PODS, LOOK_FIRST)
                needs.add("delete", PODS, "deleting Pods")
                _announcing(needs, namespace)
            case Network() as body:
                _peer(needs, drill, body, namespace)
                drivers = drill.drivers.network
                if "ephemeral-container" in drivers:
                    _agent(needs, namespace, "the drill's other network drivers are used" if drivers[1:] else None)
                if "network-policy" in drivers:
                    _policy(needs, namespace, "the drill's other network drivers are used" if drivers[1:] else None)
                _announcing(needs, namespace)
            case Freeze() | Kill():
                _agent(needs, namespace, None)
                _announcing(needs, namespace)
            case Scale() | RolloutRestart():
                _workload(needs, step, drill.workload.controller)
                _announcing(needs, namespace)
            case Drain():
                needs.add("list", PODS, "finding every Pod of a node", namespace=None)
                unseen = "a Pod whose DaemonSet is gone is taken for one that is managed, and left on the node"
                purpose = "telling which DaemonSets of a node's Pods exist"
                needs.add("list", DAEMON_SETS, purpose, namespace=None, without=unseen)
                for where in drill.limits.namespaces or [namespace]:
                    _evictions(needs, where, budgets_required=where == namespace)
                    _announcing(needs, where)
            case Taint(effect="NoExecute"):
                needs.add("list", PODS, "finding every Pod that a taint throws out", namespace=None)
    _nodes(needs, [step for step in playbook.steps if isinstance(step.body, NodeTarget)])


def _workload(needs: _Needs, step: Step, controller: str | None) -> None:
    """The workload's controller is changed itself. Of a drill that names none it is looked up on the cluster."""
    owners = _above_pods(controller, ())[-1:] if controller else (DEPLOYMENTS, STATEFUL_SETS)
    names = [controller.partition("/")[2]] if controller else []
    for owner in owners:
        needs.add(
            "get patch", owner, f"{step.kind}: changing the workload's controller, and putting it back", names=names
        )


def _peer(needs: _Needs, drill: Drill, body: Network, namespace: str) -> None:
    """Who is at the other end is looked up when the fault is made."""
    match body.peer:
        case PodSet() as pods:
            where = pods.namespace
        case "gateway" if drill.workload.gateway is not None:
            where = drill.workload.gateway.namespace
        case _:
            return
    needs.add("list", PODS, "finding the addresses of a network fault's other end", namespace=where or namespace)


def _agent(needs: _Needs, namespace: str, instead: str | None) -> None:
    """The container that makes a fault in a Pod. `instead`: what is done without it, where anything is."""
    needs.add("get", PODS, "looking at each Pod before, while and after its fault is there", namespace=namespace)
    putting = "putting the agent beside a Pod's containers, which makes the fault, and ends it before its time"
    needs.add("patch", PODS, putting, sub="ephemeralcontainers", namespace=namespace, without=instead)
    uncounted = "how many packets a fault hit is not known; that it is there is told by its container's state alone"
    needs.add("get", PODS, "reading what the agent tells", sub="log", namespace=namespace, without=uncounted)


def _policy(needs: _Needs, namespace: str, instead: str | None) -> None:
    """A NetworkPolicy about one Pod. `instead`: what is done without it, where anything is."""
    marking = "putting the label on a Pod by which a NetworkPolicy chooses it, and taking it away again"
    needs.add("get patch", PODS, marking, namespace=namespace, without=instead)
    knowing = "telling whether a Pod is under NetworkPolicies already"
    needs.add("list", NETWORK_POLICIES, knowing, namespace=namespace, without=instead)
    making = "making a NetworkPolicy that cuts a Pod off, and deleting it again"
    needs.add("get create delete", NETWORK_POLICIES, making, namespace=namespace, without=instead)


def _evictions(needs: _Needs, namespace: str, *, budgets_required: bool = True) -> None:
    needs.add(
        "create",
        PODS,
        "evicting Pods, and asking by dry runs what would be answered",
        sub="eviction",
        namespace=namespace,
    )
    needs.add("get", PODS, LOOK_FIRST, namespace=namespace)
    unnamed = None if budgets_required else "the budgets that refuse an eviction there are not named"
    needs.add("list", PDBS, "telling what budgets make of an eviction", namespace=namespace, without=unnamed)


def _announcing(needs: _Needs, namespace: str) -> None:
    untold = "whoever looks at the targets is not told which run did it"
    needs.add("create", EVENTS, "telling on each target which run did it", namespace=namespace, without=untold)


def _nodes(needs: _Needs, steps: Sequence[Step]) -> None:
    bodies = [step.body for step in steps if isinstance(step.body, NodeTarget)]
    if not bodies:
        return
    chosen_later = any(body.node is None and pool_of(body) == "workload" for body in bodies)
    names = {body.node for body in bodies if body.node is not None} if not chosen_later else ()
    kinds = ", ".join(dict.fromkeys(step.kind for step in steps))
    needs.add("list", NODES, f"{kinds}: choosing among nodes")
    needs.add("get patch", NODES, f"{kinds}: changing nodes, checking, putting them back", names=names)
    _announcing(needs, NODE_EVENTS)


def _lock(needs: _Needs, target: str | None) -> None:
    """The Lease's name follows from the target; where that is looked up on the cluster it may be any."""
    names = [name_for(target)] if target else []
    needs.add("create", LEASES, "one drill per target at a time")
    needs.add("get update", LEASES, "one drill per target at a time", names=names)
    stale = "the Lease is left to expire, and keeps the next drill off the target for half a minute"
    needs.add("delete", LEASES, "giving the target free at the end", names=names, without=stale)


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
            lost = f"; without it {right.without}" if right.without else ""
            found.append(
                Problem(
                    severity="refuse" if right.required else "warn",
                    code="forbidden",
                    text=f"not allowed to {right.right} ({right.purpose}){lost}",
                    how="chaosrunner plan --rbac prints the Roles that this drill needs; or use another user (--as)",
                )
            )
    return found
