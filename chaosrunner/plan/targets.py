"""Which Pods a step may aim at, and which of them it takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Literal

import msgspec

from chaosrunner.cluster.resources import Object
from chaosrunner.errors import UserError
from chaosrunner.playbook.base import Quantity
from chaosrunner.playbook.selectors import selects
from chaosrunner.playbook.steps import NodeTarget, Pick, PodSource, Uncordon
from chaosrunner.timeline import rows


class Candidate(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A Pod that faults may take, frozen by UID when the plan was made."""

    name: str
    namespace: str
    uid: str
    node: str | None = None
    ip: str | None = None
    created: str = ""
    """creationTimestamp; RFC 3339 in UTC sorts as text."""
    labels: dict[str, str] = {}

    @property
    def pod(self) -> Object:
        """The Pod object, as much of it as a call to the API needs."""
        return {
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": self.namespace, "uid": self.uid, "labels": self.labels},
            "spec": {"nodeName": self.node},
            "status": {"podIP": self.ip},
        }


def candidate(pod: Object) -> Candidate:
    metadata = pod["metadata"]
    return Candidate(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        uid=metadata["uid"],
        node=(pod.get("spec") or {}).get("nodeName"),
        ip=(pod.get("status") or {}).get("podIP"),
        created=metadata.get("creationTimestamp") or "",
        labels=metadata.get("labels") or {},
    )


def excluded(pod: Object, *, namespace: str, labels: str | None, namespaces: Sequence[str]) -> str | None:
    """Why a Pod that the selector found is no candidate, None if it is one.

    `labels` (a selector) and `namespaces` are the drill's limits; empty ones do not limit.
    """
    metadata = pod["metadata"]
    here = metadata.get("namespace", "")
    if here != namespace:
        return f"in namespace {here}"
    if namespaces and here not in namespaces:
        return f"namespace {here} is outside the drill's limits"
    if metadata.get("deletionTimestamp"):
        return "terminating"
    phase = (pod.get("status") or {}).get("phase")
    if phase != "Running":
        return f"phase {phase}"
    if labels and not selects(labels, metadata.get("labels") or {}):
        return f"labels outside the drill's limits ({labels})"
    return None


def amount(pods: Quantity, available: int) -> int:
    """How many of `available` Pods are taken. Raises UserError if there is none, or fewer than a number asks for."""
    taken = pods.of(available)
    if available == 0:
        raise UserError("there is no candidate to take")
    if taken > available:
        raise UserError(f"asks for {taken} Pods, but there are {available} candidates")
    return taken


Live = Mapping[str, int]
"""Streams in flight, by the Pod's name."""


def narrow(source: PodSource | None, pool: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that a step's `from` leaves, as far as labels and nodes tell; expressions are for `choose`."""
    if source is None:
        return list(pool)
    return [
        c
        for c in pool
        if (source.node is None or c.node == source.node)
        and (source.selector is None or selects(source.selector, c.labels))
    ]


def choose(
    pool: Sequence[Candidate],
    *,
    pods: Quantity,
    pick: Pick,
    in_flight: Live,
    random: Random,
    matches: Callable[[Candidate], bool | None] = lambda _: True,
) -> list[Candidate]:
    """Takes `pods` of the candidates, in the order in which they are to be hit.

    `matches`: the step's own condition; unknown is no match. Equal ones are told apart by name, so that the same
    state gives the same choice. Raises UserError, see `amount`.
    """
    left = [c for c in pool if matches(c)]
    taken = amount(pods, len(left))
    return _ordered(left, pick, in_flight, random)[:taken]


class NodeCandidate(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A node that faults may take, with the candidates that run on it."""

    name: str
    uid: str | None = None
    labels: dict[str, str] = {}
    pods: list[Candidate] = []

    @property
    def target(self) -> rows.Target:
        return rows.Target(kind="Node", name=self.name, uid=self.uid)


def pool_of(body: NodeTarget) -> Literal["workload", "cordoned"]:
    """Among which nodes a step that names none chooses: those of the workload, or those that this run cordoned."""
    return body.of or ("cordoned" if isinstance(body, Uncordon) else "workload")


def node_pool(
    body: NodeTarget, nodes: Sequence[NodeCandidate], *, cordoned: Collection[str] = ()
) -> list[NodeCandidate]:
    """The nodes among which a step chooses; the one that it names. `cordoned`: names of nodes that this run cordoned.

    Raises UserError if there is none.
    """
    if body.node is not None:
        named = [node for node in nodes if node.name == body.node]
        if not named:
            raise UserError(f"there is no node {body.node}")
        return named
    of = pool_of(body)
    left = [
        node
        for node in nodes
        if (node.name in cordoned if of == "cordoned" else bool(node.pods))
        and (body.selector is None or selects(body.selector, node.labels))
    ]
    if not left:
        raise UserError("this run has cordoned no node" if of == "cordoned" else "no node runs a candidate")
    return left


def choose_nodes(
    body: NodeTarget,
    nodes: Sequence[NodeCandidate],
    *,
    in_flight: Live,
    random: Random,
    cordoned: Collection[str] = (),
) -> list[NodeCandidate]:
    """The nodes that a step takes of its pool (see `node_pool`). An uncordon that names nothing takes all of them.

    Ages and streams in flight are those of the nodes' candidates. Raises UserError if there are too few.
    """
    left = node_pool(body, nodes, cordoned=cordoned)
    if body.node is not None:
        return left
    quantity = body.nodes or Quantity("all" if isinstance(body, Uncordon) else "one")
    taken = quantity.of(len(left))
    if taken > len(left):
        raise UserError(f"asks for {taken} nodes, but there are {len(left)} candidates")
    by_name = {node.name: node for node in left}
    summed = {node.name: sum(in_flight.get(c.name, 0) for c in node.pods) for node in left}
    ages = [
        Candidate(name=node.name, namespace="", uid=node.name, created=min((c.created for c in node.pods), default=""))
        for node in left
    ]
    return [by_name[c.name] for c in _ordered(ages, body.pick, summed, random)[:taken]]


def _ordered(pool: Sequence[Candidate], pick: Pick, in_flight: Live, random: Random) -> list[Candidate]:
    ordered = sorted(pool, key=lambda c: c.name)
    match pick:
        case "most_in_flight":
            ordered.sort(key=lambda c: -in_flight.get(c.name, 0))
        case "least_in_flight":
            ordered.sort(key=lambda c: in_flight.get(c.name, 0))
        case "oldest":
            ordered.sort(key=lambda c: c.created)
        case "newest":
            ordered.sort(key=lambda c: c.created, reverse=True)
        case "random":
            random.shuffle(ordered)
    return ordered
