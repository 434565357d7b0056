"""The scheduler: filters and a score, enough for nodeSelector, affinity, taints, spreading and unschedulable nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from chaosrunner.lab.embedded.controllers.events import record_scheduler_event
from chaosrunner.lab.embedded.controllers.objects import set_condition
from chaosrunner.lab.embedded.controllers.queue import Controller, ObjectKey, key_of
from chaosrunner.lab.embedded.selectors import Requirement, Selector
from chaosrunner.lab.embedded.store import Store, timestamp
from chaosrunner.lab.objects import Json, condition, has_ended, is_terminating

_NAME = "default-scheduler"
_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!", "Gt": "gt", "Lt": "lt"}


class Scheduler(Controller):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._pending: set[ObjectKey] = set()

    def start(self) -> None:
        self.store.subscribe("pods", self._pod_changed)
        self.store.subscribe("nodes", self._node_changed)
        for pod in self.store.list("pods"):
            self._pod_changed("ADDED", pod, None)

    def _pod_changed(self, type_: str, pod: Json, old: Json | None) -> None:
        key = key_of(pod)
        if pod["spec"]["schedulerName"] != _NAME:
            return
        if type_ != "DELETED" and not pod["spec"].get("nodeName"):
            if type_ == "ADDED":
                self.queue.add(key)
        else:
            self._pending.discard(key)
            if type_ == "DELETED" or (old is not None and is_terminating(pod) != is_terminating(old)):
                self._retry()

    def _node_changed(self, type_: str, node: Json, old: Json | None) -> None:
        def relevant(state: Json | None) -> Any:
            return state and (state["spec"], state["metadata"].get("labels"))

        if relevant(node) != relevant(old):
            self._retry()

    def _retry(self) -> None:
        for key in self._pending:
            self.queue.add(key)

    def reconcile(self, key: ObjectKey) -> None:
        pod = self.store.find("pods", key[1], key[0])
        if pod is None or pod["spec"].get("nodeName") or is_terminating(pod) or pod["spec"].get("schedulingGates"):
            self._pending.discard(key)
            return
        nodes = self.store.list("nodes")
        placed = [other for other in self.store.list("pods") if other["spec"].get("nodeName") and not has_ended(other)]
        refusals = {node["metadata"]["name"]: _refusal(pod, node, nodes, placed) for node in nodes}
        fitting = [node for node in nodes if refusals[node["metadata"]["name"]] is None]
        if not fitting:
            self._pending.add(key)
            self._tell_unschedulable(pod, len(nodes), [text for text in refusals.values() if text])
            return
        best = min(fitting, key=lambda node: _cost(pod, node, placed))
        name = best["metadata"]["name"]
        self._pending.discard(key)
        self.store.bind(key[0], key[1], name)
        note = f"Successfully assigned {key[0]}/{key[1]} to {name}"
        record_scheduler_event(self.store, pod, "Normal", "Scheduled", "Binding", note)

    def _tell_unschedulable(self, pod: Json, nodes: int, refusals: list[str]) -> None:
        helpless = [text for text in refusals if text != _ANTI_AFFINITY and text != _TOO_MANY]
        preemption = Counter(
            "Preemption is not helpful for scheduling" if text in helpless else _NO_VICTIMS for text in refusals
        )
        if nodes:
            note = f"0/{nodes} nodes are available: {_listed(refusals)}. "
            note += f"preemption: 0/{nodes} nodes are available: {_listed(preemption.elements())}."
        else:
            note = "no nodes available to schedule pods"
        present = condition(pod, "PodScheduled")
        if present is not None and present["status"] == "False" and present["message"] == note:
            return
        record_scheduler_event(self.store, pod, "Warning", "FailedScheduling", "Scheduling", note)

        def change(new: Json) -> None:
            unscheduled = {
                "type": "PodScheduled",
                "observedGeneration": new["metadata"]["generation"],
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": timestamp(self.store.now()),
                "reason": "Unschedulable",
                "message": note,
            }
            set_condition(new["status"].setdefault("conditions", []), unscheduled)

        meta = pod["metadata"]
        self.store.mutate("pods", meta["name"], meta["namespace"], change, subresource="status")


_ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
_TOO_MANY = "Too many pods"
_NO_VICTIMS = "No preemption victims found for incoming pod"


def _listed(reasons: Iterable[str]) -> str:
    """`1 node(s) were unschedulable, 2 Too many pods`, in the order of the texts as the scheduler sorts them."""
    return ", ".join(sorted(f"{count} {text}" for text, count in Counter(reasons).items()))


def _refusal(pod: Json, node: Json, nodes: list[Json], placed: list[Json]) -> str | None:
    """Why the Pod cannot go to the node, in the scheduler's words, or None."""
    spec = pod["spec"]
    tolerations = spec.get("tolerations") or []
    if node["spec"].get("unschedulable") and not tolerates(tolerations, _UNSCHEDULABLE_TAINT):
        return "node(s) were unschedulable"
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerates(tolerations, taint):
            return "node(s) had untolerated taint(s)"
    if not _fits_node_affinity(spec, node):
        return "node(s) didn't match Pod's node affinity/selector"
    there = sum(other["spec"]["nodeName"] == node["metadata"]["name"] for other in placed)
    if there >= int(node["status"].get("allocatable", {}).get("pods", 110)):
        return _TOO_MANY
    if not _fits_hard_spread(pod, node, nodes, placed):
        return "node(s) didn't match pod topology spread constraints"
    if _meets_anti_affinity(pod, node, nodes, placed):
        return _ANTI_AFFINITY
    return None


def tolerates(tolerations: Iterable[Json], taint: Json) -> bool:
    return any(
        entry.get("effect") in (None, "", taint["effect"])
        and (
            (not entry.get("key") and entry.get("operator") == "Exists")
            or (
                entry.get("key") == taint["key"]
                and (entry.get("operator") == "Exists" or entry.get("value", "") == taint.get("value", ""))
            )
        )
        for entry in tolerations
    )


def _fits_node_affinity(spec: Json, node: Json) -> bool:
    labels = node["metadata"].get("labels") or {}
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True

    def holds(term: Json) -> bool:
        fields = {"metadata.name": node["metadata"]["name"]}
        expressions = [(entry, labels) for entry in term.get("matchExpressions") or ()]
        expressions += [(entry, fields) for entry in term.get("matchFields") or ()]
        return bool(expressions) and all(
            Requirement(entry["key"], _OPERATORS[entry["operator"]], tuple(entry.get("values") or ())).matches(values)
            for entry, values in expressions
        )

    return any(holds(term) for term in required["nodeSelectorTerms"])


def _domain(node_name: str, key: str, nodes: Iterable[Json]) -> str | None:
    """The value of a topology key on a node."""
    for node in nodes:
        if node["metadata"]["name"] == node_name:
            value = (node["metadata"].get("labels") or {}).get(key)
            return str(value) if value is not None else None
    return None


def _selected(term: Json, pod: Json, others: Iterable[Json]) -> list[Json]:
    """The Pods that a term of `pod` means: its selector, in its namespaces (the Pod's own by default)."""
    selector = Selector.of(term.get("labelSelector"))
    namespaces = term.get("namespaces") or [pod["metadata"]["namespace"]]
    if selector is None:
        return []
    return [
        other
        for other in others
        if other["metadata"]["namespace"] in namespaces and selector.matches(other["metadata"].get("labels"))
    ]


def _anti_terms(pod: Json) -> list[Json]:
    anti = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    return list(anti.get("requiredDuringSchedulingIgnoredDuringExecution") or ())


def _meets_anti_affinity(pod: Json, node: Json, nodes: list[Json], placed: list[Json]) -> bool:
    """Whether a required anti-affinity, the Pod's own or that of a placed Pod, forbids the node."""
    name = node["metadata"]["name"]

    def together(other: Json, key: str) -> bool:
        return _domain(other["spec"]["nodeName"], key, nodes) == _domain(name, key, nodes)

    own = any(
        together(other, term["topologyKey"]) for term in _anti_terms(pod) for other in _selected(term, pod, placed)
    )
    theirs = any(
        together(other, term["topologyKey"])
        for other in placed
        for term in _anti_terms(other)
        if _selected(term, other, [pod])
    )
    return own or theirs


def _spread_counts(constraint: Json, pod: Json, nodes: Iterable[Json], placed: list[Json]) -> Counter[str]:
    """Matching Pods per domain; terminating ones do not count."""
    key = constraint["topologyKey"]
    alive = [other for other in placed if not is_terminating(other)]
    counts: Counter[str] = Counter()
    for node in nodes:
        value = (node["metadata"].get("labels") or {}).get(key)
        if value is not None:
            counts[value] += 0
    for other in _selected(constraint, pod, alive):
        value = _domain(other["spec"]["nodeName"], key, nodes)
        if value is not None and value in counts:
            counts[value] += 1
    return counts


def _fits_hard_spread(pod: Json, node: Json, nodes: list[Json], placed: list[Json]) -> bool:
    for constraint in pod["spec"].get("topologySpreadConstraints") or ():
        if constraint.get("whenUnsatisfiable") == "ScheduleAnyway":
            continue
        # Taints do not narrow the domains (nodeTaintsPolicy Ignore), the node selector does (nodeAffinityPolicy Honor).
        eligible = [entry for entry in nodes if _fits_node_affinity(pod["spec"], entry)]
        counts = _spread_counts(constraint, pod, eligible, placed)
        value = _domain(node["metadata"]["name"], constraint["topologyKey"], nodes)
        if value is None or counts[value] + 1 - min(counts.values()) > constraint["maxSkew"]:
            return False
    return True


def _cost(pod: Json, node: Json, placed: list[Json]) -> tuple[Any, ...]:
    """Lower is better: siblings by soft rules, avoided taints, siblings of the same owner, Pods on the node at all."""
    name = node["metadata"]["name"]
    here = [other for other in placed if other["spec"]["nodeName"] == name and not is_terminating(other)]
    anti = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    disliked = sum(
        entry["weight"] * len(_selected(entry["podAffinityTerm"], pod, here))
        for entry in anti.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    )
    spread = sum(len(_selected(entry, pod, here)) for entry in pod["spec"].get("topologySpreadConstraints") or ())
    tolerations = pod["spec"].get("tolerations") or []
    avoided = sum(
        taint["effect"] == "PreferNoSchedule" and not tolerates(tolerations, taint)
        for taint in node["spec"].get("taints") or ()
    )
    owners = {owner["uid"] for owner in pod["metadata"].get("ownerReferences") or ()}
    siblings = sum(
        any(owner["uid"] in owners for owner in other["metadata"].get("ownerReferences") or ()) for other in here
    )
    return disliked + spread, avoided, siblings, len(here), name
