"""A small cluster on the lab's API server, in this process: nodes, a workload, budgets, a kubelet of a few lines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from chaosrunner.cluster import Cluster, ClusterConfig, connect
from chaosrunner.faults.base import Context
from chaosrunner.journal.journal import NAME, Connection, Journal
from chaosrunner.lab.embedded.access import ADMIN, Access, Account
from chaosrunner.lab.embedded.api import serve
from chaosrunner.lab.embedded.controllers.disruption import DisruptionController
from chaosrunner.lab.embedded.errors import ApiError
from chaosrunner.lab.embedded.store import Store
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock

Object = dict[str, Any]
NAMESPACE = "demo"


@dataclass
class World:
    store: Store
    cluster: Cluster
    connection: Connection
    folder: Path
    tasks: TaskGroup
    emitted: list[rows.Row] = field(default_factory=list)

    # --- making ---------------------------------------------------------------------------------------------

    def node(self, name: str, **spec: Any) -> rows.Target:
        made = self.store.create("nodes", {"metadata": {"name": name, "annotations": {"made": "here"}}, "spec": spec})
        return rows.Target(kind="Node", name=name, uid=made["metadata"]["uid"])

    def deployment(self, name: str, replicas: int) -> Object:
        """A Deployment that has rolled out, with its ReplicaSet; its Pods are made by `pod`."""
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "engine", "image": "lab/model"}]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        top = self.store.create("deployments", {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)
        self.store.load("deployments", [{**top, "status": {"replicas": replicas, "updatedReplicas": replicas}}])
        middle = {"metadata": {"name": f"{name}-1", "labels": labels, "ownerReferences": [_owner(top)]}, "spec": spec}
        return self.store.create("replicasets", middle, namespace=NAMESPACE)

    def pod(
        self,
        name: str,
        *,
        owner: Object | None = None,
        node: str = "n1",
        phase: str = "Running",
        namespace: str = NAMESPACE,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        finalizers: list[str] | None = None,
        **spec: Any,
    ) -> Object:
        metadata: Object = {
            "name": name,
            "labels": {"app": "chat"} if labels is None else labels,
            "ownerReferences": [_owner(owner)] if owner else [],
            "annotations": annotations or {},
            "finalizers": finalizers or [],
        }
        spec = {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "engine", "image": "lab/model"}],
            **spec,
        }
        made = self.store.create("pods", {"metadata": metadata, "spec": spec}, namespace=namespace)
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
        self.store.load("pods", [{**made, "status": {"phase": phase, "podIP": "127.0.0.9", "conditions": [ready]}}])
        return self.store.get("pods", name, namespace)

    def budget(self, name: str, labels: dict[str, str], **spec: Any) -> Object:
        body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, **spec}}
        return self.store.create("poddisruptionbudgets", body, namespace=NAMESPACE)

    def service(self, name: str, pods: list[Object]) -> None:
        spec = {"selector": {"app": name}, "ports": [{"port": 80}]}
        self.store.create("services", {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)
        endpoints = [
            {
                "addresses": [pod["status"]["podIP"]],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]},
            }
            for pod in pods
        ]
        item = {
            "metadata": {"name": f"{name}-x", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"port": 8000}],
        }
        self.store.create("endpointslices", item, namespace=NAMESPACE)

    def kubelet(self, after: float = 0.05) -> None:
        """Removes Pods `after` seconds from when they are to go (finalizers hold them all the same)."""

        async def remove(name: str, namespace: str) -> None:
            await anyio.sleep(after)
            if self.store.find("pods", name, namespace):
                self.store.delete("pods", name, namespace, grace=0)

        def changed(kind: str, pod: Object, old: Object | None) -> None:
            meta = pod["metadata"]
            if kind == "MODIFIED" and meta.get("deletionTimestamp") and meta["deletionGracePeriodSeconds"] > 0:
                self.tasks.start_soon(remove, meta["name"], meta["namespace"])

        self.store.subscribe("pods", changed)

    # --- looking --------------------------------------------------------------------------------------------

    def unschedulable(self, node: str) -> Any:
        return self.store.get("nodes", node)["spec"].get("unschedulable")

    def schedule(self, node: str, unschedulable: bool) -> None:
        """As kubectl cordon and uncordon do it."""

        def change(obj: Object) -> None:
            obj["spec"]["unschedulable"] = unschedulable

        self.store.mutate("nodes", node, None, change)

    def actions(self, event: str = "sent") -> list[rows.Action]:
        return [row for row in self.emitted if isinstance(row, rows.Action) and row.event == event]

    def states(self) -> list[str]:
        return [row.event for row in self.emitted if isinstance(row, rows.Journal)]

    def events(self) -> list[tuple[str, str]]:
        """(reason, name of the object) of our Events."""
        return sorted(
            (event["reason"], event["involvedObject"]["name"])
            for event in self.store.list("events")
            if event["source"]["component"] == "chaosrunner"
        )

    def context(self, run: str = "run-1") -> Context:
        folder = self.folder / "timelines" / "drill" / run
        folder.mkdir(parents=True, exist_ok=True)
        journal = Journal(
            folder / NAME,
            run=run,
            drill="drill",
            connection=self.connection,
            clock=self.cluster.clock,
            emit=self.emitted.append,
        )
        return Context(cluster=self.cluster, journal=journal, emit=self.emitted.append, run=run, drill="drill", step=0)

    async def settled(self, budget: str, **status: int) -> None:
        """Waits until the disruption controller says so."""
        with anyio.fail_after(5):
            while True:
                now = self.store.get("poddisruptionbudgets", budget, NAMESPACE).get("status") or {}
                if all(now.get(key) == value for key, value in status.items()):
                    return
                await anyio.sleep(0.01)

    async def quiet(self) -> int:
        """Waits until no controller has anything more to write; the version that the store then has."""
        with anyio.fail_after(5):
            while True:
                version = self.store.resource_version
                await anyio.sleep(0.1)
                if self.store.resource_version == version:
                    return version


def kubeconfig(folder: Path, url: str, token: str = "admin") -> Path:
    path = folder / f"kubeconfig-{token}"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "lab",
                "clusters": [{"name": "lab", "cluster": {"server": url}}],
                "users": [{"name": "lab", "user": {"token": token}}],
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab", "namespace": NAMESPACE}}],
            }
        )
    )
    return path


def opener(connection: Connection) -> Any:
    """Opens the cluster that a journal's entry names, as the command line does."""
    return connect(ClusterConfig(kubeconfig=connection.kubeconfig, context=connection.context), Clock())


@asynccontextmanager
async def running(
    folder: Path, accounts: dict[str, Account] | None = None, token: str = "admin"
) -> AsyncIterator[World]:
    store = Store()
    store.create("namespaces", {"metadata": {"name": NAMESPACE}})
    access = Access({"admin": ADMIN, **(accounts or {})})
    async with anyio.create_task_group() as tasks, serve(store, "127.0.0.1", 0, access=access) as server:
        controller = DisruptionController(store)
        controller.start()
        tasks.start_soon(controller.run)
        path = kubeconfig(folder, server.url, token)
        connection = Connection(kubeconfig=str(path), context="lab", namespace=NAMESPACE)
        async with connect(ClusterConfig(kubeconfig=str(path), context="lab"), Clock()) as cluster:
            yield World(store, cluster, connection, folder, tasks)
        tasks.cancel_scope.cancel()


def _owner(obj: Object) -> Object:
    meta = obj["metadata"]
    return {
        "apiVersion": obj.get("apiVersion", "apps/v1"),
        "kind": obj["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }


__all__ = ["NAMESPACE", "ApiError", "World", "kubeconfig", "opener", "running"]
