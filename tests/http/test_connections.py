"""Connections: which one serves an exchange, what a stale one looks like, and requests that do not fit the socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from chaosrunner.http import ConnectReset, NoResponse, StreamClient, Timeouts
from chaosrunner.timeline.clock import Clock
from tests.http.pushing import Kept, nothing_left_open, pushed, stopped_as_it_connects
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, answer, chunk, serve

pytestmark = pytest.mark.anyio
HI = answer("200 OK", b"hi")


async def greet(conversation: Conversation) -> None:
    await conversation.write(HI)


async def greet_slowly(conversation: Conversation) -> None:
    await asyncio.sleep(0.05)
    await conversation.write(HI)


async def all_at_once(client: StreamClient, many: int) -> list[Kept]:
    kept: list[Kept] = []

    async def one() -> None:
        kept.append(await pushed(client.stream("GET", "/")))

    async with anyio.create_task_group() as group:
        for _ in range(many):
            group.start_soon(one)
    return kept


async def test_the_connection_that_became_idle_last_is_taken_first() -> None:
    async with serve(greet_slowly) as server, StreamClient(server.url, clock=Clock(), connection="reused") as client:
        assert [one.body for one in await all_at_once(client, 5)] == [b"hi"] * 5
        assert server.connections == 5
        peers = []
        for _ in range(3):
            exchange = client.stream("GET", "/")
            await pushed(exchange)
            assert exchange.reused
            peers.append(exchange.connection)
        assert len(set(peers)) == 1
        await all_at_once(client, 5)
        assert server.connections == 5


@pytest.mark.parametrize(("connection", "connections"), [("new", 6), ("reused", 1), ("fixed", 2)])
async def test_lanes(connection: str, connections: int) -> None:
    async with nothing_left_open():
        async with serve(greet) as server:
            async with StreamClient(server.url, clock=Clock(), connection=connection) as client:  # type: ignore[arg-type]
                async with client.lane() as one, client.lane() as two:
                    seen = []
                    for lane in (one, two, one, two, one, two):
                        exchange = lane.stream("GET", "/")
                        await pushed(exchange)
                        seen.append(exchange.connection)
            assert server.connections == connections
        assert (seen[0] == seen[2] == seen[4]) == (connection != "new")
        assert (seen[0] == seen[1]) == (connection == "reused")


def slow_to_close(answers: list[bytes], close: threading.Event) -> int:
    """A server in a thread: one answer a connection, which it closes when told to, however busy our loop is."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listener:
            for data in answers:
                with listener.accept()[0] as connection:
                    connection.recv(65536)
                    connection.sendall(data)
                    close.wait(5)
                    close.clear()

    threading.Thread(target=run, daemon=True).start()
    return int(listener.getsockname()[1])


@pytest.mark.parametrize("leftover", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
async def test_an_idle_connection_that_can_be_read_is_not_used(leftover: bytes) -> None:
    """The loop has not seen the end yet: only a look at the socket tells."""
    close = threading.Event()
    port = slow_to_close([HI + leftover, HI], close)
    async with StreamClient(f"http://127.0.0.1:{port}", clock=Clock(), connection="reused") as client:
        assert (await pushed(client.stream("GET", "/"))).body == b"hi"
        close.set()
        time.sleep(0.1)  # noqa: ASYNC251 - the loop is not to see it
        exchange = client.stream("GET", "/")
        assert (await pushed(exchange)).body == b"hi"
        assert exchange.reused is False
        close.set()


@pytest.mark.parametrize(
    ("end", "error"), [(Conversation.reset, ConnectReset), (Conversation.fin, NoResponse)], ids=["reset", "closed"]
)
@pytest.mark.parametrize("partly", [False, True])
async def test_a_stale_connection_is_told_from_a_real_failure(end: object, error: type, partly: bool) -> None:
    """Stale: kept, and ended before any byte of an answer. A new connection, or one with a byte, is none."""
    served = 0

    async def script(conversation: Conversation) -> None:
        nonlocal served
        served += 1
        if served == 1:
            await greet(conversation)
            return
        if partly:
            await conversation.write(b"HTTP/1.1 2")
        await end(conversation)  # type: ignore[operator]

    async with serve(script) as server, StreamClient(server.url, clock=Clock(), connection="reused") as client:
        assert (await pushed(client.stream("GET", "/"))).error is None
        kept, fresh = client.stream("GET", "/"), client.stream("GET", "/")
        first, second = (await pushed(kept)).error, (await pushed(fresh)).error
    assert (kept.reused, fresh.reused) == (True, False)
    assert first is not None
    assert second is not None
    assert (type(first), type(second)) == (error, error)
    assert (first.stale, second.stale) == (not partly, False)


async def test_a_silent_kept_connection_is_not_stale() -> None:
    served = 0

    async def script(conversation: Conversation) -> None:
        nonlocal served
        served += 1
        await (greet(conversation) if served == 1 else asyncio.sleep(5))

    timeouts = Timeouts(first_byte=0.1)
    async with serve(script) as server:
        async with StreamClient(server.url, clock=Clock(), connection="reused", timeouts=timeouts) as client:
            await pushed(client.stream("GET", "/"))
            with pytest.raises(Exception, match=r"no headers within 0\.1 s") as caught:
                async with client.stream("GET", "/"):
                    pass
    assert caught.value.stale is False  # type: ignore[attr-defined]


LARGE = bytes(range(256)) * (32 << 10)
"""8 MiB: more than a socket takes at once."""


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_request_larger_than_the_socket_takes(tls: bool, certificate: Path, server_tls: ssl.SSLContext) -> None:
    async def script(conversation: Conversation) -> None:
        assert conversation.body == LARGE
        await greet(conversation)

    async with serve(script, server_tls if tls else None) as server:
        ca = str(certificate / "cert")
        async with StreamClient(server.url, clock=Clock(), ca=ca, connection="reused") as client:
            for _ in range(2):
                assert (await pushed(client.stream("POST", "/", content=LARGE))).body == b"hi"
        assert server.connections == 1


@pytest.mark.parametrize("ending", ["stays", "closes", "resets"])
async def test_an_answer_before_the_request_is_sent(ending: str) -> None:
    """A server that refuses a large body does not read it. What it says counts; the connection is of no more use."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer("413 Content Too Large", b"no"))
        await writer.drain()
        if ending == "stays":
            await asyncio.sleep(0.3)
        elif ending == "resets":
            await asyncio.sleep(0.1)
        writer.close()

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with listener, nothing_left_open():
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with StreamClient(url, clock=Clock(), connection="reused") as client:
            exchange = client.stream("POST", "/", content=LARGE)
            kept = await pushed(exchange)
            assert (kept.status, kept.body, exchange.ended_properly) == (413, b"no", True)
            again = client.stream("POST", "/", content=LARGE)
            assert (await pushed(again)).status == 413
            assert again.reused is False


async def test_a_peer_that_goes_while_the_request_is_sent() -> None:
    async def vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    listener = await asyncio.start_server(vanish, "127.0.0.1", 0)
    async with listener, nothing_left_open():
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with StreamClient(url, clock=Clock()) as client:
            kept = await pushed(client.stream("POST", "/", content=LARGE))
    assert isinstance(kept.error, ConnectReset)


async def test_a_held_connection_serves_again() -> None:
    """One that had been told to hold, since nobody took what came, reads on in its next use."""

    async def script(conversation: Conversation) -> None:
        await conversation.write(answer("200 OK", bytes(4 << 20)))

    async with serve(script) as server, StreamClient(server.url, clock=Clock(), connection="reused") as client:
        for _ in range(2):
            async with client.stream("GET", "/") as response:
                await anyio.sleep(0.2)
                assert sum([len(read.data) async for read in response]) == 4 << 20
        assert server.connections == 1


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("sound", [True, False])
async def test_an_answer_that_is_compressed_although_nobody_asked(coding: str, sound: bool) -> None:
    packer = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    packed = packer.compress(b"data: a\n\n" * 100) + packer.flush(zlib.Z_SYNC_FLUSH)

    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE.replace(b"\r\n\r\n", f"\r\nContent-Encoding: {coding}\r\n\r\n".encode()))
        await conversation.write(chunk(packed if sound else b"not at all packed"))
        await conversation.write(LAST_CHUNK)

    async with serve(script) as server, StreamClient(server.url, clock=Clock()) as client:
        kept = await pushed(client.stream("GET", "/"))
    if sound:
        assert kept.body == b"data: a\n\n" * 100
    else:
        assert str(kept.error).startswith("content coding: ")


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_peer_that_hangs_up_at_once(scheme: str) -> None:
    """Before, while or after we look at the new connection, and write to it: always a reset, and nothing else."""
    listener = socket.create_server(("127.0.0.1", 0))

    def hang_up() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

    thread = threading.Thread(target=hang_up, daemon=True)
    thread.start()
    url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    async with nothing_left_open(), StreamClient(url, clock=Clock(), insecure=True) as client:
        errors = [(await pushed(client.stream("POST", "/", content=b"x"))).error for _ in range(200)]
    assert {type(error) for error in errors} == {ConnectReset}
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


@pytest.mark.parametrize("connection", ["new", "reused"])
async def test_stopped_as_the_connection_comes(connection: str) -> None:
    async with nothing_left_open(), serve(greet) as server:
        async with StreamClient(server.url, clock=Clock(), connection=connection) as client:  # type: ignore[arg-type]
            exchange = client.stream("GET", "/")
            with anyio.fail_after(3):
                await stopped_as_it_connects(exchange)
            assert (exchange.timings.connected, exchange.timings.requested) == (None, None)
            await anyio.sleep(0.05)
            assert server.seen == []
            assert (await pushed(client.stream("GET", "/"))).body == b"hi"
            assert server.connections == (1 if connection == "reused" else 2)


async def test_stopped_as_a_step_of_the_tls_handshake_comes(certificate: Path) -> None:
    """The handshake is not waited for any more, although the stop met a task that was not waiting."""
    silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with StreamClient(f"https://127.0.0.1:{port}", clock=Clock(), insecure=True) as client:
        with anyio.fail_after(2):
            await stopped_as_it_connects(client.stream("GET", "/"))
    silent.close()
