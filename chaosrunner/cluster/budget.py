"""PodDisruptionBudgets: the arithmetic of the disruption controller, and what an eviction would be answered.

Pure functions over plain objects. Rules: https://kubernetes.io/docs/tasks/run-application/configure-pdb/, the
disruption controller (`pkg/controller/disruption`) and the eviction handler
(`pkg/registry/core/pod/storage/eviction.go`), checked against recorded answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from chaosrunner.cluster.answers import EvictionClass
from chaosrunner.cluster.resources import Object, controller, finished, labels, meta, ready, terminating

HELD = 120.0
"""Seconds after which the disruption controller forgets an eviction that it never saw happen (DeletionTimeout)."""

COUNTABLE = frozenset({"Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"})
"""Controllers that have a scale, so that the disruption controller can count the Pods that there should be."""

SCALELESS = frozenset({"Job", "CronJob", "DaemonSet", "Node"})
"""Controllers that have none; a budget that matches a Pod of one cannot be computed (unless minAvailable is a number).
Other kinds may have a scale or not: their definition tells, not their name."""


# --- selectors and arithmetic -----------------------------------------------------------------------------


def matches(selector: Mapping[str, Any] | None, pod_labels: Mapping[str, str]) -> bool:
    """Whether a policy/v1 label selector matches. An empty one matches everything, an absent one nothing.

    Raises ValueError for an operator that Kubernetes does not have.
    """
    if selector is None:
        return False
    if any(pod_labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(expression, pod_labels) for expression in selector.get("matchExpressions") or [])


def _holds(expression: Mapping[str, Any], pod_labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return pod_labels.get(key) in values
        case "NotIn":
            return pod_labels.get(key) not in values
        case "Exists":
            return key in pod_labels
        case "DoesNotExist":
            return key not in pod_labels
        case operator:
            raise ValueError(f"selector operator {operator!r} does not exist")


def budgets_of(pod: Object, pdbs: Iterable[Object]) -> list[Object]:
    """The budgets that match a Pod, by name."""
    found = [
        pdb
        for pdb in pdbs
        if meta(pdb).get("namespace") == meta(pod).get("namespace")
        and matches((pdb.get("spec") or {}).get("selector"), labels(pod))
    ]
    return sorted(found, key=_name)


def scaled(value: int | str, expected: int) -> int:
    """A number or a percentage of the expected Pods, percentages rounded **up**, as the controller does for both
    fields."""
    if isinstance(value, int):
        return value
    return -(-int(value.removesuffix("%")) * expected // 100)


def desired_healthy(spec: Mapping[str, Any], expected: int) -> int:
    """How many healthy Pods the budget insists on when `expected` Pods should exist."""
    if (most := spec.get("maxUnavailable")) is not None:
        return max(0, expected - scaled(most, expected))
    return scaled(spec.get("minAvailable", 1), expected)


def allowed(spec: Mapping[str, Any], expected: int, healthy: int) -> int:
    """disruptionsAllowed; 0 where no Pods are expected."""
    return max(0, healthy - desired_healthy(spec, expected)) if expected > 0 else 0


# --- verdicts ---------------------------------------------------------------------------------------------

Verdict = Literal[
    "ok",
    "blocked_now",
    "pdb_sync_failed",
    "not_observed",
    "matches_nothing",
    "scaled_to_zero",
    "drain_would_never_finish",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetVerdict:
    """What one budget means for a drill."""

    pdb: str
    verdict: Verdict
    detail: str
    blocks: bool
    """Whether it would keep an eviction of a Ready Pod from happening now."""
    culprits: tuple[str, ...] = ()
    """Pods that keep the controller from counting."""


def assess(pdb: Object, pods: Sequence[Object], workload_replicas: int | None = None) -> BudgetVerdict:
    """Judge one budget. `pods` are those of its namespace; `workload_replicas` is the number that the workload's
    controller wants, which tells a budget of a workload scaled to zero from one whose selector has a typo."""
    name, spec, status = _name(pdb), pdb.get("spec") or {}, pdb.get("status") or {}
    matched = [pod for pod in pods if budgets_of(pod, [pdb])]
    expected, permitted = int(status.get("expectedPods") or 0), int(status.get("disruptionsAllowed") or 0)

    def verdict(kind: Verdict, detail: str, *, blocks: bool, culprits: tuple[str, ...] = ()) -> BudgetVerdict:
        return BudgetVerdict(pdb=name, verdict=kind, detail=detail, blocks=blocks, culprits=culprits)

    if (sync := _condition(pdb)) and sync.get("reason") == "SyncFailed":
        culprits = tuple(_name(pod) for pod in matched if (controller(pod) or {}).get("kind") in SCALELESS)
        culprits = culprits or tuple(
            _name(pod) for pod in matched if (ref := controller(pod)) and ref.get("kind") not in COUNTABLE
        )
        detail = "the disruption controller cannot count the Pods that there should be, so it allows no disruption"
        if culprits:
            detail += f"; the selector also matches {', '.join(culprits)}, whose controller has no scale"
        return verdict("pdb_sync_failed", detail, blocks=True, culprits=culprits)
    if int(status.get("observedGeneration") or 0) < int(meta(pdb).get("generation") or 0):
        detail = "the disruption controller has not seen its latest change yet; evictions get 429 until it has"
        return verdict("not_observed", detail, blocks=True)
    if not pdb.get("status"):
        return verdict("not_observed", "the disruption controller has not computed it", blocks=bool(matched))
    if not matched and expected == 0:
        if workload_replicas == 0:
            return verdict("scaled_to_zero", "no Pods are wanted, so there is nothing to protect", blocks=False)
        return verdict("matches_nothing", "its selector matches no Pod: it protects nothing", blocks=False)
    wanted = desired_healthy(spec, expected)
    if expected > 0 and wanted >= expected:
        detail = f"it wants {wanted} healthy of {expected}: no eviction is ever allowed, a drain would never finish"
        return verdict("drain_would_never_finish", detail, blocks=permitted <= 0)
    if permitted <= 0 and (expected > 0 or matched):
        healthy = int(status.get("currentHealthy") or 0)
        return verdict("blocked_now", f"{healthy} healthy of {expected}, and {wanted} are wanted", blocks=True)
    return verdict("ok", f"{permitted} disruption{'s' * (permitted != 1)} allowed", blocks=False)


# --- what evictions would be answered ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What one eviction of a sequence would be answered."""

    pod: str
    answer: EvictionClass
    reason: str
    pdbs: tuple[str, ...] = ()
    spends: bool = False
    """Whether it takes one disruption from the budget."""


@dataclass(slots=True)
class Budgets:
    """The budgets as a sequence of evictions uses them up. The server's own dry run spends nothing, so several dry
    runs may all say yes where only one eviction is possible; this takes the disruptions off as they are spent."""

    pdbs: Sequence[Object]
    _spent: dict[str, int] = field(default_factory=dict)

    def predict(self, pod: Object) -> Predicted:
        """The answer to evicting `pod` next, in the order of the handler's checks."""
        name = _name(pod)
        if terminating(pod):
            return Predicted(pod=name, answer="already_terminating", reason="it is terminating already")
        phase = (pod.get("status") or {}).get("phase")
        if finished(pod) or phase == "Pending":
            return Predicted(pod=name, answer="accepted", reason=f"phase {phase}: budgets are not looked at")
        matched = budgets_of(pod, self.pdbs)
        names = tuple(map(_name, matched))
        if len(matched) > 1:
            reason = f"matched by {' and '.join(names)}: the API evicts no Pod under two budgets (500, for good)"
            return Predicted(pod=name, answer="multiple_budgets", reason=reason, pdbs=names)
        if not matched:
            return Predicted(pod=name, answer="accepted", reason="no budget matches")
        pdb = matched[0]
        status, spec = pdb.get("status") or {}, pdb.get("spec") or {}
        healthy, wanted = int(status.get("currentHealthy") or 0), int(status.get("desiredHealthy") or 0)
        if not ready(pod):
            if spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
                return Predicted(pod=name, answer="accepted", reason="not Ready, AlwaysAllow", pdbs=names)
            if healthy >= wanted > 0:
                return Predicted(pod=name, answer="accepted", reason="not Ready, and enough others are", pdbs=names)
        if int(status.get("observedGeneration") or 0) < int(meta(pdb).get("generation") or 0):
            reason = f"{names[0]} has not been observed by the disruption controller yet"
            return Predicted(pod=name, answer="budget_not_observed", reason=reason, pdbs=names)
        left = int(status.get("disruptionsAllowed") or 0) - self._spent.get(names[0], 0)
        if left <= 0:
            reason = f"{names[0]} allows no disruption" + (" after those before it" if names[0] in self._spent else "")
            return Predicted(pod=name, answer="blocked_by_budget", reason=reason, pdbs=names)
        self._spent[names[0]] = self._spent.get(names[0], 0) + 1
        reason = f"{names[0]} allows {left} disruption{'s' * (left != 1)}"
        return Predicted(pod=name, answer="accepted", reason=reason, pdbs=names, spends=True)


def predict(pods: Iterable[Object], pdbs: Sequence[Object]) -> list[Predicted]:
    """The answers to evicting `pods` one after the other, before any replacement is Ready."""
    budgets = Budgets(pdbs)
    return [budgets.predict(pod) for pod in pods]


# --- before the drill -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """Something about the workload that a drill should not have to discover."""

    code: Literal["no_budget", "all_on_one_node", "single_replica", "multiple_budgets", "bare_pod"]
    detail: str
    pods: tuple[str, ...]
    pdbs: tuple[str, ...] = ()


def risks(pods: Sequence[Object], pdbs: Sequence[Object]) -> list[Risk]:
    """What the placement and the budgets of a workload's Pods make of a node drain.

    Finished and terminating Pods are left aside.
    """
    pods = [pod for pod in pods if not finished(pod) and not terminating(pod)]
    names = tuple(map(_name, pods))
    found: list[Risk] = []
    if len(pods) == 1:
        found.append(Risk(code="single_replica", detail="its only replica: evicting it is an outage", pods=names))
    nodes = {(pod.get("spec") or {}).get("nodeName") for pod in pods}
    if len(pods) > 1 and len(nodes) == 1 and None not in nodes:
        detail = f"all {len(pods)} replicas are on node {nodes.pop()}: draining it takes them all"
        found.append(Risk(code="all_on_one_node", detail=detail, pods=names))
    unprotected = tuple(_name(pod) for pod in pods if not budgets_of(pod, pdbs))
    if unprotected:
        detail = "no PodDisruptionBudget matches: a drain takes them without asking"
        found.append(Risk(code="no_budget", detail=detail, pods=unprotected))
    overlaps: dict[tuple[str, ...], list[str]] = {}
    for pod in pods:
        if len(matched := tuple(map(_name, budgets_of(pod, pdbs)))) > 1:
            overlaps.setdefault(matched, []).append(_name(pod))
    for matched, victims in overlaps.items():
        detail = "matched by more than one budget: evictions get 500 and no retry heals that"
        found.append(Risk(code="multiple_budgets", detail=detail, pods=tuple(victims), pdbs=matched))
    if bare := tuple(_name(pod) for pod in pods if controller(pod) is None):
        found.append(Risk(code="bare_pod", detail="no controller: nothing replaces them", pods=bare))
    return found


def _name(obj: Object) -> str:
    return str(meta(obj).get("name"))


def _condition(pdb: Object) -> Mapping[str, Any] | None:
    conditions = (pdb.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == "DisruptionAllowed"), None)
