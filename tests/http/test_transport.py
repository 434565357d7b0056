"""Our connections beneath httpx: its own errors, with the system's as their cause, and its own comfort."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from chaosrunner.http import WireTransport
from chaosrunner.http.target import tls_context
from chaosrunner.timeline.clock import Clock
from tests.http.pushing import nothing_left_open
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, Script, answer, chunk, serve
from tests.http.test_faults import full_backlog

pytestmark = pytest.mark.anyio


def client(**options: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=WireTransport(Clock()), trust_env=False, **options)  # type: ignore[arg-type]


async def silence(_: Conversation) -> None:
    await asyncio.sleep(5)


async def reset_in_mid_stream(conversation: Conversation) -> None:
    await conversation.write(OK_SSE + chunk(b"one"))
    await conversation.reset()


async def close_in_mid_stream(conversation: Conversation) -> None:
    await conversation.write(OK_SSE + chunk(b"one"))
    await conversation.fin()


async def stall(conversation: Conversation) -> None:
    await conversation.write(OK_SSE + chunk(b"one"))
    await asyncio.sleep(5)


async def garbage(conversation: Conversation) -> None:
    await conversation.write(b"220 mail.example ESMTP\r\n")


@pytest.mark.parametrize(
    ("script", "error", "cause"),
    [
        (Conversation.reset, httpx.ReadError, ConnectionResetError),
        (Conversation.fin, httpx.RemoteProtocolError, None),
        (garbage, httpx.RemoteProtocolError, None),
        (silence, httpx.ReadTimeout, None),
        (stall, httpx.ReadTimeout, None),
        (reset_in_mid_stream, httpx.ReadError, ConnectionResetError),
        (close_in_mid_stream, httpx.RemoteProtocolError, None),
    ],
)
async def test_errors_are_those_of_httpx(script: Script, error: type[Exception], cause: type[OSError] | None) -> None:
    async with nothing_left_open(), serve(script) as server, client(timeout=0.3) as asking:
        with pytest.raises(error) as caught:
            await asking.get(server.url)
        assert isinstance(caught.value, httpx.TransportError)
        assert caught.value.request.url == server.url
    if cause is not None:
        assert isinstance(caught.value.__cause__, cause)


async def test_errors_of_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with nothing_left_open(), client(timeout=0.3) as asking:
        with pytest.raises(httpx.ConnectError) as caught:
            await asking.get(f"http://127.0.0.1:{port}")
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)
        with full_backlog() as url, pytest.raises(httpx.ConnectTimeout):
            await asking.get(url)
        with pytest.raises(httpx.ConnectError, match="cannot resolve"):
            await asking.get("http://no-such-host.invalid")


async def test_an_untrusted_certificate_and_a_trusted_one(certificate: Path, server_tls: ssl.SSLContext) -> None:
    async def greet(conversation: Conversation) -> None:
        await conversation.write(answer("200 OK", b"hi"))

    async with serve(greet, server_tls) as server:
        async with client() as asking:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                await asking.get(server.url)
            assert isinstance(caught.value.__cause__, ssl.SSLError)
        transport = WireTransport(Clock(), tls=tls_context(str(certificate / "cert"), insecure=False))
        async with httpx.AsyncClient(transport=transport, trust_env=False) as asking:
            assert (await asking.get(server.url)).text == "hi"


async def test_what_httpx_offers() -> None:
    """Streaming, redirects, compression, forms, bodies of unknown length, kept connections; times from us."""

    async def script(conversation: Conversation) -> None:
        if conversation.path == "/old":
            await conversation.write(answer("302 Found", b"", "location: /new?a=1"))
        elif conversation.path == "/packed":
            await conversation.write(answer("200 OK", gzip.compress(b"plain"), "content-encoding: gzip"))
        elif conversation.method == "HEAD":
            await conversation.write(answer("200 OK", b"hi").removesuffix(b"hi"))
        elif conversation.path == "/stream":
            await conversation.write(OK_SSE)
            await conversation.events("a", "b", gap=0.02)
            await conversation.write(LAST_CHUNK)
        else:
            await conversation.write(answer("200 OK", conversation.body or conversation.path.encode()))

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async with nothing_left_open(), serve(script) as server, client(base_url=server.url) as asking:
        assert (await asking.get("/old", follow_redirects=True)).text == "/new?a=1"
        assert (await asking.get("/packed")).text == "plain"
        assert (await asking.post("/", data={"a": "b c"})).text == "a=b+c"
        assert (await asking.post("/", content=parts())).text == "onetwo"
        head = await asking.head("/x")
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "2")
        async with asking.stream("GET", "/stream") as response:
            assert [line async for line in response.aiter_lines()] == ["data: a", "", "data: b", ""]
        assert response.extensions["exchange"].exact is True
        assert server.connections == 1
