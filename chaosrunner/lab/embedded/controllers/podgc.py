"""Pod garbage collection: Pods of nodes that no longer exist."""

from __future__ import annotations

from chaosrunner.lab.embedded.controllers.objects import set_condition
from chaosrunner.lab.embedded.controllers.queue import Controller, ObjectKey, key_of
from chaosrunner.lab.embedded.store import timestamp
from chaosrunner.lab.objects import Json, has_ended


class PodGarbageCollector(Controller):
    """Deletes a Pod at once (grace 0) when its node is gone; there is no agent left that could end it."""

    def start(self) -> None:
        self.store.subscribe("nodes", self._node_changed)
        self.store.subscribe("pods", lambda _, obj, __: self.queue.add(key_of(obj)))

    def _node_changed(self, type_: str, node: Json, old: Json | None) -> None:
        if type_ == "DELETED":
            for pod in self.store.list("pods"):
                self.queue.add(key_of(pod))

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
