"""EndpointSlices: who serves a Service, grouped by the ports that its names resolve to in each Pod.

Rules of k8s.io/endpointslice (reconciler.go, utils.go): an endpoint is in a slice from the moment its Pod has an
address until the Pod has ended; serving = the Pod is Ready, ready = serving and not terminating (always, with
publishNotReadyAddresses). A Service without endpoints keeps one slice whose endpoints and ports are null.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from chaosrunner.lab.embedded.controllers.objects import instant, owned, owner_reference
from chaosrunner.lab.embedded.controllers.queue import Controller, ObjectKey, key_of
from chaosrunner.lab.embedded.selectors import Requirement, Selector
from chaosrunner.lab.embedded.store import Store, clone, timestamp
from chaosrunner.lab.objects import Json, condition, has_ended, is_ready, is_terminating

MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
SERVICE_NAME = "kubernetes.io/service-name"
TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"
_MANAGER = "endpointslice-controller.k8s.io"
_MOST_PER_SLICE = 100


class EndpointSliceController(Controller):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._selectors: dict[ObjectKey, Selector] = {}
        self._seen: dict[ObjectKey, dict[str, datetime]] = {}

    def start(self) -> None:
        self.store.subscribe("services", self._service_changed)
        self.store.subscribe("pods", self._pod_changed)
        self.store.subscribe("endpointslices", self._slice_changed)
        for obj in self.store.list("services"):
            self._service_changed("ADDED", obj, None)

    def _service_changed(self, type_: str, service: Json, old: Json | None) -> None:
        key = key_of(service)
        labels = service["spec"].get("selector")
        if type_ == "DELETED" or not labels:
            self._selectors.pop(key, None)
            self._seen.pop(key, None)
            return
        self._selectors[key] = Selector(tuple(Requirement(name, "=", (value,)) for name, value in labels.items()))
        self.queue.add(key)

    def _pod_changed(self, type_: str, pod: Json, old: Json | None) -> None:
        namespace = pod["metadata"]["namespace"]
        for key, selector in self._selectors.items():
            if key[0] == namespace and any(
                selector.matches(state["metadata"].get("labels")) for state in (pod, old) if state is not None
            ):
                self.queue.add(key)

    def _slice_changed(self, type_: str, slice_: Json, old: Json | None) -> None:
        """A slice that somebody else deleted comes back."""
        name = slice_["metadata"].get("labels", {}).get(SERVICE_NAME)
        key = (slice_["metadata"]["namespace"], name or "")
        if type_ == "DELETED" and key in self._selectors:
            self.queue.add(key)

    def reconcile(self, key: ObjectKey) -> None:
        service = self.store.find("services", key[1], key[0])
        if service is None or key not in self._selectors:
            return
        pods = self.store.list("pods", key[0], labels=self._selectors[key])
        trigger = self._trigger_time(key, service, pods)
        groups: dict[str, list[Json]] = {}
        for pod in pods:
            if pod["status"].get("podIP") and not has_ended(pod):
                ports = json.dumps(_ports(service, pod), sort_keys=True)
                groups.setdefault(ports, []).append(_endpoint(service, pod))
        wanted: list[tuple[Any, Any]] = [
            (json.loads(ports), endpoints[start : start + _MOST_PER_SLICE])
            for ports, endpoints in sorted(groups.items())
            for start in range(0, len(endpoints), _MOST_PER_SLICE)
        ]
        self._write(service, wanted or [(None, None)], trigger)

    def _write(self, service: Json, wanted: list[tuple[Any, Any]], trigger: datetime | None) -> None:
        """Bring the slices there are to what is wanted: those with the same ports first, then any other, then new."""
        free = owned(self.store, "endpointslices", service)
        for ports, endpoints in sorted(wanted, key=lambda pair: not any(obj["ports"] == pair[0] for obj in free)):
            match = next((obj for obj in free if obj["ports"] == ports), free[0] if free else None)
            if match is None:
                self.store.create("endpointslices", self._new(service, ports, endpoints, trigger))
                continue
            free.remove(match)
            if _same(match, ports, endpoints):
                continue
            self._change(match, ports, endpoints, trigger)
        for obj in free:
            self.store.delete("endpointslices", obj["metadata"]["name"], obj["metadata"]["namespace"])

    def _new(self, service: Json, ports: Any, endpoints: Any, trigger: datetime | None) -> Json:
        name = service["metadata"]["name"]
        labels = dict(service["metadata"].get("labels") or {})
        if service["spec"].get("clusterIP") == "None":
            labels["service.kubernetes.io/headless"] = ""
        return {
            "metadata": {
                "generateName": f"{name}-",
                "namespace": service["metadata"]["namespace"],
                "labels": labels | {MANAGED_BY: _MANAGER, SERVICE_NAME: name},
                "annotations": {TRIGGER_TIME: timestamp(trigger)} if trigger else {},
                "ownerReferences": [owner_reference(service)],
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": ports,
        }

    def _change(self, slice_: Json, ports: Any, endpoints: Any, trigger: datetime | None) -> None:
        def change(new: Json) -> None:
            # Endpoints keep their places, so that a watcher sees only what changed.
            places = {entry["targetRef"]["uid"]: index for index, entry in enumerate(new["endpoints"] or ())}
            last = len(places)
            new["ports"] = ports
            new["endpoints"] = endpoints and sorted(
                endpoints, key=lambda entry: places.get(entry["targetRef"]["uid"], last)
            )
            annotations = dict(new["metadata"].get("annotations") or {})
            annotations.pop(TRIGGER_TIME, None)
            new["metadata"]["annotations"] = annotations | ({TRIGGER_TIME: timestamp(trigger)} if trigger else {})

        self.store.mutate("endpointslices", slice_["metadata"]["name"], slice_["metadata"]["namespace"], change)

    def _trigger_time(self, key: ObjectKey, service: Json, pods: list[Json]) -> datetime | None:
        """The earliest change that this round answers to: of a Pod's readiness, or of the Service's creation."""
        known = self._seen.get(key)
        present = {f"pod/{pod['metadata']['name']}": _ready_since(pod) for pod in pods if not is_terminating(pod)}
        present |= {
            f"pod/{pod['metadata']['name']}": _ready_since(pod)
            for pod in pods
            if is_terminating(pod) and known is not None and f"pod/{pod['metadata']['name']}" in known
        }
        present["service"] = instant(service["metadata"]["creationTimestamp"])
        self._seen[key] = present
        changed = [at for name, at in present.items() if known is None or name not in known or at > known[name]]
        return min(changed) if changed else None


def _ready_since(pod: Json) -> datetime:
    ready = condition(pod, "Ready")
    return instant(ready["lastTransitionTime"] if ready else pod["metadata"]["creationTimestamp"])


def _ports(service: Json, pod: Json) -> list[Json]:
    """The Service's ports as this Pod has them: a named targetPort is looked up in its containers."""
    found = []
    for port in service["spec"].get("ports") or ():
        target = port["targetPort"]
        number = target if isinstance(target, int) else _container_port(pod, target, port["protocol"])
        if number is not None:
            found.append({"name": port.get("name", ""), "protocol": port["protocol"], "port": number})
    return found


def _container_port(pod: Json, name: str, protocol: str) -> int | None:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == name and port["protocol"] == protocol:
                return int(port["containerPort"])
    return None


def _endpoint(service: Json, pod: Json) -> Json:
    serving, terminating = is_ready(pod), is_terminating(pod)
    meta = pod["metadata"]
    return {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {
            "ready": bool(service["spec"].get("publishNotReadyAddresses")) or (serving and not terminating),
            "serving": serving,
            "terminating": terminating,
        },
        "targetRef": {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
        "nodeName": pod["spec"]["nodeName"],
    }


def _same(slice_: Json, ports: Any, endpoints: Any) -> bool:
    def by_uid(entries: Any) -> Any:
        return {entry["targetRef"]["uid"]: entry for entry in clone(entries)} if entries else None

    return bool(slice_["ports"] == ports and by_uid(slice_["endpoints"]) == by_uid(endpoints))
