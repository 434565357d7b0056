from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from chaosrunner.cluster import connect
from chaosrunner.cluster.watch import Timing
from chaosrunner.observers import ObserveScope, observe
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from tests.cluster.server import (
    Recorder,
    Server,
    always,
    kubeconfig,
    listing,
    open_watch,
    pod,
    send,
    serving,
    status,
    until,
)

pytestmark = pytest.mark.anyio

DEMO = "/api/v1/namespaces/demo"
APPS = "/apis/apps/v1/namespaces/demo"
COLLECTIONS = {
    "pods": f"{DEMO}/pods",
    "events": f"{DEMO}/events",
    "pdbs": "/apis/policy/v1/namespaces/demo/poddisruptionbudgets",
    "slices": "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices",
    "nodes": "/api/v1/nodes",
    "node events": "/api/v1/namespaces/default/events",
    "all pods": "/api/v1/pods",
}


def owned(name: str, replicaset: str, **more: Any) -> dict[str, Any]:
    reference = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": replicaset,
        "uid": replicaset,
        "controller": True,
    }
    return pod(name, "1", metadata={"ownerReferences": [reference], **more})


class World:
    """Collections that are listed once and then watched; what is put into `queue` goes to the watch."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.items: dict[str, list[dict[str, Any]]] = {name: [] for name in COLLECTIONS}
        self.forbidden: set[str] = set()
        self.watches: dict[str, web.StreamResponse] = {}
        for name, path in COLLECTIONS.items():
            server.on("GET", path)(self._handler(name))
        for replicaset in ("chat-1", "chat-2"):
            reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat", "uid": "d", "controller": True}
            metadata = {"name": replicaset, "uid": replicaset, "ownerReferences": [reference]}
            server.on("GET", f"{APPS}/replicasets/{replicaset}")(always({"metadata": metadata}))
        server.on("GET", f"{APPS}/deployments/chat")(always({"metadata": {"name": "chat", "uid": "d"}}))

    def _handler(self, name: str) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            if name in self.forbidden:
                return status(403, "Forbidden", f"cannot list {name}")
            if "watch" not in request.query:
                return listing("10", self.items[name])
            self.watches[name] = await open_watch(request)
            await anyio.sleep(60)
            return self.watches[name]

        return handle

    async def tell(self, name: str, kind: str, obj: dict[str, Any]) -> None:
        await until(lambda: name in self.watches)
        await send(self.watches[name], kind, obj)


@asynccontextmanager
async def world(folder: Path, **scope: Any) -> AsyncIterator[tuple[World, Recorder, anyio.Event, Any]]:
    recorder, ready = Recorder(), anyio.Event()
    wanted = ObserveScope(
        namespace="demo", selector="app=chat", service="chat", controller="chat", timing=Timing(backoff=0.02), **scope
    )
    async with serving() as server, connect(kubeconfig(folder, server.url), Clock()) as cluster:
        made = World(server)
        async with anyio.create_task_group() as tasks:

            def start() -> None:
                tasks.start_soon(lambda: observe(cluster, wanted, recorder, ready=ready))

            yield made, recorder, ready, start
            tasks.cancel_scope.cancel()


async def test_ready_although_nodes_are_forbidden(tmp_path: Path) -> None:
    async with world(tmp_path) as (made, recorder, ready, start):
        made.forbidden.add("nodes")
        start()
        with anyio.fail_after(5):
            await ready.wait()
        assert [(w.resource, w.reason) for w in recorder.of(rows.Watch) if w.event == "forbidden"] == [
            ("nodes", "cannot list nodes")
        ]
        assert len([w for w in recorder.of(rows.Watch) if w.event == "listed"]) == 5


async def test_no_nodes_asked_no_cluster_wide_rights_needed(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=frozenset()) as (made, _, ready, start):
        start()
        await ready.wait()
        assert made.server.asked("GET", "/api/v1/nodes") == []


async def test_roots_are_known_from_the_first_row_and_for_new_owners_soon_after(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=frozenset()) as (made, recorder, ready, start):
        made.items["pods"] = [owned("a", "chat-1")]
        start()
        await ready.wait()
        chat = rows.Owner(kind="Deployment", name="chat", uid="d")
        assert [row.root for row in recorder.of(rows.Pod)] == [chat]
        # a rollout: a ReplicaSet that nobody knew
        await made.tell("pods", "ADDED", owned("b", "chat-2"))
        await until(lambda: bool(made.server.asked("GET", "replicasets/chat-2")))
        await anyio.sleep(0.1)
        await made.tell("pods", "MODIFIED", owned("b", "chat-2", resourceVersion="2"))
        await until(lambda: len(recorder.of(rows.Pod)) == 3)
        assert [row.root for row in recorder.of(rows.Pod)] == [chat, None, chat]


async def test_everything_on_a_target_node(tmp_path: Path) -> None:
    scope = {"nodes": frozenset({"n1"}), "pods_on_nodes": True}
    async with world(tmp_path, **scope) as (made, recorder, ready, start):
        made.items["pods"] = [owned("a", "chat-1")]
        made.items["all pods"] = [pod("neighbour", "1", metadata={"namespace": "other"})]
        made.items["nodes"] = [{"metadata": {"name": "n1", "uid": "n1", "resourceVersion": "1"}}]
        start()
        await ready.wait()
        # the workload's own Pod is on that node too: one row, not two
        await made.tell("all pods", "ADDED", owned("a", "chat-1"))
        await made.tell("all pods", "DELETED", pod("neighbour", "2", metadata={"namespace": "other"}))
        await until(lambda: len(recorder.of(rows.Pod)) >= 3)
        assert sorted((row.seen, row.name) for row in recorder.of(rows.Pod)) == [
            ("DELETED", "neighbour"), ("LISTED", "a"), ("LISTED", "neighbour"),
        ]  # fmt: skip
        assert made.server.asked("GET", "/api/v1/nodes")[0][2]["fieldSelector"] == "metadata.name=n1"
        event = {"metadata": {"name": "e", "uid": "e", "resourceVersion": "1"}, "reason": "NodeNotReady"}
        for node in ("n2", "n1"):
            about = event | {"involvedObject": {"kind": "Node", "name": node}}
            about["metadata"] = {"name": node, "uid": node, "resourceVersion": "1"}
            await made.tell("node events", "ADDED", about)
        await until(lambda: bool(recorder.of(rows.Event)))
        assert [row.object_name for row in recorder.of(rows.Event)] == ["n1"]


async def test_expired_events_are_no_news(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=frozenset()) as (made, recorder, ready, start):
        event = {
            "metadata": {"name": "e", "uid": "e", "resourceVersion": "1"},
            "involvedObject": {"kind": "Deployment", "name": "chat", "uid": "d"},
        }
        made.items["events"] = [event]
        start()
        await ready.wait()
        await made.tell("events", "DELETED", event | {"metadata": {"name": "e", "uid": "e", "resourceVersion": "2"}})
        await made.tell("pods", "ADDED", owned("z", "chat-1"))
        await until(lambda: bool(recorder.of(rows.Pod)))
        assert [row.seen for row in recorder.of(rows.Event)] == ["LISTED"]


async def test_a_cluster_that_is_away_raises_nothing(tmp_path: Path) -> None:
    recorder, ready = Recorder(), anyio.Event()
    scope = ObserveScope(namespace="demo", selector="app=chat", timing=Timing(backoff=0.02))
    async with connect(kubeconfig(tmp_path, "http://127.0.0.1:1"), Clock()) as cluster:
        with anyio.move_on_after(0.3):
            await observe(cluster, scope, recorder, ready=ready)
    assert not ready.is_set()
    assert {row.event for row in recorder.of(rows.Watch)} == {"gap_opened", "stopped"}
