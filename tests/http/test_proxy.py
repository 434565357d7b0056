"""Through an HTTP proxy: plain requests name their target, TLS and HTTP/2 go through a tunnel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chaosrunner.errors import UserError
from chaosrunner.http import ConnectReset, ConnectTimeout, LocalFault, NoResponse, StreamClient, Timeouts, TlsError
from chaosrunner.timeline.clock import Clock
from tests.http.pushing import nothing_left_open, pushed
from tests.http.scripted import Conversation, answer, serve
from tests.http.test_http2 import client_of, serve2, whole

pytestmark = pytest.mark.anyio


@dataclass
class Proxy:
    url: str = ""
    heads: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def proxy(
    says: bytes = b"HTTP/1.1 200 Connection established\r\nVia: me\r\n\r\n", end: str = ""
) -> AsyncIterator[Proxy]:
    """Answers CONNECT with `says`, and then carries bytes where that is a success."""
    seen = Proxy()
    tasks: list[asyncio.Task[None]] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.heads.append(head)
        if end == "silent":
            await reader.read()
        elif end == "reset":
            await Conversation("", "", {}, b"", "", reader, writer).reset()
        else:
            for byte in says:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
        if not says.startswith(b"HTTP/1.1 200") or end:
            writer.close()
            return
        host, _, port = head.split(b" ")[1].decode().rpartition(":")
        there, out = await asyncio.open_connection(host.strip("[]"), int(port))
        tasks.extend(asyncio.ensure_future(carry(*ends)) for ends in ((reader, out), (there, writer)))

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    seen.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield seen
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def greet(conversation: Conversation) -> None:
    await conversation.write(answer("200 OK", b"hi"))


async def test_a_plain_request_names_its_target() -> None:
    async with nothing_left_open(), serve(greet) as forward:
        address = forward.url.replace("http://", "http://me:secret@")
        async with StreamClient("http://chat.example:8000/base", clock=Clock(), proxy=address) as client:
            exchange = client.stream("GET", "/v1/models")
            assert (await pushed(exchange)).body == b"hi"
        [seen] = forward.seen
    assert seen.path == "http://chat.example:8000/base/v1/models"
    assert seen.headers["host"] == "chat.example:8000"
    assert seen.headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"
    assert exchange.exact is True


@pytest.mark.parametrize("connection", ["new", "reused"])
async def test_tls_goes_through_a_tunnel(connection: str, certificate: Path, server_tls: object) -> None:
    async with nothing_left_open(), serve(greet, server_tls) as server, proxy() as between:  # type: ignore[arg-type]
        async with StreamClient(
            server.url,
            clock=Clock(),
            ca=str(certificate / "cert"),
            proxy=between.url.replace("://", "://me:secret@"),
            connection=connection,  # type: ignore[arg-type]
        ) as client:
            for _ in range(2):
                exchange = client.stream("GET", "/v1/models")
                assert (await pushed(exchange)).body == b"hi"
    there = server.url.removeprefix("https://").encode()
    assert len(between.heads) == (2 if connection == "new" else 1)
    assert between.heads[0].startswith(b"CONNECT %s HTTP/1.1\r\nhost: %s\r\n" % (there, there))
    assert b"proxy-authorization: Basic bWU6c2VjcmV0\r\n" in between.heads[0]
    assert (server.seen[0].path, "proxy-authorization" in server.seen[0].headers) == ("/v1/models", False)
    assert exchange.remote == between.url.removeprefix("http://")
    assert exchange.exact is True


async def test_http2_goes_through_a_tunnel() -> None:
    async with nothing_left_open(), serve2(whole) as server, proxy() as between:
        async with StreamClient(server.url, clock=Clock(), http2=True, proxy=between.url) as client:
            assert (await pushed(client.stream("GET", "/"))).body == b"onetwo"
        async with client_of(server) as client:
            assert (await pushed(client.stream("GET", "/"))).body == b"onetwo"
    assert len(between.heads) == 1


@pytest.mark.parametrize(
    ("says", "end", "error", "text"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n", "", NoResponse, "the proxy answers CONNECT"),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "", LocalFault, "the proxy asks for credentials"),
        (b"SSH-2.0-OpenSSH\r\n", "", NoResponse, "no HTTP/1 status line"),
        (b"", "closed", NoResponse, "the proxy closed the connection"),
        (b"HTTP/1.1 200", "closed", NoResponse, "the proxy closed the connection"),
        (b"", "reset", ConnectReset, "ECONNRESET"),
        (b"", "silent", ConnectTimeout, "no connection within 0.2 s"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "closed", TlsError, "closed by the peer in the TLS handshake"),
    ],
)  # fmt: skip
async def test_a_tunnel_that_does_not_come_about(says: bytes, end: str, error: type, text: str) -> None:
    async with nothing_left_open(), proxy(says, end) as between:
        timeouts = Timeouts(connect=0.2)
        async with StreamClient(
            "https://chat.example", clock=Clock(), proxy=between.url, insecure=True, timeouts=timeouts
        ) as client:
            exchange = client.stream("GET", "/")
            kept = await pushed(exchange)
    assert type(kept.error) is error
    assert str(kept.error).startswith(text)
    assert (exchange.remote, exchange.reused) == (between.url.removeprefix("http://"), False)


@pytest.mark.parametrize("address", ["https://proxy.example", "socks5://proxy.example", "proxy.example:3128"])
def test_a_proxy_of_no_use(address: str) -> None:
    with pytest.raises(UserError):
        StreamClient("http://chat.example", clock=Clock(), proxy=address)
