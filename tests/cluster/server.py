"""A scripted API server on loopback, for what a real one cannot be made to do on demand; it speaks as recordings do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anyio
import yaml
from aiohttp import web

from chaosrunner.cluster import ClusterConfig
from chaosrunner.timeline.rows import Row

DATA = Path(__file__).parent.parent / "data"

R = TypeVar("R")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """Answers requests by handlers; keeps what it was asked."""

    url: str = ""
    requests: list[tuple[str, str, dict[str, str], dict[str, str], Any]] = field(default_factory=list)
    """Method, path, query, headers, body."""
    routes: dict[tuple[str, str], Handler] = field(default_factory=dict)

    def on(self, method: str, path: str) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.routes[method, path] = handler
            return handler

        return register

    def asked(self, method: str, part: str) -> list[tuple[str, str, dict[str, str], dict[str, str], Any]]:
        return [request for request in self.requests if request[0] == method and part in request[1]]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        headers = {key: ",".join(request.headers.getall(key)) for key in request.headers}
        body = json.loads(text) if text else None
        self.requests.append((request.method, request.path, dict(request.query), headers, body))
        handler = self.routes.get((request.method, request.path))
        if handler is None:
            return status(404, "NotFound", f"{request.path} not found")
        return await handler(request)


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def status(code: int, reason: str | None, message: str, **more: Any) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, **more}
    return web.json_response(body | ({"reason": reason} if reason else {}) | {"code": code}, status=code)


def ok(body: Any, code: int = 200) -> web.Response:
    return web.json_response(body, status=code)


def listing(version: str, items: Iterable[dict[str, Any]] = (), **metadata: str) -> web.Response:
    return ok(
        {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version, **metadata}, "items": [*items]}
    )


def always(body: Any) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return ok(body)

    return answer


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 (the test looks from outside)
            await anyio.sleep(0.005)


async def open_watch(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


async def send(response: web.StreamResponse, kind: str, obj: dict[str, Any]) -> None:
    await response.write(json.dumps({"type": kind, "object": obj}).encode() + b"\n")


def pod(name: str, version: str, *, uid: str | None = None, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "demo", "uid": uid or f"uid-{name}", "resourceVersion": version}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata | more.pop("metadata", {}), **more}


def bookmark(version: str) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"resourceVersion": version, "creationTimestamp": None},
        "spec": {"containers": None},
        "status": {},
    }


def kubeconfig(folder: Path, url: str, user: dict[str, Any] | None = None, name: str = "config") -> ClusterConfig:
    """Writes a kubeconfig for a server; the configuration that uses it."""
    path = folder / name
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "lab",
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me", "namespace": "demo"}}],
                "clusters": [{"name": "lab", "cluster": {"server": url}}],
                "users": [{"name": "me", "user": user or {}}],
            }
        )
    )
    return ClusterConfig(kubeconfig=str(path), request_timeout=5.0)


class Recorder:
    """Takes rows as the writer does: gives ids, keeps them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def __call__(self, row: Row) -> None:
        self.rows.append(row)
        row.id = len(self.rows)

    def of(self, kind: type[R]) -> list[R]:
        return [row for row in self.rows if isinstance(row, kind)]
