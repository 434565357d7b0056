"""Which Pods a drain takes, as kubectl decides it, and what to do with each answer; pure functions.

The rules are those of kubectl's `pkg/drain/filters.go`. One difference: a Pod that is terminating already is waited
for and never blocks, since nothing that a drain does would change its fate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from chaosrunner.cluster.answers import EvictionClass
from chaosrunner.cluster.resources import Object, controller, finished, meta, terminating
from chaosrunner.cluster.session import Answer

MIRROR = "kubernetes.io/config.mirror"

RETRY_EVERY = 5.0
"""Seconds that kubectl waits after a 429."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """kubectl's flags of the same names, with kubectl's defaults."""

    ignore_daemonsets: bool = False
    delete_emptydir_data: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainDecision:
    """What a drain does with one Pod. evict: take it. skip: leave it. block: the whole drain is refused.
    wait: it is going already."""

    pod: Object
    verdict: Literal["evict", "skip", "block", "wait"]
    reason: str

    @property
    def name(self) -> str:
        return str(meta(self.pod).get("name"))


def select(
    pods: Iterable[Object], options: DrainOptions, daemonsets: Collection[tuple[str, str]] | None = None
) -> list[DrainDecision]:
    """Judge every Pod of a node. A drain may begin, and a node be cordoned, only if none blocks.

    `daemonsets` are the (namespace, name) of those that exist; None takes all owners for existing ones.
    """
    return [_judge(pod, options, daemonsets) for pod in pods]


def _judge(pod: Object, options: DrainOptions, daemonsets: Collection[tuple[str, str]] | None) -> DrainDecision:
    def decide(verdict: Literal["evict", "skip", "block", "wait"], reason: str) -> DrainDecision:
        return DrainDecision(pod=pod, verdict=verdict, reason=reason)

    metadata, owner, done = meta(pod), controller(pod), finished(pod)
    reasons: list[str] = []
    if owner and owner.get("kind") == "DaemonSet" and not done:
        if daemonsets is not None and (metadata.get("namespace"), owner.get("name")) not in daemonsets:
            if not options.force:
                return decide("block", f"its DaemonSet {owner.get('name')} does not exist; needs force")
            reasons.append(f"its DaemonSet {owner.get('name')} does not exist")
        elif not options.ignore_daemonsets:
            return decide("block", "managed by a DaemonSet; needs ignore_daemonsets")
        else:
            return decide("skip", "managed by a DaemonSet, which would start it again")
    if MIRROR in (metadata.get("annotations") or {}):
        return decide("skip", "mirror of a static Pod, which only its kubelet can stop")
    if terminating(pod):
        return decide("wait", "terminating already")
    if done:
        return decide("evict", f"finished ({pod['status']['phase']}): nothing is lost")
    if any(volume.get("emptyDir") is not None for volume in (pod.get("spec") or {}).get("volumes") or []):
        if not options.delete_emptydir_data:
            return decide("block", "has emptyDir data that would be lost; needs delete_emptydir_data")
        reasons.append("its emptyDir data is lost")
    if owner is None:
        if not options.force:
            return decide("block", "no controller would replace it; needs force")
        reasons.append("no controller replaces it")
    return decide("evict", "; ".join(reasons) or f"replaced by its {(owner or {}).get('kind')}")


Move = Literal["done", "wait", "retry", "fail"]


def next_move(answer: EvictionClass, *, was_terminating: bool) -> Move:
    """What kubectl does after an eviction's answer: `wait` until the Pod is gone, `retry` in `RETRY_EVERY` seconds.

    An unreachable server may have accepted it: `retry`, which starts with a look whether the Pod still is there.
    """
    match answer:
        case "accepted" | "already_terminating":
            return "wait"
        case "not_found":
            return "done"
        case "blocked_by_budget" | "budget_not_observed" | "throttled" | "conflict" | "unreachable":
            return "retry"
        case "namespace_terminating":
            return "wait" if was_terminating else "retry"
        case _:
            return "fail"


def gone(pod: Object, answer: Answer) -> bool:
    """Whether the answer to a GET says that this very Pod is no more: 404, or the same name with another UID."""
    return answer.status == 404 or (answer.ok and meta(answer.body).get("uid") != meta(pod)["uid"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Why a terminating Pod is still there."""

    deadline: str | None
    """deletionTimestamp as reported: when its grace period ends."""
    overdue: float | None
    """Seconds since the deadline; negative before it; None if it is not terminating."""
    finalizers: tuple[str, ...]
    stopped: bool
    """All its containers have ended, so that only finalizers or the kubelet hold it."""


def leaving(pod: Object, wall: float) -> Leaving:
    """The facts about a Pod that a drain waits for; `wall` is the time now, in unix seconds on the API server's
    clock."""
    deadline = meta(pod).get("deletionTimestamp")
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return Leaving(
        deadline=deadline,
        overdue=wall - datetime.fromisoformat(deadline).timestamp() if deadline else None,
        finalizers=tuple(meta(pod).get("finalizers") or ()),
        stopped=bool(statuses) and all("terminated" in (status.get("state") or {}) for status in statuses),
    )
