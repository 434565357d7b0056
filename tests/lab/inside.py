"""The embedded lab in the test's own process, where its store and its times can be reached."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from chaosrunner.lab import spec as specs
from chaosrunner.lab.embedded.cluster import Lab, run_cluster
from chaosrunner.lab.embedded.store import Change, Json

NAMESPACE = "demo"
SERVER = Path(__file__).with_name("slow_server.py")
FAST = {"heartbeat": 0.2, "node_grace": 1.0, "node_period": 0.1, "reconcile": 0.3, "relist": 0.5}
KINDS = ("pods", "endpointslices", "poddisruptionbudgets", "nodes", "events", "deployments", "replicasets")


class Inside:
    """A lab in this process: its store, and waiting for what comes."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.store = lab.store
        self._changed = anyio.Event()
        for kind in KINDS:
            self.store.follow(kind, self._wake)

    def _wake(self, change: Change) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def until(self, holds: Callable[[], bool], seconds: float = 20) -> None:
        with anyio.fail_after(seconds):
            while not holds():
                await self._changed.wait()

    def pods(self, app: str) -> list[Json]:
        return [pod for pod in self.store.list("pods", NAMESPACE) if pod["metadata"]["labels"].get("app") == app]

    def whole(self, app: str, replicas: int = 3) -> bool:
        """So many Pods, all Ready, none terminating, and every controller has seen it."""
        pods = self.pods(app)
        status = self.store.get("deployments", app, NAMESPACE).get("status", {})
        slices = self.store.list("endpointslices", NAMESPACE)
        endpoints = [
            entry["conditions"]["ready"]
            for obj in slices
            if obj["metadata"]["labels"]["kubernetes.io/service-name"] == app
            for entry in obj["endpoints"] or ()
        ]
        budget = self.store.find("poddisruptionbudgets", app, NAMESPACE)
        return (
            len(pods) == replicas
            and all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
            and status.get("terminatingReplicas") == 0
            and all(status.get(name) == replicas for name in ("replicas", "updatedReplicas", "availableReplicas"))
            and endpoints == [True] * replicas
            and (budget is None or budget["status"]["currentHealthy"] == budget["status"]["expectedPods"] == replicas)
        )

    async def deploy(self, app: str, replicas: int = 3, *, drain: float = 0.4, **pod: Any) -> None:
        pod.setdefault("lifecycle", {"preStop": {"exec": {"command": ["sleep", "0.3"]}}})
        self.store.create("deployments", deployment(app, replicas, drain=drain, **pod))
        service = {"selector": {"app": app}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}
        self.store.create("services", {"metadata": {"name": app, "namespace": NAMESPACE}, "spec": service})
        await self.until(lambda: self.whole(app, replicas))


def is_ready(pod: Json) -> bool:
    return any(
        entry["type"] == "Ready" and entry["status"] == "True" for entry in pod["status"].get("conditions") or ()
    )


def deployment(app: str, replicas: int, *, drain: float, startup: float = 0.5, grace: int = 20, **more: Any) -> Json:
    """The Deployment of the recording with shorter times."""
    check = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1}
    command = ["python3", str(SERVER), "$(POD_IP)", "$(CONTAINER_PORT_HTTP)", str(startup), str(drain)]
    container = {
        "name": "engine",
        "image": "lab/model:1",
        "command": command,
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": check,
        "startupProbe": check | {"failureThreshold": 30},
        **more,
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": app}},
    }
    spec = {
        "terminationGracePeriodSeconds": grace,
        "containers": [container],
        "topologySpreadConstraints": [spread],
    }
    return {
        "metadata": {"name": app, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": app}},
            "template": {"metadata": {"labels": {"app": app}}, "spec": spec},
        },
    }


@asynccontextmanager
async def inside_a_lab(state: Path, **spec: Any) -> AsyncIterator[Inside]:
    built = specs.build({"kubelet": FAST, **spec})
    async with run_cluster(built, state) as lab:
        lab.store.create("namespaces", {"metadata": {"name": NAMESPACE}})
        yield Inside(lab)
