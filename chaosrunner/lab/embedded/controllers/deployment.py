"""Deployments: a ReplicaSet per template, rolled over within maxSurge and maxUnavailable, or recreated.

The rules are those of pkg/controller/deployment; what kubectl rollout status reads (observedGeneration, counts,
condition Progressing) is written as the real controller writes it.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from chaosrunner.lab.embedded.controllers.events import Recorder
from chaosrunner.lab.embedded.controllers.objects import (
    controller_of,
    instant,
    owned,
    owner_reference,
    scaled,
    set_condition,
)
from chaosrunner.lab.embedded.controllers.queue import Controller, ObjectKey, key_of
from chaosrunner.lab.embedded.store import Store, clone, timestamp
from chaosrunner.lab.objects import Json, condition, has_ended, is_terminating

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
_NOT_COPIED = (REVISION, DESIRED, MAXIMUM, "kubectl.kubernetes.io/last-applied-configuration")
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class DeploymentController(Controller):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._events = Recorder(store, "deployment-controller")

    def start(self) -> None:
        self.store.subscribe("deployments", lambda _, obj, __: self.queue.add(key_of(obj)))
        self.store.subscribe("replicasets", self._replicaset_changed)
        self.store.subscribe("pods", self._pod_changed)
        for obj in self.store.list("deployments"):
            self.queue.add(key_of(obj))

    def _replicaset_changed(self, type_: str, replicaset: Json, old: Json | None) -> None:
        owner = controller_of(replicaset)
        if owner is not None and owner["kind"] == "Deployment":
            self.queue.add((replicaset["metadata"]["namespace"], owner["name"]))

    def _pod_changed(self, type_: str, pod: Json, old: Json | None) -> None:
        """With strategy Recreate the new Pods wait until the last old one is gone."""
        owner = controller_of(pod)
        if type_ == "DELETED" and owner is not None and owner["kind"] == "ReplicaSet":
            replicaset = self.store.find("replicasets", owner["name"], pod["metadata"]["namespace"])
            if replicaset is not None:
                self._replicaset_changed(type_, replicaset, None)

    def reconcile(self, key: ObjectKey) -> None:
        deployment = self.store.find("deployments", key[1], key[0])
        if deployment is None:
            return
        rollout = _Rollout(self.store, self._events, clone(deployment))
        if is_terminating(deployment):
            rollout.write_status()
        elif deployment["spec"].get("paused") or rollout.is_scaling():
            rollout.scale()
            rollout.write_status()
        elif deployment["spec"]["strategy"]["type"] == "Recreate":
            rollout.recreate()
        else:
            rollout.roll()
        deadline = rollout.seconds_to_deadline()
        if deadline is not None:
            self.queue.add_after(key, deadline)


class _Rollout:
    """One look at one Deployment and its ReplicaSets."""

    def __init__(self, store: Store, events: Recorder, deployment: Json) -> None:
        self._store = store
        self._events = events
        self._deployment = deployment
        self._wanted: int = deployment["spec"]["replicas"]
        self._read()

    def _read(self) -> None:
        template = self._deployment["spec"]["template"]
        found = owned(self._store, "replicasets", self._deployment)
        self._all = sorted(found, key=lambda obj: (obj["metadata"]["creationTimestamp"], obj["metadata"]["name"]))
        self._new = next((obj for obj in self._all if _same_template(obj["spec"]["template"], template)), None)
        self._old = [obj for obj in self._all if obj is not self._new]

    # -- procedures ------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        self._ensure_new()
        if not self._scale_new_up():
            self._scale_old_down()
        self._read()
        if self._is_complete(self._status()):
            self._forget_old()
        self.write_status()

    def recreate(self) -> None:
        for replicaset in self._old:
            self._scale(replicaset, 0)
        if any(not has_ended(pod) for old in self._old for pod in owned(self._store, "pods", old)):
            self.write_status()
            return
        self._ensure_new()
        assert self._new is not None
        self._scale(self._new, self._wanted)
        self._read()
        if self._is_complete(self._status()):
            self._forget_old()
        self.write_status()

    def is_scaling(self) -> bool:
        """Whether spec.replicas changed since the ReplicaSets were last told."""
        return any(
            obj["spec"]["replicas"] > 0
            and DESIRED in obj["metadata"].get("annotations", {})
            and obj["metadata"]["annotations"][DESIRED] != str(self._wanted)
            for obj in self._all
        )

    def scale(self) -> None:
        """Give the change of spec.replicas to the ReplicaSet that is at work; a rollout under way does the rest."""
        active = [obj for obj in self._all if obj["spec"]["replicas"] > 0]
        if len(active) == 1:
            self._scale(active[0], self._wanted)
        else:
            for replicaset in active:
                self._scale(replicaset, replicaset["spec"]["replicas"])
        self._read()

    # -- steps -----------------------------------------------------------------------------------------------------

    def _ensure_new(self) -> None:
        revision = 1 + max((_revision(obj) for obj in self._old), default=0)
        if self._new is None:
            self._new = self._create(revision)
            self._all.append(self._new)
            self._set_progress("NewReplicaSetCreated", f'Created new replica set "{self._new["metadata"]["name"]}"')
        elif _revision(self._new) < revision:
            self._new = self._annotate(self._new, {REVISION: str(revision)})
        self._deployment["metadata"].setdefault("annotations", {})
        if self._deployment["metadata"]["annotations"].get(REVISION) != str(_revision(self._new)):
            self._deployment["metadata"]["annotations"][REVISION] = str(_revision(self._new))
            self._write()

    def _create(self, revision: int) -> Json:
        meta, spec = self._deployment["metadata"], self._deployment["spec"]
        code = _template_hash(spec["template"])
        template = clone(spec["template"])
        template.setdefault("metadata", {}).setdefault("labels", {})[HASH] = code
        selector = clone(spec["selector"])
        selector.setdefault("matchLabels", {})[HASH] = code
        kept = {name: text for name, text in meta.get("annotations", {}).items() if name not in _NOT_COPIED}
        replicas = self._room_for_new(0)
        created = self._store.create(
            "replicasets",
            {
                "metadata": {
                    "name": f"{meta['name']}-{code}",
                    "namespace": meta["namespace"],
                    "labels": clone(template["metadata"]["labels"]),
                    "annotations": kept | self._size_annotations() | {REVISION: str(revision)},
                    "ownerReferences": [owner_reference(self._deployment)],
                },
                "spec": {"replicas": replicas, "selector": selector, "template": template}
                | ({"minReadySeconds": spec["minReadySeconds"]} if spec.get("minReadySeconds") else {}),
            },
        )
        if replicas:
            self._say_scaled("up", created, 0, replicas)
        return created

    def _room_for_new(self, present: int) -> int:
        """Replicas of the new ReplicaSet that maxSurge leaves room for."""
        if self._deployment["spec"]["strategy"]["type"] == "Recreate":
            return self._wanted
        room = self._wanted + self._fenceposts()[0] - sum(obj["spec"]["replicas"] for obj in self._all)
        return int(present + max(0, min(room, self._wanted - present)))

    def _fenceposts(self) -> tuple[int, int]:
        """(maxSurge, maxUnavailable) in Pods: surge rounded up, unavailable down, not both 0."""
        strategy = self._deployment["spec"]["strategy"]
        if strategy["type"] == "Recreate":
            return 0, 0
        rolling = strategy["rollingUpdate"]
        surge = scaled(rolling["maxSurge"], self._wanted, up=True)
        unavailable = scaled(rolling["maxUnavailable"], self._wanted, up=False)
        return surge, unavailable if surge or unavailable else 1

    def _scale_new_up(self) -> bool:
        assert self._new is not None
        present = self._new["spec"]["replicas"]
        target = self._wanted if present >= self._wanted else self._room_for_new(present)
        if target == present:
            return False
        self._new = self._scale(self._new, target)
        return True

    def _scale_old_down(self) -> None:
        """Take old replicas away while enough are available: first those that are not, then the oldest set's."""
        assert self._new is not None
        minimum = self._wanted - self._fenceposts()[1]
        not_yet = self._new["spec"]["replicas"] - self._new["status"].get("availableReplicas", 0)
        spare = sum(obj["spec"]["replicas"] for obj in self._all) - minimum - not_yet
        remaining: list[Json] = []
        for old in self._old:
            present = old["spec"]["replicas"]
            useless = min(max(0, spare), present - old["status"].get("availableReplicas", 0))
            spare -= max(0, useless)
            remaining.append(self._scale(old, present - useless) if useless > 0 else old)
        available = sum(obj["status"].get("availableReplicas", 0) for obj in self._all)
        surplus = min(available - minimum, spare)
        for old in remaining:
            present = old["spec"]["replicas"]
            step = min(max(0, surplus), present)
            surplus -= step
            if step:
                self._scale(old, present - step)

    def _scale(self, replicaset: Json, target: int) -> Json:
        present = replicaset["spec"]["replicas"]
        annotations = self._size_annotations()
        known = replicaset["metadata"].get("annotations", {})
        if target == present and annotations.items() <= known.items():
            return replicaset

        def change(new: Json) -> None:
            new["spec"]["replicas"] = target
            new["metadata"].setdefault("annotations", {}).update(annotations)

        meta = replicaset["metadata"]
        changed = self._store.mutate("replicasets", meta["name"], meta["namespace"], change)
        if target != present:
            self._say_scaled("up" if target > present else "down", replicaset, present, target)
        return changed

    def _size_annotations(self) -> dict[str, str]:
        return {DESIRED: str(self._wanted), MAXIMUM: str(self._wanted + self._fenceposts()[0])}

    def _annotate(self, replicaset: Json, annotations: dict[str, str]) -> Json:
        meta = replicaset["metadata"]
        return self._store.mutate(
            "replicasets",
            meta["name"],
            meta["namespace"],
            lambda new: new["metadata"].setdefault("annotations", {}).update(annotations),
        )

    def _say_scaled(self, way: str, replicaset: Json, before: int, after: int) -> None:
        name = replicaset["metadata"]["name"]
        self._events.normal(
            self._deployment, "ScalingReplicaSet", f"Scaled {way} replica set {name} from {before} to {after}"
        )

    def _forget_old(self) -> None:
        empty = [obj for obj in self._old if not obj["spec"]["replicas"] and not obj["status"].get("replicas")]
        surplus = len(empty) - self._deployment["spec"]["revisionHistoryLimit"]
        for obj in sorted(empty, key=_revision)[: max(0, surplus)]:
            self._store.delete("replicasets", obj["metadata"]["name"], obj["metadata"]["namespace"])

    # -- status ----------------------------------------------------------------------------------------------------

    def write_status(self) -> None:
        """Counts and conditions as they follow from the ReplicaSets."""
        before = self._deployment.get("status", {})
        status = self._status()
        progress = condition(self._deployment, "Progressing")
        finished = progress is not None and progress["reason"] == "NewReplicaSetAvailable"
        rolled = status.get("replicas", 0) == status.get("updatedReplicas", 0) and finished
        self._deployment["status"] = status
        if not rolled and self._new is not None:
            name = self._new["metadata"]["name"]
            if self._is_complete(status):
                self._set_progress("NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.')
            elif _has_progressed(before, status):
                self._set_progress("ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
            elif self._is_overdue():
                message = f'ReplicaSet "{name}" has timed out progressing.'
                self._set_progress("ProgressDeadlineExceeded", message, status="False")
        enough = status.get("availableReplicas", 0) >= self._wanted - self._fenceposts()[1]
        self._set(
            "Available",
            "True" if enough else "False",
            "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
            f"Deployment {'has' if enough else 'does not have'} minimum availability.",
        )
        self._write()

    def _status(self) -> Json:
        def total(field: str) -> int:
            return sum(obj["status"].get(field, 0) for obj in self._all)

        available = total("availableReplicas")
        counts = {
            "replicas": total("replicas"),
            "updatedReplicas": self._new["status"].get("replicas", 0) if self._new is not None else 0,
            "readyReplicas": total("readyReplicas"),
            "availableReplicas": available,
            "unavailableReplicas": max(0, sum(obj["spec"]["replicas"] for obj in self._all) - available),
        }
        return (
            {"observedGeneration": self._deployment["metadata"]["generation"]}
            | {name: count for name, count in counts.items() if count}
            | {"terminatingReplicas": total("terminatingReplicas")}
            | {"conditions": clone(self._deployment.get("status", {}).get("conditions", []))}
        )

    def _is_complete(self, status: Json) -> bool:
        counts = (status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas"))
        return all(count == self._wanted for count in counts)

    def _is_overdue(self) -> bool:
        remaining = self.seconds_to_deadline()
        return remaining is not None and remaining <= 0

    def seconds_to_deadline(self) -> float | None:
        """Until the rollout counts as stuck; None when nothing is under way."""
        progress = condition(self._deployment, "Progressing")
        if progress is None or progress["reason"] in ("NewReplicaSetAvailable", "ProgressDeadlineExceeded"):
            return None
        age = (self._store.now() - instant(progress["lastUpdateTime"])).total_seconds()
        return float(self._deployment["spec"]["progressDeadlineSeconds"]) - age

    def _set_progress(self, reason: str, message: str, status: str = "True") -> None:
        self._set("Progressing", status, reason, message, renew=True)

    def _set(self, type_: str, status: str, reason: str, message: str, *, renew: bool = False) -> None:
        """`renew`: tell a new lastUpdateTime even if nothing else changed."""
        present = condition(self._deployment, type_)
        if not renew and present is not None and (present["status"], present["reason"]) == (status, reason):
            return
        now = timestamp(self._store.now())
        new = {
            "type": type_,
            "status": status,
            "lastUpdateTime": now,
            "lastTransitionTime": now,
            "reason": reason,
            "message": message,
        }
        set_condition(self._deployment.setdefault("status", {}).setdefault("conditions", []), new)

    def _write(self) -> None:
        mine = self._deployment

        def change(new: Json) -> None:
            new["status"] = mine["status"]
            if REVISION in mine["metadata"].get("annotations", {}):
                new["metadata"].setdefault("annotations", {})[REVISION] = mine["metadata"]["annotations"][REVISION]

        meta = mine["metadata"]
        self._store.mutate("deployments", meta["name"], meta["namespace"], change, subresource="status")


def _has_progressed(before: Json, after: Json) -> bool:
    def old_replicas(status: Json) -> int:
        return int(status.get("replicas", 0)) - int(status.get("updatedReplicas", 0))

    return old_replicas(after) < old_replicas(before) or any(
        after.get(name, 0) > before.get(name, 0) for name in ("updatedReplicas", "readyReplicas", "availableReplicas")
    )


def _revision(replicaset: Json) -> int:
    return int(replicaset["metadata"].get("annotations", {}).get(REVISION, 0))


def _without_hash(template: Json) -> Json:
    bare = clone(template)
    bare.setdefault("metadata", {}).get("labels", {}).pop(HASH, None)
    return bare


def _same_template(one: Json, other: Json) -> bool:
    return _without_hash(one) == _without_hash(other)


def _template_hash(template: Any) -> str:
    """A short name of a template, written in the letters that Kubernetes uses for it; its value is our own."""
    number = zlib.crc32(json.dumps(template, sort_keys=True).encode())
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(number))
