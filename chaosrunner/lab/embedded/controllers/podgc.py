"""Pod garbage collection: Pods of nodes that no longer exist."""

from __future__ import annotations

from chaosrunner.lab.embedded.controllers.objects import set_condition
from chaosrunner.lab.embedded.controllers.queue import Controller, ObjectKey, key_of
from chaosrunner.lab.embedded.store import Store, timestamp
from chaosrunner.lab.objects import Json, has_ended

QUARANTINE = 40.0
"""Seconds that a node must have been gone (pkg/controller/podgc, quarantineTime)."""


class PodGarbageCollector(Controller):
    """Deletes a Pod (grace 0) whose node has been gone for `quarantine` seconds; no agent is left that could end it."""

    def __init__(self, store: Store, *, quarantine: float = QUARANTINE) -> None:
        super().__init__(store)
        self._quarantine = quarantine

    def start(self) -> None:
        self.store.subscribe("nodes", self._node_changed)
        self.store.subscribe("pods", self._pod_changed)

    def _node_changed(self, type_: str, node: Json, old: Json | None) -> None:
        if type_ == "DELETED":
            for pod in self.store.list("pods"):
                self._look_later(pod)

    def _pod_changed(self, type_: str, pod: Json, old: Json | None) -> None:
        if type_ != "DELETED":
            self._look_later(pod)

    def _look_later(self, pod: Json) -> None:
        node = pod["spec"].get("nodeName")
        if node and self.store.find("nodes", node) is None:
            self.queue.add_after(key_of(pod), self._quarantine)

    def reconcile(self, key: ObjectKey) -> None:
        pod = self.store.find("pods", key[1], key[0])
        node = pod["spec"].get("nodeName") if pod is not None else None
        if pod is None or not node or self.store.find("nodes", node) is not None:
            return
        if not has_ended(pod):
            now = timestamp(self.store.now())

            def mark(new: Json) -> None:
                new["status"]["phase"] = "Failed"
                target = {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "lastProbeTime": None,
                    "lastTransitionTime": now,
                    "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists",
                }
                set_condition(new["status"].setdefault("conditions", []), target)

            self.store.mutate("pods", key[1], key[0], mark, subresource="status")
        self.store.delete("pods", key[1], key[0], grace=0)
