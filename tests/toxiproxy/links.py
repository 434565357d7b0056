"""A client and a server with a Toxiproxy between them: the real one, or the lab's gateway, which speaks its API."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from chaosrunner.http.fetch import JsonFetcher
from chaosrunner.http.toxiproxy import Toxiproxy
from chaosrunner.timeline.clock import Clock
from tests import toxiproxy
from tests.lab.workload.harness import Program
from tests.lab.workload.slices import api, endpoint

KINDS = ("toxiproxy", "gateway")
PROXY = "chat-0"


@dataclass
class Link:
    """What is between a client and the server. `url`: of the API. `port`: where the client connects to."""

    url: str
    port: int
    server: int

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Toxiproxy]:
        async with Toxiproxy(self.url, Clock()) as client:
            yield client

    async def post(self, path: str, body: object = None) -> int:
        """The status of a POST that no client of ours makes."""
        async with JsonFetcher(self.url, clock=Clock()) as fetcher:
            return (await fetcher.ask("POST", path, body=body))[0]


@asynccontextmanager
async def running(kind: str) -> AsyncIterator[Link]:
    with tempfile.TemporaryDirectory() as folder:
        async with _server() as port:
            between = _real(Path(folder), port) if kind == "toxiproxy" else _gateway(Path(folder), port)
            async with between as link:
                yield link


@asynccontextmanager
async def _real(folder: Path, server: int) -> AsyncIterator[Link]:
    with toxiproxy.running(folder) as url:
        body = {"name": PROXY, "listen": "127.0.0.1:0", "upstream": f"127.0.0.1:{server}"}
        async with JsonFetcher(url, clock=Clock()) as fetcher:
            status, made = await fetcher.ask("POST", "/proxies", body=body)
        assert status == 201, made
        yield Link(url, int(made["listen"].rpartition(":")[2]), server)


@asynccontextmanager
async def _gateway(folder: Path, server: int) -> AsyncIterator[Link]:
    async with api() as slices:
        slices.put(endpoint(PROXY, server))
        arguments = ["--kubeconfig", slices.kubeconfig(folder), "--service", "chat"]
        program = Program("gateway", folder, arguments)
        try:
            port = await program.listening()
            await program.logged("endpoints_applied")
            yield Link(f"http://127.0.0.1:{port}/gateway/toxiproxy", port, server)
        finally:
            program.kill()


@asynccontextmanager
async def _server() -> AsyncIterator[int]:
    """GET /stream: a chunk every 20 ms, without an end. /bytes/N: so many. /close: a body that ends with the
    connection."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(_answer(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            if path == "/stream":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:
                    writer.write(b"5\r\ntick\n\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.02)
            elif path == "/close":
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it")
                await writer.drain()
                break
            else:
                size = int(path.rpartition("/")[2])
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
                await writer.drain()
    writer.close()
