"""The episodes of the recording, done again in the embedded lab, all in one lab at the same time where they can."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from chaosrunner.lab import spec as specs
from chaosrunner.lab.embedded import store as stores
from chaosrunner.lab.embedded.cluster import Lab, run_cluster
from tests.lab.transitions import Change, Json, window

NAMESPACE = "demo"
SERVER = Path(__file__).with_name("slow_server.py")
FAST = {"heartbeat": 0.2, "node_grace": 1.0, "node_period": 0.1, "reconcile": 0.3, "relist": 0.5}
KINDS = ("pods", "endpointslices", "poddisruptionbudgets", "nodes", "events", "deployments", "replicasets")


class Recorder:
    """Records a lab's changes, and does to it what the recording's script did to the real cluster."""

    def __init__(self, lab: Lab, session: aiohttp.ClientSession, url: str) -> None:
        self.lab = lab
        self.store = lab.store
        self._session = session
        self._url = url
        self.changes: list[Change] = []
        self._grown = anyio.Event()
        for kind in KINDS:
            self.store.follow(kind, self._keep)

    def _keep(self, change: stores.Change) -> None:
        self.changes.append(Change(change.version, change.resource.plural, change.type, change.object))
        grown, self._grown = self._grown, anyio.Event()
        grown.set()

    def mark(self) -> int:
        return len(self.changes)

    async def until(self, holds: Callable[[], bool], seconds: float = 20) -> None:
        with anyio.fail_after(seconds):
            while not holds():
                await self._grown.wait()

    async def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Json:
        headers = {"Content-Type": content_type}
        async with self._session.request(method, self._url + path, json=body, headers=headers) as answer:
            answer.raise_for_status()
            return dict(await answer.json())

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

    def protect(self, app: str, **spec: Any) -> None:
        selector = {"matchLabels": {"app": app}}
        budget = {"metadata": {"name": app, "namespace": NAMESPACE}, "spec": {"selector": selector, **spec}}
        self.store.create("poddisruptionbudgets", budget)

    def budget(self, app: str) -> Json:
        return dict(self.store.get("poddisruptionbudgets", app, NAMESPACE)["status"])

    async def evict(self, name: str) -> None:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        await self.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", body)


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
async def lab_with_recorder(state: Path, **spec: Any) -> AsyncIterator[Recorder]:
    built = specs.build({"kubelet": FAST, **spec})
    async with run_cluster(built, state) as lab, aiohttp.ClientSession() as session:
        lab.store.create("namespaces", {"metadata": {"name": NAMESPACE}})
        yield Recorder(lab, session, lab.url)


Episode = tuple[list[Change], dict[str, str]]
"""The changes of an episode, and the names of the objects that play a part."""


def _part(recorder: Recorder, start: int, victim: str, app: str) -> Episode:
    changes = [
        change
        for change in window(recorder.changes, start)
        if change.kind != "endpointslices" or change.name.startswith(f"{app}-")
    ]
    created = [
        change.name for change in changes if change.kind == "pods" and change.type == "ADDED" and _is_of(change, app)
    ]
    replicasets = [change.name for change in changes if change.kind == "replicasets" and _is_of(change, app)]
    names = {"victim": victim, "app": app, "replacement": created[0] if created else "", "replicaset": replicasets[0]}
    return changes, names


def _is_of(change: Change, app: str) -> bool:
    return change.object["metadata"]["labels"].get("app") == app


def _first(recorder: Recorder, app: str) -> str:
    return str(recorder.pods(app)[0]["metadata"]["name"])


async def eviction(recorder: Recorder) -> Episode:
    app = "evict"
    await recorder.deploy(app, drain=3)
    recorder.protect(app, minAvailable=2)
    await recorder.until(lambda: recorder.budget(app)["disruptionsAllowed"] == 1)
    victim, start = _first(recorder, app), recorder.mark()
    await recorder.evict(victim)
    await recorder.until(lambda: recorder.whole(app))
    return _part(recorder, start, victim, app)


async def kill(recorder: Recorder) -> Episode:
    app = "kill"
    await recorder.deploy(app)
    recorder.protect(app, minAvailable=2)
    await recorder.until(lambda: recorder.budget(app)["disruptionsAllowed"] == 1)
    victim, start = _first(recorder, app), recorder.mark()
    recorder.lab.signal_container(NAMESPACE, victim, None, signal.SIGKILL)
    await recorder.until(lambda: not recorder.whole(app))
    await recorder.until(lambda: recorder.whole(app))
    return _part(recorder, start, victim, app)


async def force_delete(recorder: Recorder) -> Episode:
    app = "force"
    await recorder.deploy(app)
    victim, start = _first(recorder, app), recorder.mark()
    await recorder.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{victim}", {"gracePeriodSeconds": 0})
    await recorder.until(lambda: recorder.whole(app))
    return _part(recorder, start, victim, app)


async def grace_exceeded(recorder: Recorder) -> Episode:
    app = "slow"
    hook = {"preStop": {"exec": {"command": ["sleep", "30"]}}}
    await recorder.deploy(app, 1, drain=3, grace=1, lifecycle=hook)
    victim, start = _first(recorder, app), recorder.mark()
    await recorder.evict(victim)
    await recorder.until(lambda: recorder.whole(app, 1))
    return _part(recorder, start, victim, app)


async def rolling_restart(recorder: Recorder) -> Episode:
    app = "roll"
    await recorder.deploy(app)
    start = recorder.mark()
    old = next(obj for obj in recorder.store.list("replicasets", NAMESPACE) if obj["metadata"]["labels"]["app"] == app)
    patch = {"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}}
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{app}"
    await recorder.call("PATCH", path, patch, "application/strategic-merge-patch+json")
    await recorder.until(
        lambda: (
            recorder.store.get("deployments", app, NAMESPACE)["status"].get("observedGeneration") == 2
            and recorder.whole(app)
        )
    )
    changes, names = _part(recorder, start, "", app)
    new = next(change.name for change in changes if change.kind == "replicasets" and change.type == "ADDED")
    return changes, names | {"old": old["metadata"]["name"], "new": new}


async def scale(recorder: Recorder) -> Episode:
    app = "scale"
    await recorder.deploy(app)
    start = recorder.mark()
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{app}/scale"
    await recorder.call("PATCH", path, {"spec": {"replicas": 1}}, "application/merge-patch+json")
    await recorder.until(lambda: recorder.whole(app, 1))
    return _part(recorder, start, "", app)


async def node_cut(recorder: Recorder) -> Episode:
    """Alone, as it takes a node from all."""
    app = "cut"
    await recorder.deploy(app)
    victim = _first(recorder, app)
    name = recorder.store.get("pods", victim, NAMESPACE)["spec"]["nodeName"]
    start = recorder.mark()
    recorder.lab.cut_node(name)
    await recorder.until(lambda: not is_ready(recorder.store.get("pods", victim, NAMESPACE)))
    await recorder.until(lambda: len(recorder.store.get("nodes", name)["spec"]["taints"]) == 2)
    await anyio.sleep(0.3)
    recorder.lab.heal_node(name)
    await recorder.until(lambda: recorder.whole(app))
    changes, names = _part(recorder, start, victim, app)
    return changes, names | {"node": name}


async def all_episodes(state: Path) -> dict[str, Episode]:
    """Do all episodes and return what each went through."""
    found: dict[str, Episode] = {}
    async with lab_with_recorder(state) as recorder:

        async def do(episode: Callable[[Recorder], Any]) -> None:
            found[episode.__name__] = await episode(recorder)

        async with anyio.create_task_group() as group:
            for episode in (eviction, kill, force_delete, grace_exceeded, rolling_restart, scale):
                group.start_soon(do, episode)
        await do(node_cut)
    return found


if __name__ == "__main__":
    for name, (changes, names) in anyio.run(all_episodes, Path(sys.argv[1])).items():
        print(name, len(changes), names)
