"""ReplicaSets: as many active Pods as spec.replicas says, and a status that counts them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from chaosrunner.lab.embedded.controllers.events import Recorder
from chaosrunner.lab.embedded.controllers.objects import controller_of, instant, is_active, owned, owner_reference
from chaosrunner.lab.embedded.controllers.queue import Controller, ObjectKey, key_of
from chaosrunner.lab.embedded.store import ApiError, Store, clone
from chaosrunner.lab.objects import Json, condition, has_ended, is_ready, is_terminating

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


class ReplicaSetController(Controller):
    """A terminating Pod is replaced at once: it no longer counts (`terminatingReplicas` does count it)."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._events = Recorder(store, "replicaset-controller")

    def start(self) -> None:
        self.store.subscribe("replicasets", lambda _, obj, __: self.queue.add(key_of(obj)))
        self.store.subscribe("pods", self._pod_changed)
        for obj in self.store.list("replicasets"):
            self.queue.add(key_of(obj))

    def _pod_changed(self, type_: str, pod: Json, old: Json | None) -> None:
        owner = controller_of(pod)
        if owner is not None and owner["kind"] == "ReplicaSet":
            self.queue.add((pod["metadata"]["namespace"], owner["name"]))

    def reconcile(self, key: ObjectKey) -> None:
        replicaset = self.store.find("replicasets", key[1], key[0])
        if replicaset is None:
            return
        pods = owned(self.store, "pods", replicaset)
        active = [pod for pod in pods if is_active(pod)]
        terminating = sum(is_terminating(pod) and not has_ended(pod) for pod in pods)
        if not is_terminating(replicaset):
            self._manage(replicaset, active)
        # As in the real controller the status tells what was there before this round created or deleted Pods.
        self._write_status(replicaset, active, terminating)

    def _manage(self, replicaset: Json, active: list[Json]) -> None:
        missing = replicaset["spec"]["replicas"] - len(active)
        for _ in range(missing):
            try:
                pod = self.store.create("pods", self._new_pod(replicaset))
            except ApiError as error:
                if error.status != 403:
                    self._events.warning(replicaset, "FailedCreate", f"Error creating: {error}")
                raise
            self._events.normal(replicaset, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
        for pod in rank_for_deletion(active)[:-missing] if missing < 0 else ():
            self.store.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
            self._events.normal(replicaset, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")

    def _new_pod(self, replicaset: Json) -> Json:
        template = replicaset["spec"]["template"]
        meta = clone(template.get("metadata", {}))
        meta |= {
            "generateName": replicaset["metadata"]["name"] + "-",
            "namespace": replicaset["metadata"]["namespace"],
            "ownerReferences": [owner_reference(replicaset)],
        }
        return {"metadata": meta, "spec": clone(template["spec"])}

    def _write_status(self, replicaset: Json, active: list[Json], terminating: int) -> None:
        template_labels = replicaset["spec"]["template"]["metadata"].get("labels", {}).items()
        ready = [pod for pod in active if is_ready(pod)]
        counts = {
            "fullyLabeledReplicas": sum(template_labels <= pod["metadata"]["labels"].items() for pod in active),
            "readyReplicas": len(ready),
            "availableReplicas": sum(self._is_available(replicaset, pod) for pod in ready),
        }
        status: Json = {"replicas": len(active)} | {name: count for name, count in counts.items() if count}
        status |= {"terminatingReplicas": terminating, "observedGeneration": replicaset["metadata"]["generation"]}
        meta = replicaset["metadata"]
        if self.store.find("replicasets", meta["name"], meta["namespace"]) is not None:
            self.store.mutate(
                "replicasets",
                meta["name"],
                meta["namespace"],
                lambda new: new.update(status=status),
                subresource="status",
            )

    def _is_available(self, replicaset: Json, pod: Json) -> bool:
        needed = replicaset["spec"].get("minReadySeconds", 0)
        ready = condition(pod, "Ready")
        if not needed or ready is None:
            return True
        age = (self.store.now() - instant(ready["lastTransitionTime"])).total_seconds()
        if age < needed:
            self.queue.add_after(key_of(replicaset), needed - age)
        return bool(age >= needed)


def rank_for_deletion(active: list[Json]) -> list[Json]:
    """Active Pods, those to delete first in front (pkg/controller/controller_utils.go, ActivePodsWithRanks).

    Without a node, not running, not ready, cheaper by annotation, more siblings on the node, ready for a shorter time,
    more restarts, younger.
    """
    per_node = Counter(pod["spec"].get("nodeName") for pod in active)

    def rank(pod: Json) -> tuple[Any, ...]:
        ready = condition(pod, "Ready")
        is_up = ready is not None and ready["status"] == "True"
        restarts = max((entry["restartCount"] for entry in pod["status"].get("containerStatuses", ())), default=0)
        return (
            bool(pod["spec"].get("nodeName")),
            {"Pending": 0, "Unknown": 1}.get(pod["status"]["phase"], 2),
            is_up,
            int(pod["metadata"].get("annotations", {}).get(DELETION_COST, 0)),
            -per_node[pod["spec"].get("nodeName")],
            -instant(ready["lastTransitionTime"]).timestamp() if is_up and ready is not None else 0,
            -restarts,
            -instant(pod["metadata"]["creationTimestamp"]).timestamp(),
        )

    return sorted(active, key=rank)
