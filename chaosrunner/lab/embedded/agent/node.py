"""The agent of one node: registers it, sends its heartbeats, and runs the Pods that are bound to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import structlog

from chaosrunner.lab.embedded.agent.addresses import Addresses
from chaosrunner.lab.embedded.agent.containers import Container
from chaosrunner.lab.embedded.agent.pod import PodWorker
from chaosrunner.lab.embedded.agent.processes import Processes
from chaosrunner.lab.embedded.controllers.events import Recorder, micro_time
from chaosrunner.lab.embedded.controllers.nodes import LEASES
from chaosrunner.lab.embedded.selectors import parse_fields
from chaosrunner.lab.embedded.store import Store, timestamp
from chaosrunner.lab.objects import Json, has_ended

log = structlog.get_logger()

Note = Callable[..., None]
"""note(what, pod, **more) writes into the lab's own log of instants."""


@dataclass(frozen=True)
class AgentSettings:
    """Times of an agent, in seconds. Defaults are a kubelet's, but for the quicker heartbeat.

    relist: how often the agent looks whether containers have ended by themselves (PLEG). backoff, backoff_most: first
    and longest wait of a crashing container. heartbeat: between two renewals of the node's Lease and status.
    reconcile: after a node could reach the API server again, until its Pods' statuses are corrected. teardown: from a
    Pod's last container to the end of its object.
    """

    relist: float = 1.0
    backoff: float = 10.0
    backoff_most: float = 300.0
    heartbeat: float = 2.0
    reconcile: float = 1.0
    teardown: float = 0.1


class NodeAgent:
    """A kubelet in miniature. `cut` separates it from the API server, as a broken link does; its processes run on."""

    def __init__(
        self,
        store: Store,
        name: str,
        ip: str,
        *,
        root: Path,
        processes: Processes,
        addresses: Addresses,
        settings: AgentSettings,
        note: Note,
        api_variables: dict[str, str],
        labels: Mapping[str, str] | None = None,
        taints: list[Json] | None = None,
    ) -> None:
        self.store = store
        self.name = name
        self.ip = ip
        self.root = root
        self.processes = processes
        self.addresses = addresses
        self.settings = settings
        self.note = note
        self.api_variables = api_variables
        self._labels = dict(labels or {})
        self._taints = taints or []
        self._events = Recorder(store, "kubelet", name)
        self._workers: dict[str, PodWorker] = {}
        self._connected = anyio.Event()
        self._unschedulable = False
        self._group: anyio.abc.TaskGroup | None = None
        self._clock_start = time.monotonic()

    # -- life --------------------------------------------------------------------------------------------------------

    def register(self) -> None:
        """Create the Node and its Lease."""
        labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": self.name}
        node: Json = {
            "metadata": {"name": self.name, "labels": labels | self._labels},
            "spec": {"taints": self._taints} if self._taints else {},
            "status": self._node_status(None),
        }
        self.store.create("nodes", node)
        self._renew_lease()
        self._connected.set()

    def start(self, group: anyio.abc.TaskGroup) -> None:
        """Take notice of Pods from now on; their workers run in `group`."""
        self._group = group
        self.store.subscribe("pods", self._pod_changed)
        self._list_pods()

    async def run(self) -> None:
        """Send heartbeats until cancelled; the processes are ended by their owner (`Processes`)."""
        while True:
            await anyio.sleep(self.settings.heartbeat)
            await self._connected.wait()
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        node = self.store.find("nodes", self.name)
        if node is None:
            return
        self._tell_schedulable(node)
        self._renew_lease()
        self.store.mutate(
            "nodes",
            self.name,
            None,
            lambda new: new.update(status=self._node_status(new["status"])),
            subresource="status",
        )

    def _renew_lease(self) -> None:
        now = micro_time(self.store.now())
        if self.store.find("leases", self.name, LEASES) is not None:
            self.store.mutate("leases", self.name, LEASES, lambda new: new["spec"].update(renewTime=now))
            return
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now}
        self.store.create("leases", {"metadata": {"name": self.name, "namespace": LEASES}, "spec": spec})

    def _tell_schedulable(self, node: Json) -> None:
        """An Event when the node was cordoned or uncordoned since the last heartbeat."""
        unschedulable = bool(node["spec"].get("unschedulable"))
        if unschedulable != self._unschedulable:
            self._unschedulable = unschedulable
            reason = "NodeNotSchedulable" if unschedulable else "NodeSchedulable"
            self._events.normal(node, reason, f"Node {self.name} status is now: {reason}")

    def _node_status(self, present: Json | None) -> Json:
        now = timestamp(self.store.now())
        known = {entry["type"]: entry for entry in (present or {}).get("conditions", ())}
        conditions = []
        for type_, status, reason, message in _NODE_CONDITIONS:
            same = type_ in known and known[type_]["status"] == status
            conditions.append(
                {
                    "type": type_,
                    "status": status,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": known[type_]["lastTransitionTime"] if same else now,
                    "reason": reason,
                    "message": message,
                }
            )
        capacity = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        return {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": conditions,
            "addresses": [
                {"type": "InternalIP", "address": self.ip},
                {"type": "Hostname", "address": self.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": _NODE_INFO,
        }

    # -- link to the API server --------------------------------------------------------------------------------------

    @property
    def is_cut(self) -> bool:
        return not self._connected.is_set()

    def cut(self) -> None:
        """Lose the API server: no heartbeats, no statuses, no news of Pods. The processes run on."""
        if not self.is_cut:
            self._connected = anyio.Event()

    def heal(self) -> None:
        """Reach the API server again: a heartbeat at once, then the Pods are compared with what is known of them."""
        if not self.is_cut:
            return
        self._connected.set()
        self._send_heartbeat()
        assert self._group is not None
        self._group.start_soon(self._catch_up)

    async def _catch_up(self) -> None:
        await anyio.sleep(self.settings.reconcile)
        if self.is_cut:
            return
        self._list_pods()
        for worker in list(self._workers.values()):
            worker.publish()

    def _list_pods(self) -> None:
        pods = self.store.list("pods", fields=parse_fields("pods", f"spec.nodeName={self.name}"))
        present = {pod["metadata"]["uid"] for pod in pods}
        for pod in pods:
            self._pod_changed("MODIFIED", pod, None)
        for uid, worker in list(self._workers.items()):
            if uid not in present:
                worker.removed()

    def _pod_changed(self, type_: str, pod: Json, old: Json | None) -> None:
        if pod["spec"].get("nodeName") != self.name or self.is_cut or self._group is None:
            return
        uid = pod["metadata"]["uid"]
        worker = self._workers.get(uid)
        if type_ == "DELETED":
            if worker is not None:
                worker.removed()
        elif worker is not None:
            worker.update(pod)
        elif not has_ended(pod):
            worker = self._workers[uid] = PodWorker(self, pod)
            worker.update(pod)
            self._group.start_soon(self._run_worker, worker)

    async def _run_worker(self, worker: PodWorker) -> None:
        """Trouble with one Pod ends neither the others nor the lab."""
        try:
            await worker.run()
        except Exception:
            log.exception("pod worker failed", pod=worker.key)

    # -- for the Pods' workers ---------------------------------------------------------------------------------------

    def until_relist(self) -> float:
        """Seconds until the agent next looks at its containers."""
        if not self.settings.relist:
            return 0.0
        return self.settings.relist - (time.monotonic() - self._clock_start) % self.settings.relist

    def write_status(self, worker: PodWorker, compose: Callable[[Json], Json]) -> None:
        """Write a Pod's status, unless the object is gone, is another Pod by now, or the node is cut off."""
        namespace, name = worker.key
        present = self.store.find("pods", name, namespace)
        if self.is_cut or present is None or present["metadata"]["uid"] != worker.uid:
            return
        status = compose(present["status"])
        self.store.mutate("pods", name, namespace, lambda new: new.update(status=status), subresource="status")

    def tell(self, pod: Json, type_: str, reason: str, message: str, field_path: str) -> None:
        """Write an Event; one that cannot be sent while the node is cut off is lost."""
        if self.is_cut:
            return
        record = self._events.normal if type_ == "Normal" else self._events.warning
        record(pod, reason, message, field_path)

    async def remove(self, worker: PodWorker) -> None:
        """A Pod's processes are gone: delete its object for good."""
        await anyio.sleep(self.settings.teardown)
        await self._connected.wait()
        namespace, name = worker.key
        present = self.store.find("pods", name, namespace)
        if present is not None and present["metadata"]["uid"] == worker.uid:
            self.store.delete("pods", name, namespace, uid=worker.uid, grace=0)
        self._workers.pop(worker.uid, None)

    # -- for the lab -------------------------------------------------------------------------------------------------

    def container(self, namespace: str, pod: str, container: str | None = None) -> Container | None:
        """A container of a Pod that the agent knows; the first one unless named."""
        for worker in self._workers.values():
            if worker.key == (namespace, pod):
                for entry in worker.all_containers():
                    if container in (None, entry.name):
                        return entry
        return None


_NODE_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)
_NODE_INFO: dict[str, Any] = {
    "machineID": "",
    "systemUUID": "",
    "bootID": "",
    "kernelVersion": "lab",
    "osImage": "chaosrunner embedded lab",
    "containerRuntimeVersion": "lab://1",
    "kubeletVersion": "v1.37.2",
    "kubeProxyVersion": "",
    "operatingSystem": "linux",
    "architecture": "amd64",
}
