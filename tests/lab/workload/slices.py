"""An API server that knows EndpointSlices only, and can be told to forget its history or to go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import yaml

from chaosrunner.lab.workload.http1 import Exchange, Server, find

TOKEN = "token-of-the-gateway"


def endpoint(
    pod: str, port: int, ready: bool | None = True, serving: bool | None = None, terminating: bool | None = None
) -> dict[str, Any]:
    """A slice that holds one Pod: on a machine with one loopback address each Pod has a port of its own."""
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    return {
        "metadata": {"name": f"chat-{pod}", "uid": f"slice-of-{pod}", "labels": {"kubernetes.io/service-name": "chat"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": ["127.0.0.1"],
                "conditions": {name: value for name, value in conditions.items() if value is not None},
                "targetRef": {"kind": "Pod", "name": pod, "namespace": "demo", "uid": f"uid-{pod}"},
            }
        ],
    }


class Slices:
    """The slices of one namespace, with a history from which watches go on."""

    def __init__(self) -> None:
        self.version = 100
        self.items: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.forgotten = 0
        self.lists = 0
        self.watches = 0
        self.port = 0
        self.token = TOKEN
        self._changed = asyncio.Event()
        self._server = Server(self._answer)
        self._hang_up = False

    async def listen(self, port: int = 0) -> None:
        self._server = Server(self._answer)
        self.port = await self._server.listen("127.0.0.1", port)

    async def go_away(self) -> None:
        await self._server.close()

    def kubeconfig(self, folder: Path) -> str:
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab", "namespace": "demo"}}],
            "clusters": [{"name": "lab", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "lab", "user": {"token": TOKEN}}],
        }
        path.write_text(yaml.safe_dump(config))
        return str(path)

    def put(self, *items: dict[str, Any]) -> None:
        """Add or change slices."""
        for item in items:
            name = item["metadata"]["name"]
            self._record("MODIFIED" if name in self.items else "ADDED", item)
            self.items[name] = item

    def remove(self, pod: str) -> None:
        self._record("DELETED", self.items.pop(f"chat-{pod}"))

    def _record(self, kind: str, item: dict[str, Any]) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, json.loads(json.dumps(item))))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def forget(self) -> None:
        """Compact the history: who asks for an older version gets 410."""
        self.forgotten = self.version
        self.history.clear()

    def hang_up(self) -> None:
        """End the watches that are open."""
        self._hang_up = True
        self._wake()

    async def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        query = parse_qs(request.query)
        if find(request.headers, "authorization") != f"Bearer {self.token}":
            self._json(exchange, 401, {"kind": "Status", "code": 401, "message": "Unauthorized"})
        elif request.path != "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices":
            self._json(exchange, 404, {"kind": "Status", "code": 404})
        elif query["labelSelector"] != ["kubernetes.io/service-name=chat"]:
            self._json(exchange, 400, {"kind": "Status", "code": 400})
        elif "watch" in query:
            await self._watch(exchange, int(query["resourceVersion"][0]))
        else:
            self.lists += 1
            metadata = {"resourceVersion": str(self.version)}
            self._json(exchange, 200, {"metadata": metadata, "items": list(self.items.values())})

    def _json(self, exchange: Exchange, status: int, page: dict[str, Any]) -> None:
        body = json.dumps(page).encode()
        exchange.respond(status, [("content-type", "application/json"), ("content-length", str(len(body)))], body)

    async def _watch(self, exchange: Exchange, version: int) -> None:
        self.watches += 1
        self._hang_up = False
        exchange.start(200, [("content-type", "application/json")])

        def send(kind: str, item: dict[str, Any]) -> None:
            line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
            # Events come in pieces that know nothing of lines.
            exchange.send(line[:20])
            exchange.send(line[20:])

        if version < self.forgotten:
            send("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})
        else:
            send("BOOKMARK", {"metadata": {"resourceVersion": str(version), "creationTimestamp": None}})
            while not self._hang_up:
                for at, kind, item in [entry for entry in self.history if entry[0] > version]:
                    send(kind, item)
                    version = at
                await self._changed.wait()
        exchange.finish()


@asynccontextmanager
async def api() -> AsyncIterator[Slices]:
    slices = Slices()
    await slices.listen()
    yield slices
    await slices.go_away()
