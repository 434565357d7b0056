"""The fault matrix: every way in which an answer can go wrong, pushed and pulled, plain and under TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import anyio
import psutil
import pytest

from chaosrunner.http import (
    ConnectRefused,
    ConnectReset,
    Exchange,
    NoResponse,
    StreamClient,
    StreamCut,
    Timeouts,
    TransportError,
)
from chaosrunner.timeline.clock import Clock
from tests.http.pushing import Kept, nothing_left_open, pulled, pushed
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, Script, chunk, serve

pytestmark = pytest.mark.anyio

Way = Callable[[Exchange], Awaitable[Kept]]
WAYS: list[Way] = [pushed, pulled]
TEN = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\n\r\n"


def says(*writes: bytes, end: Callable[[Conversation], Awaitable[None]] | None = None, pause: float = 0.01) -> Script:
    """Writes, some time apart, and an end."""

    async def script(conversation: Conversation) -> None:
        for data in writes:
            await conversation.write(data)
            await asyncio.sleep(pause)
        if end is not None:
            await end(conversation)

    return script


async def half_close(conversation: Conversation) -> None:
    """Close our direction, and go on reading: the connection is half open. Under TLS there is no close_notify."""
    await asyncio.sleep(0.02)
    conversation.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
    await conversation.reader.read()
    conversation.closed = True


EVERYTHING = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK_SSE + b'3;a=b;c="d"\r\none\r\n' + chunk(b"two")
TRAILERS = b"0;last\r\nx-checksum: 1\r\nx-more: 2\r\n\r\n"

MATRIX: dict[str, tuple[Script, bytes | None, type[TransportError] | None, str | None]] = {
    # name: (script, body, error, kind of a cut)
    "complete": (says(OK_SSE, chunk(b"one"), LAST_CHUNK), b"one", None, None),
    "everything": (says(EVERYTHING + TRAILERS), b"onetwo", None, None),
    "byte by byte": (says(*(bytes([byte]) for byte in EVERYTHING + TRAILERS), pause=0), b"onetwo", None, None),
    "slow": (says(TEN, *[b"x"] * 10, pause=0.03), b"x" * 10, None, None),
    "leftovers": (says(TEN + b"0123456789" + TEN), b"0123456789", None, None),
    "no content": (says(b"HTTP/1.1 204 No Content\r\n\r\n"), b"", None, None),
    "until close": (says(CLOSING, b"some", end=Conversation.fin), b"some", None, None),
    "until half close": (says(CLOSING, b"some", end=half_close), b"some", None, None),
    "reset before headers": (says(end=Conversation.reset), None, ConnectReset, None),
    "closed before headers": (says(end=Conversation.fin), None, NoResponse, None),
    "half closed before headers": (says(end=half_close), None, NoResponse, None),
    "reset amid headers": (says(OK_SSE[:30], end=Conversation.reset), None, ConnectReset, None),
    "closed amid headers": (says(OK_SSE[:30], end=Conversation.fin), None, NoResponse, None),
    "closed after 1xx": (says(b"HTTP/1.1 100 Continue\r\n\r\n", end=Conversation.fin), None, NoResponse, None),
    "garbage": (says(b"\0\1\2\3 what is this\r\n\r\n"), None, NoResponse, None),
    "bad status line": (says(b"HTTP/1.1 OK\r\n\r\n"), None, NoResponse, None),
    "silence": (says(end=lambda _: asyncio.sleep(5)), None, None, "silence"),
    "reset amid a stream": (says(OK_SSE, chunk(b"one"), end=Conversation.reset), b"one", StreamCut, "reset"),
    "closed amid stream": (says(OK_SSE, chunk(b"one"), end=Conversation.fin), b"one", StreamCut, "missing_last_chunk"),
    "closed amid a chunk": (says(OK_SSE, b"9\r\none", end=Conversation.fin), b"one", StreamCut, "missing_last_chunk"),
    "half closed amid a stream": (says(OK_SSE, chunk(b"one"), end=half_close), b"one", StreamCut, "missing_last_chunk"),
    "closed amid a length": (says(TEN, b"one", end=Conversation.fin), b"one", StreamCut, "short_body"),
    "reset until close": (says(CLOSING, b"some", end=Conversation.reset), b"some", StreamCut, "reset"),
    "bad chunk": (says(OK_SSE, chunk(b"one") + b"oops\r\n"), b"one", StreamCut, "bad_chunk"),
    "stall": (says(OK_SSE, chunk(b"one"), end=lambda _: asyncio.sleep(5)), b"one", None, "silence"),
}  # fmt: skip


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MATRIX)
async def test_matrix(name: str, way: Way, tls: bool, certificate: Path, server_tls: ssl.SSLContext) -> None:
    script, body, error, kind = MATRIX[name]
    ca = str(certificate / "cert")
    async with nothing_left_open():
        await asyncio.sleep(0.02)  # for the kernel to begin to stamp
        async with serve(script, server_tls if tls else None) as server:
            timeouts = Timeouts(connect=5, first_byte=None)
            async with StreamClient(server.url, clock=Clock(), timeouts=timeouts, ca=ca, connection="reused") as client:
                exchange = client.stream("POST", "/", content=b"question")
                kept = Kept()
                with anyio.move_on_after(0.3 if kind == "silence" else 5) as scope:
                    kept = await way(exchange)
                assert scope.cancelled_caught == (kind == "silence")
            assert server.seen[0].body == b"question"
    if kind == "silence":
        assert (exchange.status, exchange.ended_properly) == (None if body is None else 200, False)
        return
    assert type(kept.error) is (type(None) if error is None else error)
    assert getattr(kept.error, "kind", None) == kind
    assert (kept.status is None) == (body is None)
    assert kept.body == (body or b"")
    assert exchange.ended_properly is (None if "until" in name and error is None else error is None)
    assert exchange.timings.ended is not None
    if exchange.status is not None:
        assert exchange.exact is True, "the kernel's times, under TLS too"


@pytest.mark.parametrize("way", WAYS)
async def test_refused(way: Way) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with nothing_left_open():
        async with StreamClient(f"http://127.0.0.1:{port}", clock=Clock()) as client:
            kept = await way(client.stream("GET", "/"))
    assert isinstance(kept.error, ConnectRefused)
    assert isinstance(kept.error.__cause__, ConnectionRefusedError)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_the_errors_of_the_system_are_the_causes(tls: bool, server_tls: ssl.SSLContext) -> None:
    async with serve(says(OK_SSE, chunk(b"one"), end=Conversation.reset), server_tls if tls else None) as server:
        async with StreamClient(server.url, clock=Clock(), insecure=True) as client:
            kept = await pushed(client.stream("GET", "/"))
    assert isinstance(kept.error, StreamCut)
    assert isinstance(kept.error.__cause__, ConnectionResetError)


@pytest.mark.parametrize(
    ("connection", "tls"),
    [
        pytest.param(connection, tls, id=f"{connection}-{name}", marks=[] if quick else [pytest.mark.slow])
        for connection, tls, name, quick in [
            ("new", False, "plain", True),
            ("new", True, "tls", False),
            ("reused", False, "plain", False),
            ("reused", True, "tls", True),
            ("fixed", False, "plain", False),
            ("fixed", True, "tls", False),
        ]
    ],
)
async def test_cancelled_at_any_point_it_leaves_no_socket(
    connection: str, tls: bool, certificate: Path, server_tls: ssl.SSLContext
) -> None:
    """Cancelled after 0, 1, 2 ... turns of the loop, until it is through."""
    script = says(b"HTTP/1.1 100 Continue\r\n\r\n", OK_SSE, chunk(b"one"), chunk(b"two"), LAST_CHUNK, pause=0)
    ca = str(certificate / "cert")
    async with serve(script, server_tls if tls else None) as server:
        for way in WAYS:
            turns, through = 0, False
            while not through:
                async with StreamClient(server.url, clock=Clock(), ca=ca, connection=connection) as client:  # type: ignore[arg-type]
                    task = asyncio.ensure_future(way(client.stream("POST", "/", content=b"x" * 100)))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    through = task.done()
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    assert connections_to(server.url) <= (connection != "new"), "one may be kept, if it was through"
                assert connections_to(server.url) == 0
                turns += 1 + turns // 10
            assert task.result().body == b"onetwo"
            assert turns > 5


def connections_to(url: str) -> int:
    """Our ends of connections to a server of this process."""
    port = int(url.rpartition(":")[2])
    return sum(bool(held.raddr) and held.raddr.port == port for held in psutil.Process().net_connections("tcp"))


@pytest.mark.parametrize("way", WAYS)
async def test_a_receiver_that_raises_is_raised_and_leaves_no_socket(way: Way) -> None:
    class Broken(Kept):
        def data(self, at: float, data: bytes, exact: bool) -> bool:
            raise ZeroDivisionError

    class BrokenAtOnce(Kept):
        def headers(self, at: float, status: int, headers: object) -> None:
            raise ZeroDivisionError

    async with nothing_left_open():
        async with serve(says(OK_SSE, chunk(b"one"), LAST_CHUNK)) as server:
            async with StreamClient(server.url, clock=Clock(), connection="reused") as client:
                for receiver in (Broken(), BrokenAtOnce()):
                    with pytest.raises(ZeroDivisionError):
                        await client.stream("GET", "/").push(receiver)


async def test_a_receiver_that_has_enough() -> None:
    class Enough(Kept):
        def data(self, at: float, data: bytes, exact: bool) -> bool:
            super().data(at, data, exact)
            return len(self.reads) < 2

    async with serve(says(OK_SSE, *[chunk(b"one")] * 5, LAST_CHUNK, pause=0.02)) as server:
        async with StreamClient(server.url, clock=Clock(), connection="reused") as client:
            receiver = Enough()
            exchange = client.stream("GET", "/")
            await exchange.push(receiver)
            assert (receiver.body, exchange.ended_properly) == (b"oneone", False)
            assert exchange.timings.ended == receiver.reads[-1][0]
            assert (await pushed(client.stream("GET", "/"))).body == b"one" * 5
        assert server.connections == 2, "what is not read to its end is not used again"


async def test_stopped_at_any_point() -> None:
    """`stop` ends it in the TCP and TLS handshakes, before headers and amid the body, with an error or without."""
    async with nothing_left_open():
        async with AsyncExitStack() as stack:
            silent = await stack.enter_async_context(serve(says(end=lambda _: asyncio.sleep(5))))
            stalled = await stack.enter_async_context(serve(says(OK_SSE, end=lambda _: asyncio.sleep(5))))
            full = stack.enter_context(full_backlog())
            for url in (silent.url, stalled.url, full, silent.url.replace("http", "https")):
                for error in (None, NoResponse("stopped")):
                    async with StreamClient(url, clock=Clock(), insecure=True) as client:
                        exchange = client.stream("GET", "/")
                        asyncio.get_running_loop().call_later(0.1, exchange.stop, error)
                        with anyio.fail_after(1):
                            kept = await pushed(exchange)
                        assert kept.error is error
                        assert exchange.ended_properly is False
                        exchange.stop()  # once more does nothing


@contextmanager
def full_backlog() -> Iterator[str]:
    """An address that answers no SYN."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
