"""The eviction subresource: the checks of the real server, in its order.

Source: pkg/registry/core/pod/storage/eviction.go of Kubernetes, and recorded answers of 1.37. Two of its properties
matter to a drill: budgets are not looked at for a Pod that has ended, is Pending, or is going already; and a
precondition is checked only by the delete at the end, when the budget is spent.
"""

from __future__ import annotations

from typing import Any

from chaosrunner.lab.embedded import errors
from chaosrunner.lab.embedded.errors import ApiError
from chaosrunner.lab.embedded.resources import STORED
from chaosrunner.lab.embedded.selectors import Selector
from chaosrunner.lab.embedded.store import Store, timestamp
from chaosrunner.lab.objects import Json

MOST_UNCONFIRMED = 2000
"""More evictions than this that the disruption controller has not confirmed are refused."""


def evict(store: Store, namespace: str, name: str, eviction: Json, *, dry_run: bool = False) -> Json:
    """Evict a Pod and return the Status of the success (HTTP 201).

    ApiError 400 (another name in the body), 404, 409 (a precondition fails; the budget is spent nevertheless),
    429 (the budget allows none, or is not observed yet), 403 (the budget's status makes no sense, or the namespace
    goes away), 500 (several budgets match the Pod).
    """
    if eviction.get("metadata", {}).get("name") != name:
        raise errors.bad_request("name in URL does not match name in Eviction object")
    options = eviction.get("deleteOptions") or {}
    dry_run = dry_run or bool(options.get("dryRun"))
    store.require_open_namespace(STORED["pods"], namespace, name)
    pod = store.get("pods", name, namespace)
    if not _needs_no_budget(pod):
        budgets = [
            budget
            for budget in store.list("poddisruptionbudgets", namespace)
            if (selector := Selector.of(budget["spec"].get("selector"))) and selector.matches(_labels(pod))
        ]
        if len(budgets) > 1:
            message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise errors.failure(500, None, message)
        if budgets and not _may_go_unready(pod, budgets[0]):
            _spend(store, budgets[0], name, dry_run=dry_run)
    _delete(store, pod, options, dry_run=dry_run)
    return errors.success(code=201)


def _labels(pod: Json) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def _needs_no_budget(pod: Json) -> bool:
    phase = pod["status"].get("phase")
    return phase in ("Succeeded", "Failed", "Pending") or bool(pod["metadata"].get("deletionTimestamp"))


def _may_go_unready(pod: Json, budget: Json) -> bool:
    """Whether a Pod that is not Ready goes without spending the budget (spec.unhealthyPodEvictionPolicy)."""
    conditions = pod["status"].get("conditions", ())
    if any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions):
        return False
    status = budget["status"]
    always = budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
    return always or bool(status["currentHealthy"] >= status["desiredHealthy"] > 0)


def _spend(store: Store, budget: Json, pod: str, *, dry_run: bool) -> None:
    """Take one disruption out of the budget and note the Pod there until the disruption controller sees it go."""
    meta, status = budget["metadata"], budget["status"]
    name, allowed = meta["name"], status["disruptionsAllowed"]
    if status.get("observedGeneration", 0) < meta["generation"]:
        raise _blocked(f"The disruption budget {name} is still being processed by the server.", retry_after=10)
    if allowed < 0:
        raise _impossible(name, "pdb disruptions allowed is negative")
    if len(status.get("disruptedPods", {})) > MOST_UNCONFIRMED:
        raise _impossible(name, "DisruptedPods map too big - too many evictions not confirmed by PDB controller")
    if allowed == 0:
        raise _blocked(_why_none_allowed(name, status))
    if dry_run:
        return
    now = timestamp(store.now())

    def spend(new: Json) -> None:
        status = new["status"]
        status["disruptionsAllowed"] -= 1
        status["disruptedPods"] = status.get("disruptedPods", {}) | {pod: now}
        for condition in status.get("conditions", ()) if status["disruptionsAllowed"] == 0 else ():
            if condition["type"] == "DisruptionAllowed" and condition["status"] != "False":
                condition |= {"status": "False", "reason": "InsufficientPods", "lastTransitionTime": now}

    store.mutate("poddisruptionbudgets", name, meta["namespace"], spend, subresource="status")


def _why_none_allowed(name: str, status: Json) -> str:
    for condition in status.get("conditions", ()):
        if condition["type"] == "DisruptionAllowed" and condition.get("reason") == "SyncFailed":
            why = condition.get("message", "")
            return f"The disruption budget {name} does not allow evicting pods currently because it failed sync: {why}"
    desired, current = status["desiredHealthy"], status["currentHealthy"]
    if current <= desired:
        return f"The disruption budget {name} needs {desired} healthy pods and has {current} currently"
    return f"The disruption budget {name} does not allow evicting pods currently"


def _blocked(why: str, retry_after: int = 0) -> ApiError:
    details: dict[str, Any] = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    if retry_after:
        details["retryAfterSeconds"] = retry_after
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return errors.failure(429, "TooManyRequests", message, details)


def _impossible(name: str, why: str) -> ApiError:
    details = {"name": name, "group": "policy", "kind": "poddisruptionbudget"}
    return errors.forbidden(details, f'poddisruptionbudget.policy "{name}" is forbidden: {why}')


def _delete(store: Store, pod: Json, options: Json, *, dry_run: bool) -> None:
    """Mark the Pod as target of a disruption, then delete it; both only if the preconditions hold."""
    meta = pod["metadata"]
    name, namespace = meta["name"], meta["namespace"]
    preconditions = options.get("preconditions") or {}
    uid, version = preconditions.get("uid"), preconditions.get("resourceVersion")
    store.delete("pods", name, namespace, uid=uid, resource_version=version, dry_run=True)
    if dry_run:
        return
    now = timestamp(store.now())

    def mark(new: Json) -> None:
        conditions = new["status"].setdefault("conditions", [])
        if not any(entry["type"] == "DisruptionTarget" and entry["status"] == "True" for entry in conditions):
            conditions[:] = [entry for entry in conditions if entry["type"] != "DisruptionTarget"]
            conditions.append(
                {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "lastProbeTime": None,
                    "lastTransitionTime": now,
                    "reason": "EvictionByEvictionAPI",
                    "message": "Eviction API: evicting",
                }
            )

    store.mutate("pods", name, namespace, mark, subresource="status")
    store.delete(
        "pods",
        name,
        namespace,
        uid=uid,
        grace=options.get("gracePeriodSeconds"),
        propagation=options.get("propagationPolicy"),
    )
