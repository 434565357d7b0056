"""Node lifecycle: nodes that are no longer heard of, their taints, and what follows for the Pods on them."""

from __future__ import annotations

import anyio

from chaosrunner.lab.embedded.controllers.events import Recorder
from chaosrunner.lab.embedded.controllers.objects import set_condition
from chaosrunner.lab.embedded.controllers.queue import Controller, ObjectKey, key_of
from chaosrunner.lab.embedded.controllers.scheduler import tolerates
from chaosrunner.lab.embedded.selectors import parse_fields
from chaosrunner.lab.embedded.store import Store, clone, timestamp
from chaosrunner.lab.objects import Json, condition, is_terminating

LEASES = "kube-node-lease"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_NOT_READY = "node.kubernetes.io/not-ready"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_OWN_TAINTS = (_UNSCHEDULABLE, _NOT_READY, _UNREACHABLE)
_EXECUTING = (_NOT_READY, _UNREACHABLE)


class NodeController(Controller):
    """Watches heartbeats: `grace` seconds without one make a node Unknown; it looks every `period` seconds.

    Order as recorded: conditions Unknown, taint NoSchedule, the node's Pods not Ready, taint NoExecute. Pods are not
    deleted before the toleration of that taint ends (`TaintEvictionController`).
    """

    def __init__(self, store: Store, *, grace: float, period: float) -> None:
        super().__init__(store)
        self._grace = grace
        self._period = period
        self._events = Recorder(store, "node-controller")
        self._heard: dict[str, tuple[str, float]] = {}

    def start(self) -> None:
        self.store.subscribe("nodes", lambda _, obj, __: self.queue.add(key_of(obj)))
        for obj in self.store.list("nodes"):
            self.queue.add(key_of(obj))

    async def monitor(self) -> None:
        """Look at every node's signs of life, for as long as the lab runs."""
        while True:
            await anyio.sleep(self._period)
            for node in self.store.list("nodes"):
                if not self._is_heard(node) and _ready(node) != "Unknown":
                    self._mark_unknown(node)

    def _is_heard(self, node: Json) -> bool:
        """Whether the node's Lease or status changed within the grace period, by this controller's own clock."""
        name = node["metadata"]["name"]
        lease = self.store.find("leases", name, LEASES)
        ready = condition(node, "Ready")
        sign = f"{lease and lease['spec'].get('renewTime')} {ready and ready.get('lastHeartbeatTime')}"
        now = anyio.current_time()
        if name not in self._heard or self._heard[name][0] != sign:
            self._heard[name] = (sign, now)
        return now - self._heard[name][1] <= self._grace

    def _mark_unknown(self, node: Json) -> None:
        now = timestamp(self.store.now())

        def change(new: Json) -> None:
            for entry in new["status"]["conditions"]:
                entry |= {
                    "status": "Unknown",
                    "lastTransitionTime": now,
                    "reason": "NodeStatusUnknown",
                    "message": "Kubelet stopped posting node status.",
                }

        name = node["metadata"]["name"]
        self.store.mutate("nodes", name, None, change, subresource="status")
        self._events.normal(node, "NodeNotReady", f"Node {name} status is now: NodeNotReady")

    def reconcile(self, key: ObjectKey) -> None:
        """Bring the node's own taints in line with its state."""
        node = self.store.find("nodes", key[1])
        if node is None:
            return
        trouble = {"Unknown": _UNREACHABLE, "False": _NOT_READY}.get(_ready(node))
        scheduling = [_UNSCHEDULABLE] if node["spec"].get("unschedulable") else []
        self._set_taints(node, "NoSchedule", [trouble, *scheduling] if trouble else scheduling)
        if trouble:
            self._mark_pods_not_ready(node)
        self._set_taints(node, "NoExecute", [trouble] if trouble else [])

    def _set_taints(self, node: Json, effect: str, wanted: list[str]) -> None:
        def change(new: Json) -> None:
            present = new["spec"].get("taints") or []
            kept = [
                taint
                for taint in present
                if taint["effect"] != effect or taint["key"] not in _OWN_TAINTS or taint["key"] in wanted
            ]
            known = {taint["key"] for taint in kept if taint["effect"] == effect}
            now = timestamp(self.store.now())
            kept += [{"key": name, "effect": effect, "timeAdded": now} for name in wanted if name not in known]
            if kept != present:
                new["spec"]["taints"] = kept
            if not kept:
                new["spec"].pop("taints", None)

        self.store.mutate("nodes", node["metadata"]["name"], None, change)

    def _mark_pods_not_ready(self, node: Json) -> None:
        on_node = parse_fields("pods", f"spec.nodeName={node['metadata']['name']}")
        for pod in self.store.list("pods", fields=on_node):
            ready = condition(pod, "Ready")
            if ready is None or ready["status"] != "True":
                continue
            stale = ready | {"status": "False", "lastTransitionTime": timestamp(self.store.now())}

            def change(new: Json, stale: Json = stale) -> None:
                set_condition(new["status"]["conditions"], clone(stale))

            self.store.mutate(
                "pods", pod["metadata"]["name"], pod["metadata"]["namespace"], change, subresource="status"
            )
            self._events.warning(pod, "NodeNotReady", "Node is not ready")


class TaintEvictionController(Controller):
    """Deletes Pods that do not tolerate a NoExecute taint, or no longer."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._events = Recorder(store, "taint-eviction-controller")
        self._deadlines: dict[ObjectKey, float] = {}

    def start(self) -> None:
        self.store.subscribe("nodes", self._node_changed)
        self.store.subscribe("pods", lambda _, obj, old: self._pod_changed(obj, old))

    def _node_changed(self, type_: str, node: Json, old: Json | None) -> None:
        if old is not None and old["spec"].get("taints") == node["spec"].get("taints"):
            return
        for pod in self.store.list("pods", fields=parse_fields("pods", f"spec.nodeName={node['metadata']['name']}")):
            self.queue.add(key_of(pod))

    def _pod_changed(self, pod: Json, old: Json | None) -> None:
        if pod["spec"].get("nodeName") and (old is None or not old["spec"].get("nodeName")):
            self.queue.add(key_of(pod))

    def reconcile(self, key: ObjectKey) -> None:
        pod = self.store.find("pods", key[1], key[0])
        node = self.store.find("nodes", pod["spec"].get("nodeName", "")) if pod is not None else None
        if pod is None or node is None or is_terminating(pod):
            self._deadlines.pop(key, None)
            return
        taints = [taint for taint in node["spec"].get("taints") or () if taint["effect"] == "NoExecute"]
        patience = _patience(pod, taints)
        if patience is None:
            if self._deadlines.pop(key, None) is not None:
                # This component's events carry no uid of the Pod.
                about = {"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": key[0], "name": key[1]}}
                message = f"Cancelling deletion of Pod {key[0]}/{key[1]}"
                self._events.normal(about, "TaintManagerEviction", message)
            return
        # From when this was first seen; a taint need not say since when it is there.
        now = self.store.now().timestamp()
        if patience and (wait := self._deadlines.setdefault(key, now + patience) - now) > 0:
            self.queue.add_after(key, wait)
            return
        self._deadlines.pop(key, None)
        self._evict(pod)

    def _evict(self, pod: Json) -> None:
        namespace, name = key_of(pod)
        about = {"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": namespace, "name": name}}
        self._events.normal(about, "TaintManagerEviction", f"Marking for deletion Pod {namespace}/{name}")
        now = timestamp(self.store.now())

        def mark(new: Json) -> None:
            target = {
                "type": "DisruptionTarget",
                "status": "True",
                "lastProbeTime": None,
                "lastTransitionTime": now,
                "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
            }
            set_condition(new["status"].setdefault("conditions", []), target)

        self.store.mutate("pods", name, namespace, mark, subresource="status")
        self.store.delete("pods", name, namespace)


def _patience(pod: Json, taints: list[Json]) -> float | None:
    """Seconds that a Pod may stay under these taints; None for ever, 0 for not at all."""
    tolerations = pod["spec"].get("tolerations") or []
    limits: list[float] = []
    for taint in taints:
        matching = [entry for entry in tolerations if tolerates([entry], taint)]
        if not matching:
            return 0.0
        limits += [max(0.0, entry["tolerationSeconds"]) for entry in matching if "tolerationSeconds" in entry]
    return min(limits) if limits else None


def _ready(node: Json) -> str:
    ready = condition(node, "Ready")
    return str(ready["status"]) if ready else "Unknown"
