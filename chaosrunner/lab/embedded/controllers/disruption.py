"""PodDisruptionBudgets: how many Pods may go, by the rules of pkg/controller/disruption."""

from __future__ import annotations

from datetime import datetime, timedelta

from chaosrunner.lab.embedded.controllers.events import Recorder
from chaosrunner.lab.embedded.controllers.objects import controller_of, instant, scaled, set_condition
from chaosrunner.lab.embedded.controllers.queue import Controller, ObjectKey, WorkQueue, key_of
from chaosrunner.lab.embedded.selectors import Selector
from chaosrunner.lab.embedded.store import Store, timestamp
from chaosrunner.lab.objects import Json, condition, has_ended, is_ready, is_terminating

DELETION_TIMEOUT = timedelta(minutes=2)
"""How long a Pod that the Eviction API let go may take to be deleted before it counts as healthy again."""


_UNMANAGED = (
    "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of "
    "the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please "
    'set ".spec.minAvailable" field of the PDB to an integer value.'
)


class _CannotCount(Exception):
    """The expected number of Pods cannot be told; the budget then allows nothing."""


class DisruptionController(Controller):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._events = Recorder(store, "controllermanager")
        self._stale: WorkQueue[ObjectKey] = WorkQueue()

    def start(self) -> None:
        self.store.subscribe("poddisruptionbudgets", lambda _, obj, __: self.queue.add(key_of(obj)))
        self.store.subscribe("pods", self._pod_changed)
        for resource in ("replicasets", "deployments"):
            self.store.subscribe(resource, self._owner_changed)
        for obj in self.store.list("poddisruptionbudgets"):
            self.queue.add(key_of(obj))

    def _pod_changed(self, type_: str, pod: Json, old: Json | None) -> None:
        for budget in self.store.list("poddisruptionbudgets", pod["metadata"]["namespace"]):
            selector = Selector.of(budget["spec"].get("selector"))
            states = [state for state in (pod, old) if state is not None]
            if selector and any(selector.matches(state["metadata"].get("labels")) for state in states):
                self.queue.add(key_of(budget))
        if type_ == "MODIFIED" and _stale_condition(pod) is not None:
            self._stale.add(key_of(pod))

    def _owner_changed(self, type_: str, owner: Json, old: Json | None) -> None:
        """A new scale changes what a percentage or maxUnavailable means."""
        if old is not None and old["spec"].get("replicas") == owner["spec"].get("replicas"):
            return
        for budget in self.store.list("poddisruptionbudgets", owner["metadata"]["namespace"]):
            self.queue.add(key_of(budget))

    async def run_stale(self) -> None:
        """Take DisruptionTarget back from Pods that were not deleted after all."""
        await self._stale.run(self._clear_stale)

    def reconcile(self, key: ObjectKey) -> None:
        budget = self.store.find("poddisruptionbudgets", key[1], key[0])
        if budget is None:
            return
        selector = Selector.of(budget["spec"].get("selector"))
        pods = self.store.list("pods", key[0], labels=selector) if selector is not None else []
        if not pods:
            self._events.normal(budget, "NoPods", "No matching pods found")
        try:
            expected, desired = self._expected(budget, pods)
        except _CannotCount as error:
            message = f"Failed to calculate the number of expected pods: {error}"
            self._events.warning(budget, "CalculateExpectedPodCountFailed", message)
            self._fail_safe(budget, str(error))
            return
        now = self.store.now()
        disrupted = self._disrupted(budget, pods, now)
        healthy = sum(
            is_ready(pod) and not is_terminating(pod) and pod["metadata"]["name"] not in disrupted for pod in pods
        )
        allowed = max(0, healthy - desired) if expected > 0 else 0
        conditions = list(budget["status"].get("conditions", ()))
        status = {
            "observedGeneration": budget["metadata"]["generation"],
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
        } | ({"disruptedPods": disrupted} if disrupted else {})
        reason = "SufficientPods" if allowed else "InsufficientPods"
        set_condition(conditions, self._condition(bool(allowed), budget["metadata"]["generation"], reason, ""))
        self._write(budget, status | {"conditions": conditions})
        if disrupted:
            first = min(instant(at) for at in disrupted.values())
            self.queue.add_after(key, (first + DELETION_TIMEOUT - now).total_seconds() + 0.01)

    def _expected(self, budget: Json, pods: list[Json]) -> tuple[int, int]:
        """(expectedPods, desiredHealthy). A whole minAvailable counts the Pods there are, terminating ones too."""
        spec = budget["spec"]
        if spec.get("maxUnavailable") is not None:
            expected = self._expected_scale(budget, pods)
            return expected, max(0, expected - scaled(spec["maxUnavailable"], expected, up=True))
        minimum = spec.get("minAvailable", 0)
        if isinstance(minimum, int):
            return len(pods), minimum
        expected = self._expected_scale(budget, pods)
        return expected, scaled(minimum, expected, up=True)

    def _expected_scale(self, budget: Json, pods: list[Json]) -> int:
        """The sum of spec.replicas over all controllers of the Pods; Pods without one are left out with a warning."""
        scales: dict[str, int] = {}
        unmanaged = False
        for pod in pods:
            owner = controller_of(pod)
            if owner is None:
                unmanaged = True
            elif owner["uid"] not in scales:
                uid, replicas = self._scale_of(pod, owner)
                scales[uid] = replicas
        if unmanaged:
            self._events.warning(budget, "UnmanagedPods", _UNMANAGED.format(Selector.of(budget["spec"]["selector"])))
        return sum(scales.values())

    def _scale_of(self, pod: Json, owner: Json) -> tuple[str, int]:
        """(uid, replicas) of the root controller of a Pod. _CannotCount for a kind without a scale, such as a Job."""
        namespace = pod["metadata"]["namespace"]
        if owner["kind"] != "ReplicaSet":
            group = owner["apiVersion"].partition("/")[0]
            raise _CannotCount(f"{owner['kind'].lower()}s.{group} does not implement the scale subresource")
        replicaset = self.store.find("replicasets", owner["name"], namespace)
        if replicaset is None or replicaset["metadata"]["uid"] != owner["uid"]:
            raise _CannotCount(f'found no controllers for pod "{pod["metadata"]["name"]}"')
        above = controller_of(replicaset)
        deployment = self.store.find("deployments", above["name"], namespace) if above else None
        root = deployment or replicaset
        return root["metadata"]["uid"], root["spec"]["replicas"]

    def _disrupted(self, budget: Json, pods: list[Json], now: datetime) -> dict[str, str]:
        """The Pods that were let go and are still to be seen deleted; forgotten after two minutes."""
        known = budget["status"].get("disruptedPods", {})
        found: dict[str, str] = {}
        for pod in pods:
            name = pod["metadata"]["name"]
            if name not in known or is_terminating(pod):
                continue
            if instant(known[name]) + DELETION_TIMEOUT < now:
                meta = budget["metadata"]
                # The real controller names the namespace twice.
                whose = f"{meta['namespace']}/{meta['namespace']}"
                self._events.warning(pod, "NotDeleted", f"Pod was expected by PDB {whose} to be deleted but it wasn't")
            else:
                found[name] = known[name]
        return found

    def _fail_safe(self, budget: Json, message: str) -> None:
        status = dict(budget["status"]) | {"disruptionsAllowed": 0}
        conditions = list(status.get("conditions", ()))
        generation = status.get("observedGeneration", 0)
        set_condition(conditions, self._condition(False, generation, "SyncFailed", message))
        self._write(budget, status | {"conditions": conditions})

    def _condition(self, allowed: bool, generation: int, reason: str, message: str) -> Json:
        return {
            "type": "DisruptionAllowed",
            "status": "True" if allowed else "False",
            "observedGeneration": generation,
            "lastTransitionTime": timestamp(self.store.now()),
            "reason": reason,
            "message": message,
        }

    def _write(self, budget: Json, status: Json) -> None:
        meta = budget["metadata"]
        self.store.mutate(
            "poddisruptionbudgets",
            meta["name"],
            meta["namespace"],
            lambda new: new.update(status=status),
            subresource="status",
        )

    def _clear_stale(self, key: ObjectKey) -> None:
        pod = self.store.find("pods", key[1], key[0])
        since = _stale_condition(pod) if pod is not None else None
        if since is None:
            return
        wait = (since + DELETION_TIMEOUT - self.store.now()).total_seconds()
        if wait > 0:
            self._stale.add_after(key, wait)
            return

        def clear(new: Json) -> None:
            cleared = {
                "type": "DisruptionTarget",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": timestamp(self.store.now()),
            }
            set_condition(new["status"]["conditions"], cleared)

        self.store.mutate("pods", key[1], key[0], clear, subresource="status")


def _stale_condition(pod: Json) -> datetime | None:
    """Since when a Pod that nobody deletes is marked as about to be disrupted."""
    target = condition(pod, "DisruptionTarget")
    if target is None or target["status"] != "True" or is_terminating(pod) or has_ended(pod):
        return None
    if target.get("reason") == "TerminationByKubelet":
        return None
    return instant(target["lastTransitionTime"])
