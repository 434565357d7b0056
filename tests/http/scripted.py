"""A raw server on loopback that does to a connection exactly what a test says: no HTTP library in the way."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

OK_SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class Conversation:
    """One request as it came, and the means to answer it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    peer: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    closed: bool = False

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def events(self, *payloads: str, gap: float = 0.0) -> None:
        """Each payload as one SSE event in one HTTP chunk."""
        for payload in payloads:
            await self.write(chunk(f"data: {payload}\n\n".encode()))
            await asyncio.sleep(gap)

    async def reset(self) -> None:
        """Close with RST, once what was written has left."""
        await asyncio.sleep(0.02)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        self.closed = True

    async def fin(self) -> None:
        self.writer.close()
        self.closed = True


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode() + body


Script = Callable[[Conversation], Awaitable[None]]


@dataclass
class ScriptedServer:
    url: str
    seen: list[Conversation] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def serve(
    script: Script, tls: ssl.SSLContext | None = None, port: int = 0, host: str = "127.0.0.1"
) -> AsyncIterator[ScriptedServer]:
    """Answer each request with `script`; keep the connection for the next one unless the script closed it."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.connections += 1
        try:
            while (conversation := await _receive(reader, writer)) is not None:
                server.seen.append(conversation)
                await script(conversation)
                if conversation.closed:
                    break
        except (ConnectionError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            writer.close()
            tasks.discard(task)

    listener = await asyncio.start_server(handle, host, port, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    authority = f"[{host}]" if ":" in host else host
    server = ScriptedServer(f"{'https' if tls else 'http'}://{authority}:{port}")
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close one turn of the loop later


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Conversation | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    host, port = writer.get_extra_info("peername")[:2]
    return Conversation(method, path, headers, body, f"{host}:{port}", reader, writer)
