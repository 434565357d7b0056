"""The lab's only state: Kubernetes objects as plain dictionaries, their versions, and the recent changes.

Rules for callers
- One event loop; each method is atomic and never awaits.
- An object that the store hands out (returned, listed, given to a subscriber) is shared and must never be changed;
  take a `clone`, or use `mutate`. An object handed in is copied, the caller keeps it.
- Refusals are `ApiError`, worded as the real server words them.
- A namespace of None means "default" for one object of a namespaced kind, and all namespaces for a list.
- Every change gets the next resourceVersion of one counter for all kinds, as with etcd. A write that changes nothing
  gets no version and no event.
"""

from __future__ import annotations

import builtins
import secrets
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from chaosrunner.lab.embedded import defaults, errors, managers, validation
from chaosrunner.lab.embedded.errors import ApiError
from chaosrunner.lab.embedded.resources import STORED, Resource
from chaosrunner.lab.embedded.selectors import FieldSelector, Selector, matcher
from chaosrunner.lab.objects import Json

__all__ = ["ApiError", "Change", "Store", "clone", "timestamp"]

Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-wide object is ""."""
Callback = Callable[[str, Json, Json | None], None]
T = TypeVar("T")
FOREGROUND = "foregroundDeletion"
FIRST_VERSION = 1000
"""Versions below this lie before the server's start: a watch from there answers 410, as on any real server."""


def clone(value: T) -> T:
    """A deep copy of JSON data; several times quicker than copy.deepcopy."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [clone(item) for item in value]  # type: ignore[return-value]
    return value


def timestamp(instant: datetime) -> str:
    """A `metav1.Time`: RFC 3339 in UTC, whole seconds, cut off and not rounded."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class Change:
    """One change of one object. `type`: ADDED, MODIFIED or DELETED; `old` is None for ADDED."""

    version: int
    type: str
    resource: Resource
    object: Json
    old: Json | None
    _encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        """The object as JSON, encoded once for all watchers."""
        if self._encoded is None:
            self._encoded = msgspec.json.encode(self.object)
        return self._encoded


class Store:
    """All objects of the lab. `history`: how many changes of each kind watches can resume over."""

    def __init__(self, *, history: int = 2000, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.now = now
        self._version = FIRST_VERSION
        self._objects: dict[str, dict[Key, Json]] = {plural: {} for plural in STORED}
        self._history: dict[str, deque[Change]] = {plural: deque(maxlen=history) for plural in STORED}
        self._floor: dict[str, int] = dict.fromkeys(STORED, FIRST_VERSION)
        self._by_uid: dict[str, tuple[Resource, Key]] = {}
        self._dependents: dict[str, set[tuple[str, Key]]] = defaultdict(set)
        self._followers: dict[str, builtins.list[Callable[[Change], None]]] = {plural: [] for plural in STORED}
        self._undelivered: deque[Change] = deque()
        self._delivering = False
        for name in ("default", "kube-node-lease", "kube-public", "kube-system"):
            self.create("namespaces", {"metadata": {"name": name}})

    @property
    def resource_version(self) -> int:
        """The version of the newest change."""
        return self._version

    # -- reading ---------------------------------------------------------------------------------------------------

    def find(self, resource: str, name: str, namespace: str | None = None) -> Json | None:
        """The object, or None."""
        return self._objects[resource].get(self._key(STORED[resource], name, namespace))

    def get(self, resource: str, name: str, namespace: str | None = None) -> Json:
        """The object. ApiError 404."""
        found = self.find(resource, name, namespace)
        if found is None:
            raise errors.not_found(STORED[resource], name)
        return found

    def list(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        labels: Selector | None = None,
        fields: FieldSelector | None = None,
        at: int | None = None,
    ) -> builtins.list[Json]:
        """Objects in the order of (namespace, name); of all namespaces if `namespace` is None.

        `at`: as they were at that version (ApiError 410 when the changes since then are forgotten).
        """
        wanted = matcher(labels, fields)
        objects = self._objects[resource] if at is None else self._objects_at(resource, at)
        return [
            objects[key]
            for key in sorted(objects)
            if (namespace is None or key[0] == namespace) and wanted(objects[key])
        ]

    def changes_since(self, resource: str, version: int) -> builtins.list[Change]:
        """Changes newer than `version`, oldest first. ApiError 410 when some of them are forgotten."""
        floor = self._floor[resource]
        if version < floor:
            raise errors.expired(f"too old resource version: {version} ({floor})")
        return [change for change in self._history[resource] if change.version > version]

    def forget_history(self) -> None:
        """Forget all past changes, as a compaction does: watches from earlier versions then get 410."""
        for plural, ring in self._history.items():
            ring.clear()
            self._floor[plural] = self._version

    def _objects_at(self, resource: str, version: int) -> dict[Key, Json]:
        if version < FIRST_VERSION:
            return {}
        if version < self._floor[resource]:
            raise errors.expired(f"The provided resource version is too old: {version}")
        objects = dict(self._objects[resource])
        for change in reversed(self._history[resource]):
            if change.version <= version:
                break
            key = self._key_of(change.resource, change.object)
            if change.old is None:
                del objects[key]
            else:
                objects[key] = change.old
        return objects

    # -- following -------------------------------------------------------------------------------------------------

    def subscribe(self, resource: str, callback: Callback) -> Callable[[], None]:
        """Call `callback(type, object, old)` after each change, in the order of versions; returns how to stop it.

        Calls happen within the writing call. A callback may write; what it writes is delivered after the present
        change has reached every subscriber. A callback must not raise.
        """
        return self.follow(resource, lambda change: callback(change.type, change.object, change.old))

    def follow(self, resource: str, callback: Callable[[Change], None]) -> Callable[[], None]:
        """As `subscribe`, with the whole `Change`."""
        followers = self._followers[resource]
        followers.append(callback)
        return lambda: followers.remove(callback)

    def _deliver(self) -> None:
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._undelivered:
                change = self._undelivered.popleft()
                for callback in tuple(self._followers[change.resource.plural]):
                    callback(change)
        finally:
            self._delivering = False

    def require_open_namespace(self, kind: Resource, name: str, what: str) -> None:
        """ApiError 404 if there is no such namespace, 403 if it is going away and takes nothing new."""
        namespace = self.find("namespaces", name)
        if namespace is None:
            raise errors.not_found(STORED["namespaces"], name)
        if namespace["metadata"].get("deletionTimestamp"):
            raise errors.namespace_terminating(kind, what, name)

    # -- writing ---------------------------------------------------------------------------------------------------

    def create(self, resource: str, obj: Json, *, namespace: str | None = None, dry_run: bool = False) -> Json:
        """Add an object: defaults filled in, validated, named from generateName if it has no name.

        ApiError 404 (no such namespace), 403 (namespace goes away), 409 (exists), 422 (invalid).
        """
        kind = STORED[resource]
        new = clone(obj)
        new["kind"], new["apiVersion"] = kind.kind, kind.api_version
        with _readable(kind):
            meta = new["metadata"] = validation.metadata_of(new)
        if kind.namespaced:
            meta["namespace"] = namespace or meta.get("namespace") or "default"
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + _suffix()
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"):
            meta.pop(field, None)
        for field in ("labels", "annotations", "ownerReferences", "finalizers"):
            if not meta.get(field):
                meta.pop(field, None)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp(self.now())}
        if kind.generation:
            meta["generation"] = 1
        if kind.namespaced:
            self.require_open_namespace(kind, meta["namespace"], meta.get("name", ""))
        with _readable(kind):
            defaults.on_create(kind, new)
            validation.check(kind, new)
        key = self._key_of(kind, new)
        if key in self._objects[resource]:
            raise errors.already_exists(kind, meta["name"])
        if dry_run:
            return new
        return self._put(kind, "ADDED", new, None)

    def load(self, resource: str, objects: Iterable[Json]) -> None:
        """Put objects in just as they are, status, uid and times included; only the version is the store's own."""
        for obj in objects:
            kind, new = STORED[resource], clone(obj)
            new["kind"], new["apiVersion"] = kind.kind, kind.api_version
            old = self.find(resource, new["metadata"]["name"], new["metadata"].get("namespace"))
            self._put(kind, "MODIFIED" if old else "ADDED", new, old)

    def update(
        self,
        resource: str,
        obj: Json,
        *,
        subresource: str | None = None,
        dry_run: bool = False,
        manager: str | None = None,
    ) -> Json:
        """Replace an object, or with a subresource (status, ephemeralcontainers) only that part; without, all but the
        status.

        metadata.resourceVersion, if given, must be the present one, and so must metadata.uid (409). Some kinds demand
        the version (422). `manager` is whose fields become what changes; None for the lab's own controllers.
        """
        kind = STORED[resource]
        with _readable(kind):
            meta = validation.metadata_of(obj)
        old = self.get(resource, meta["name"], meta.get("namespace"))
        present = old["metadata"]
        if meta.get("uid") not in (None, "", present["uid"]):
            where = "/".join(filter(None, ("/registry", resource, present.get("namespace"), meta["name"])))
            why = (
                f"StorageError: invalid object, Code: 4, Key: {where}, ResourceVersion: 0, AdditionalErrorMsg: "
                f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {present['uid']}"
            )
            raise errors.conflict(kind, meta["name"], why)
        if not meta.get("resourceVersion") and not kind.unconditional:
            why = "Invalid value: 0: must be specified for an update"
            plural = replace(kind, kind=kind.plural)  # here the real server names the resource and not the kind
            raise errors.invalid(plural, meta["name"], [("FieldValueInvalid", "metadata.resourceVersion", why)])
        if meta.get("resourceVersion") not in (None, "", present["resourceVersion"]):
            raise errors.conflict(kind, meta["name"])
        new = self._merged(kind, old, clone(obj | {"metadata": meta}), subresource)
        with _readable(kind):
            defaults.on_update(kind, new)
            validation.check(kind, new, old, subresource)
        if new != old and subresource is None and (manager or present.get("managedFields")):
            writers = managers.fields_after(old, new, manager or managers.CONTROLLERS, timestamp(self.now()))
            new["metadata"] |= {"managedFields": writers}
        if dry_run:
            return new
        if new == old:
            return old
        stored = self._put(kind, "MODIFIED", new, old)
        if present.get("deletionTimestamp") and present.get("finalizers") and not new["metadata"].get("finalizers"):
            return self._remove(kind, stored)
        return stored

    def mutate(
        self,
        resource: str,
        name: str,
        namespace: str | None,
        change: Callable[[Json], None],
        *,
        subresource: str | None = None,
    ) -> Json:
        """Read, let `change` edit a copy in place, write. Follows `update`'s rule on what of it is kept."""
        edited = clone(self.get(resource, name, namespace))
        change(edited)
        return self.update(resource, edited, subresource=subresource)

    def bind(self, namespace: str, name: str, node: str) -> Json:
        """Assign a Pod to a node: spec.nodeName and condition PodScheduled in one change. ApiError 404, 409."""
        kind, old = STORED["pods"], self.get("pods", name, namespace)
        if old["spec"].get("nodeName"):
            binding = replace(kind, plural="pods/binding")
            raise errors.conflict(binding, name, f'pod {name} is already assigned to node "{old["spec"]["nodeName"]}"')
        new = clone(old)
        new["spec"]["nodeName"] = node
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": timestamp(self.now()),
        }
        conditions = new["status"].setdefault("conditions", [])
        conditions[:] = [*(entry for entry in conditions if entry["type"] != "PodScheduled"), scheduled]
        return self._put(kind, "MODIFIED", new, old)

    def delete(
        self,
        resource: str,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace: int | None = None,
        propagation: str | None = None,
        dry_run: bool = False,
    ) -> Json:
        """Delete an object and return its last state; whether it is gone, `find` tells.

        A Pod on a node that has not ended goes gracefully: deletionTimestamp = now + grace (seconds; default
        spec.terminationGracePeriodSeconds), and stays until it is deleted with grace 0. Asking again can only shorten
        the grace period. Finalizers are respected. `propagation`: Background (default), Foreground or Orphan says what
        becomes of the objects that it owns. `uid`, `resource_version`: preconditions (ApiError 409).
        """
        kind, obj = STORED[resource], self.get(resource, name, namespace)
        meta = obj["metadata"]
        if uid is not None and uid != meta["uid"]:
            why = (
                f"the UID in the precondition ({uid}) does not match the UID in record ({meta['uid']}). "
                "The object might have been deleted and then recreated"
            )
            raise errors.precondition_failed(kind, name, why)
        if resource_version is not None and resource_version != meta["resourceVersion"]:
            why = (
                f"the ResourceVersion in the precondition ({resource_version}) does not match the ResourceVersion "
                f"in record ({meta['resourceVersion']}). The object might have been modified"
            )
            raise errors.precondition_failed(kind, name, why)
        if dry_run:
            return obj
        period = _grace(obj, grace) if resource == "pods" else 0
        if resource == "namespaces":
            return self._terminate_namespace(obj)
        if propagation == "Orphan":
            self._orphan(obj)
        foreground = propagation == "Foreground" and self._dependents.get(meta["uid"])
        if foreground or meta.get("finalizers") or resource == "pods":
            obj = self._mark_deleted(kind, obj, period, finalizer=FOREGROUND if foreground else None)
            if foreground:
                for plural, key in sorted(self._dependents[meta["uid"]]):
                    if self._objects[plural].get(key):
                        self.delete(plural, key[1], key[0], propagation="Foreground")
                return self.find(resource, name, namespace) or obj
            if obj["metadata"].get("finalizers") or obj["metadata"]["deletionGracePeriodSeconds"] > 0:
                return obj
        return self._remove(kind, obj)

    def _mark_deleted(self, kind: Resource, obj: Json, period: int, finalizer: str | None) -> Json:
        """Set the deletion's time and grace period, or shorten them if they are set already."""
        meta = obj["metadata"]
        if meta.get("deletionTimestamp") and period >= meta["deletionGracePeriodSeconds"]:
            return obj
        new = clone(obj)
        if "deletionTimestamp" not in meta and meta.get("generation"):
            new["metadata"]["generation"] += 1
        if finalizer:
            new["metadata"]["finalizers"] = [*meta.get("finalizers", []), finalizer]
        deadline = timestamp(self.now() + timedelta(seconds=period))
        new["metadata"] |= {"deletionTimestamp": deadline, "deletionGracePeriodSeconds": period}
        return self._put(kind, "MODIFIED", new, obj)

    def _remove(self, kind: Resource, obj: Json) -> Json:
        """Take the object out, then what depended on it, then whatever waited for it to be gone."""
        gone = self._put(kind, "DELETED", clone(obj), obj)
        meta = gone["metadata"]
        for plural, key in sorted(self._dependents.pop(meta["uid"], ())):
            dependent = self._objects[plural].get(key)
            if dependent and not any(
                owner["uid"] in self._by_uid for owner in dependent["metadata"]["ownerReferences"]
            ):
                self.delete(plural, key[1], key[0])
        for owner in meta.get("ownerReferences", ()):
            self._finish_foreground(owner["uid"])
        self._finish_namespace(meta.get("namespace"))
        return gone

    def _finish_foreground(self, uid: str) -> None:
        """Let an owner go that only waited for its dependents."""
        kind, key = self._by_uid.get(uid, (None, ("", "")))
        if kind is None or self._dependents.get(uid):
            return
        finalizers = self._objects[kind.plural][key]["metadata"].get("finalizers", ())
        if FOREGROUND in finalizers:
            rest = [entry for entry in finalizers if entry != FOREGROUND]
            self.mutate(kind.plural, key[1], key[0], lambda owner: owner["metadata"].update(finalizers=rest))

    def _orphan(self, owner: Json) -> None:
        uid = owner["metadata"]["uid"]
        for plural, (namespace, name) in sorted(self._dependents.get(uid, ())):

            def disown(new: Json) -> None:
                references = [entry for entry in new["metadata"]["ownerReferences"] if entry["uid"] != uid]
                new["metadata"]["ownerReferences"] = references

            self.mutate(plural, name, namespace, disown)

    def _terminate_namespace(self, obj: Json) -> Json:
        name = obj["metadata"]["name"]
        if not obj["metadata"].get("deletionTimestamp"):
            new = clone(obj)
            new["metadata"]["deletionTimestamp"] = timestamp(self.now())
            new["status"]["phase"] = "Terminating"
            obj = self._put(STORED["namespaces"], "MODIFIED", new, obj)
            self._empty(name, "pods")
        self._finish_namespace(name)
        return obj

    def _empty(self, namespace: str, plural: str) -> None:
        for key in [key for key in self._objects[plural] if key[0] == namespace]:
            if key in self._objects[plural]:
                self.delete(plural, key[1], namespace)

    def _finish_namespace(self, name: str | None) -> None:
        """Go on with the end of a namespace: the Pods go first, then all else, then itself.

        Budgets and Services so outlive their Pods (feature OrderedNamespaceDeletion).
        """
        namespace = self.find("namespaces", name) if name else None
        if namespace is None or not namespace["metadata"].get("deletionTimestamp"):
            return
        if not any(key[0] == name for key in self._objects["pods"]):
            for plural in [kind.plural for kind in STORED.values() if kind.namespaced]:
                for key in [key for key in self._objects[plural] if key[0] == name]:
                    present = self._objects[plural].get(key)
                    if present and not present["metadata"].get("deletionTimestamp"):
                        self.delete(plural, key[1], name)
        if self.find("namespaces", str(name)) and not any(
            key[0] == name for objects in self._objects.values() for key in objects
        ):
            self._put(STORED["namespaces"], "DELETED", clone(namespace), namespace)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _merged(self, kind: Resource, old: Json, new: Json, subresource: str | None) -> Json:
        """What a write keeps of `new`: the status, or all but the status; never what the server alone sets."""
        present = old["metadata"]
        if subresource == "status":
            merged = clone(old)
            merged["status"] = new.get("status", {})
            for field in ("labels", "annotations"):
                if field in new["metadata"]:
                    merged["metadata"][field] = new["metadata"][field]
            return merged
        if subresource == "ephemeralcontainers":
            merged = clone(old)
            merged["spec"]["ephemeralContainers"] = (new.get("spec") or {}).get("ephemeralContainers") or []
            if not merged["spec"]["ephemeralContainers"]:
                del merged["spec"]["ephemeralContainers"]
            # Compared with its defaults: an entry that was only named again is no change.
            with _readable(kind):
                defaults.on_update(kind, merged)
            if _desired(merged) != _desired(old):
                merged["metadata"]["generation"] += 1
            return merged
        new["kind"], new["apiVersion"] = kind.kind, kind.api_version
        meta = new["metadata"]
        for field in ("namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
                      "deletionGracePeriodSeconds", "generateName", "managedFields"):  # fmt: skip
            meta.pop(field, None)
            if field in present:
                meta[field] = present[field]
        for field in ("labels", "annotations", "ownerReferences", "finalizers"):
            if not meta.get(field):
                meta.pop(field, None)
        if kind.has_status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = clone(old["status"])
        if kind.generation and _desired(new) != _desired(old):
            meta["generation"] = present["generation"] + 1
        return new

    def _put(self, kind: Resource, type_: str, new: Json, old: Json | None) -> Json:
        """Give the change its version, keep it in the history and tell the followers."""
        key = self._key_of(kind, new)
        self._version += 1
        new["metadata"]["resourceVersion"] = str(self._version)
        self._index(kind, key, old, remove=True)
        if type_ == "DELETED":
            del self._objects[kind.plural][key]
            del self._by_uid[new["metadata"]["uid"]]
        else:
            if old is not None:
                del self._by_uid[old["metadata"]["uid"]]
            self._objects[kind.plural][key] = new
            self._by_uid[new["metadata"]["uid"]] = (kind, key)
            self._index(kind, key, new, remove=False)
        ring = self._history[kind.plural]
        if len(ring) == ring.maxlen:
            self._floor[kind.plural] = ring[0].version
        change = Change(self._version, type_, kind, new, old)
        ring.append(change)
        self._undelivered.append(change)
        self._deliver()
        return new

    def _index(self, kind: Resource, key: Key, obj: Json | None, *, remove: bool) -> None:
        for owner in obj["metadata"].get("ownerReferences", ()) if obj else ():
            entries = self._dependents[owner["uid"]]
            if remove:
                entries.discard((kind.plural, key))
            else:
                entries.add((kind.plural, key))

    @staticmethod
    def _key(kind: Resource, name: str, namespace: str | None) -> Key:
        return (namespace or "default", name) if kind.namespaced else ("", name)

    @classmethod
    def _key_of(cls, kind: Resource, obj: Json) -> Key:
        return cls._key(kind, obj["metadata"].get("name", ""), obj["metadata"].get("namespace"))


@contextmanager
def _readable(kind: Resource) -> Iterator[None]:
    """Turn what goes wrong with objects of the wrong shape (a list where a map belongs) into ApiError 400."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        raise errors.Unreadable(kind, error) from error


def _suffix() -> str:
    """Five characters as the real server appends them to generateName: no vowels, nothing that looks alike."""
    return "".join(secrets.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))


def _grace(pod: Json, asked: int | None) -> int:
    """Seconds a Pod gets to end: none if it has no node or has ended already (registry/core/pod/strategy.go)."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    period = pod["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return 1 if period < 0 else int(period)


def _desired(obj: Json) -> Json:
    """The part of an object whose changes metadata.generation counts: all but metadata and status."""
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}
