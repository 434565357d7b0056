"""Which Pods a step may aim at, and which of them it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from chaosrunner.errors import UserError
from chaosrunner.plan.selectors import selects
from chaosrunner.playbook.base import Quantity
from chaosrunner.playbook.models import Pick

Object = dict[str, Any]


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


def choose(
    candidates: Sequence[Candidate],
    *,
    pods: Quantity,
    pick: Pick,
    in_flight: Mapping[str, int],
    random: Random,
    matches: Callable[[Candidate], bool | None] = lambda _: True,
) -> list[Candidate]:
    """Takes `pods` of the candidates, in the order in which they are to be hit.

    `in_flight`: streams in flight by the Pod's name. `matches`: the step's own narrowing; unknown is no match.
    Equal ones are told apart by name, so that the same state gives the same choice. Raises UserError, see `amount`.
    """
    pool = sorted((c for c in candidates if matches(c)), key=lambda c: c.name)
    taken = amount(pods, len(pool))
    match pick:
        case "most_in_flight":
            pool.sort(key=lambda c: -in_flight.get(c.name, 0))
        case "least_in_flight":
            pool.sort(key=lambda c: in_flight.get(c.name, 0))
        case "oldest":
            pool.sort(key=lambda c: c.created)
        case "newest":
            pool.sort(key=lambda c: c.created, reverse=True)
        case "random":
            random.shuffle(pool)
    return pool[:taken]
