"""HTTP/2 against a server that does frame by frame what a test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest

from chaosrunner.http import (
    ConnectRefused,
    ConnectReset,
    NoResponse,
    StreamClient,
    StreamCut,
    TlsError,
    TransportError,
)
from chaosrunner.timeline.clock import Clock
from tests.http.pushing import Kept, nothing_left_open, pulled, pushed, stopped_as_it_connects
from tests.http.scripted import Conversation, serve

pytestmark = pytest.mark.anyio


@dataclass
class Http2Server:
    url: str = ""
    script: Callable[[Asked], Awaitable[None]] | None = None
    most_streams: int = 100
    connections: int = 0
    asked: list[Asked] = field(default_factory=list)
    resets: list[int] = field(default_factory=list)
    """Streams that the client reset."""


@dataclass
class Asked:
    """One request, and the means to answer it."""

    server: Http2Server
    h2: h2.connection.H2Connection
    writer: asyncio.StreamWriter
    stream: int
    headers: dict[str, str]
    body: bytes = b""

    async def headers_back(self, status: int = 200, *, end: bool = False) -> None:
        self.h2.send_headers(self.stream, [(":status", str(status)), ("x-served-by", "chat-7")], end_stream=end)
        await self.flush()

    async def data(self, data: bytes, *, end: bool = False) -> None:
        self.h2.send_data(self.stream, data, end_stream=end)
        await self.flush()

    async def reset(self, code: h2.errors.ErrorCodes) -> None:
        self.h2.reset_stream(self.stream, code)
        await self.flush()

    async def goaway(self, last: int, code: int = 0) -> None:
        """As a draining gateway sends it. By hand, since h2 would send nothing more after it."""
        self.writer.write(b"\0\0\x08\x07\0\0\0\0\0" + last.to_bytes(4, "big") + code.to_bytes(4, "big"))
        await self.writer.drain()

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()


@asynccontextmanager
async def serve2(
    script: Callable[[Asked], Awaitable[None]], tls: ssl.SSLContext | None = None, **options: int
) -> AsyncIterator[Http2Server]:
    server = Http2Server(**options)  # type: ignore[arg-type]
    tasks: set[asyncio.Task[None]] = set()

    def start(coroutine: Awaitable[None]) -> None:
        task = asyncio.ensure_future(coroutine)
        tasks.add(task)  # type: ignore[arg-type]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.connections += 1
        connection = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=False,
                header_encoding="utf-8",
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        most = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: server.most_streams}
        connection.local_settings = h2.settings.Settings(client=False, initial_values=most)
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        open_ones: dict[int, Asked] = {}
        try:
            while data := await reader.read(65536):
                for event in connection.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        asked = Asked(server, connection, writer, event.stream_id, dict(event.headers))  # type: ignore[arg-type]
                        open_ones[event.stream_id] = asked
                    elif isinstance(event, h2.events.DataReceived):
                        open_ones[event.stream_id].body += event.data
                        connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    elif isinstance(event, h2.events.StreamEnded):
                        server.asked.append(open_ones[event.stream_id])
                        start(script(open_ones[event.stream_id]))
                    elif isinstance(event, h2.events.StreamReset):
                        server.resets.append(event.stream_id)
                writer.write(connection.data_to_send())
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield server
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)


def client_of(server: Http2Server, connection: str = "reused", ca: Path | None = None) -> StreamClient:
    return StreamClient(server.url, clock=Clock(), connection=connection, http2=True, ca=ca and str(ca))  # type: ignore[arg-type]


async def whole(asked: Asked) -> None:
    await asked.headers_back()
    for part in (b"one", b"two"):
        await asyncio.sleep(0.02)
        await asked.data(part)
    await asked.data(b"", end=True)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("way", [pushed, pulled])
async def test_a_whole_answer(way: Callable[..., Awaitable[object]], tls: bool, certificate: Path) -> None:
    async with nothing_left_open(), serve2(whole, _server_tls(certificate) if tls else None) as server:
        async with client_of(server, ca=certificate / "cert") as client:
            exchanges = [client.stream("POST", "/x?y", content=b"question", headers={"X-A": "b"}) for _ in range(2)]
            for exchange in exchanges:
                kept = await way(exchange)
                assert kept.body == b"onetwo"  # type: ignore[attr-defined]
                assert [data for _, data, _ in kept.reads] == [b"one", b"two"]  # type: ignore[attr-defined]
                assert (exchange.status, exchange.ended_properly, exchange.exact) == (200, True, True)
                assert exchange.headers["X-Served-By"] == "chat-7"
        assert server.connections == 1
    assert [exchange.reused for exchange in exchanges] == [False, True]
    asked = server.asked[0]
    assert (asked.headers[":method"], asked.headers[":path"], asked.body) == ("POST", "/x?y", b"question")
    assert (asked.headers["x-a"], asked.headers["content-length"]) == ("b", "8")
    assert "connection" not in asked.headers


def _server_tls(certificate: Path, *protocols: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert", certificate / "key")
    context.set_alpn_protocols(list(protocols or ("h2",)))
    return context


async def then(asked: Asked, end: Callable[[Asked], Awaitable[None]]) -> None:
    await asked.headers_back()
    await asked.data(b"one")
    await asyncio.sleep(0.02)
    await end(asked)


async def goaway_and_go_on(asked: Asked) -> None:
    await asked.goaway(asked.stream)
    await asyncio.sleep(0.02)
    await asked.data(b"two")
    await asked.data(b"", end=True)


async def goaway_and_close(asked: Asked) -> None:
    await asked.goaway(asked.stream, h2.errors.ErrorCodes.INTERNAL_ERROR)
    asked.writer.close()


async def close(asked: Asked) -> None:
    asked.writer.close()


async def hang_up(asked: Asked) -> None:
    conversation = Conversation("", "", {}, b"", "", asyncio.StreamReader(), asked.writer)
    await conversation.reset()


async def break_off(asked: Asked) -> None:
    await asked.reset(h2.errors.ErrorCodes.INTERNAL_ERROR)


async def garbage(asked: Asked) -> None:
    asked.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize(
    ("end", "body", "kind", "text"),
    [
        (lambda asked: asked.data(b"", end=True), b"one", None, ""),
        (goaway_and_go_on, b"onetwo", None, ""),
        (goaway_and_close, b"one", "missing_last_chunk", "peer closed"),
        (break_off, b"one", "stream_reset", "RST_STREAM INTERNAL_ERROR"),
        (lambda asked: asked.goaway(0), b"one", "stream_reset", "GOAWAY NO_ERROR"),
        (close, b"one", "missing_last_chunk", "peer closed"),
        (hang_up, b"one", "reset", "ECONNRESET"),
        (garbage, b"one", "bad_chunk", "no HTTP/2: a frame of 4740180 bytes"),
    ],
    ids=["END_STREAM", "GOAWAY", "GOAWAY+close", "RST_STREAM", "GOAWAY below", "closed", "reset", "garbage"],
)  # fmt: skip
@pytest.mark.parametrize("connection", ["new", "reused"])
async def test_how_a_stream_ends(
    end: Callable[[Asked], Awaitable[None]], body: bytes, kind: str | None, text: str, connection: str
) -> None:
    async with nothing_left_open(), serve2(lambda asked: then(asked, end)) as server:
        async with client_of(server, connection) as client:
            exchange = client.stream("GET", "/")
            kept = await pushed(exchange)
    assert kept.body == body
    if kind is None:
        assert (kept.error, exchange.ended_properly) == (None, True)
        return
    assert isinstance(kept.error, StreamCut)
    assert (kept.error.kind, kept.error.stale, exchange.ended_properly) == (kind, False, False)
    assert str(kept.error).startswith(text)


async def refuse(asked: Asked) -> None:
    await asked.reset(h2.errors.ErrorCodes.REFUSED_STREAM)


@pytest.mark.parametrize(
    ("end", "error", "stale"),
    [
        (lambda asked: asked.goaway(0), NoResponse, True),
        (refuse, NoResponse, True),
        (break_off, NoResponse, False),
        (close, NoResponse, True),
        (hang_up, ConnectReset, True),
        (garbage, NoResponse, False),
    ],
    ids=["GOAWAY", "REFUSED_STREAM", "RST_STREAM", "closed", "reset", "garbage"],
)
async def test_no_answer(end: Callable[[Asked], Awaitable[None]], error: type[TransportError], stale: bool) -> None:
    """Stale, on a kept connection: what the peer may not have looked at."""

    async def script(asked: Asked) -> None:
        await (whole(asked) if len(server.asked) == 1 else end(asked))

    async with nothing_left_open(), serve2(script) as server:
        async with client_of(server) as client:
            await pushed(client.stream("GET", "/"))
            exchange = client.stream("GET", "/")
            kept = await pushed(exchange)
            assert exchange.reused is True
    assert type(kept.error) is error
    assert kept.error.stale == stale


async def test_streams_share_a_connection_up_to_the_peers_limit_and_none_starts_on_a_draining_one() -> None:
    going = anyio.Event()

    async def script(asked: Asked) -> None:
        await asked.headers_back()
        await going.wait()
        await asked.data(b"x", end=True)

    async with nothing_left_open(), serve2(script, most_streams=4) as server:
        async with client_of(server) as client, anyio.create_task_group() as group:
            exchanges = [client.stream("GET", "/") for _ in range(6)]
            group.start_soon(pushed, exchanges[0])
            await anyio.sleep(0.1)
            for exchange in exchanges[1:5]:
                group.start_soon(pushed, exchange)
            await anyio.sleep(0.1)
            assert server.connections == 2
            await server.asked[0].goaway(server.asked[3].stream)
            await anyio.sleep(0.05)
            group.start_soon(pushed, exchanges[5])
            await anyio.sleep(0.05)
            going.set()
        assert server.connections == 2
    assert [exchange.ended_properly for exchange in exchanges] == [True] * 6
    assert [exchange.connection == exchanges[0].connection for exchange in exchanges] == [True] * 4 + [False] * 2


async def test_who_waits_for_a_connection_fails_with_it() -> None:
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    async with nothing_left_open():
        async with StreamClient(f"http://localhost:{port}", clock=Clock(), http2=True, connection="reused") as client:
            exchanges = [client.stream("GET", "/") for _ in range(3)]
            kept = await asyncio.gather(*map(pushed, exchanges))
    assert [type(one.error) for one in kept] == [ConnectRefused] * 3


async def test_leaving_in_mid_stream_resets_the_stream_and_keeps_the_connection() -> None:
    async def endless(asked: Asked) -> None:
        await asked.headers_back()
        if len(server.asked) > 1:
            await asked.data(b"", end=True)
            return
        with anyio.CancelScope():
            while asked.stream not in server.resets:
                await asked.data(b"x")
                await asyncio.sleep(0.01)

    async with nothing_left_open(), serve2(endless) as server, client_of(server) as client:
        async with client.stream("GET", "/") as response:
            await anext(response)
        assert (await pushed(client.stream("GET", "/"))).error is None
        await anyio.sleep(0.05)
        assert server.resets == [1]
        assert server.connections == 1


async def test_bodies_larger_than_the_windows_in_both_directions() -> None:
    large = bytes(range(256)) * (4 << 10)

    async def echo(asked: Asked) -> None:
        await asked.headers_back()
        left = memoryview(asked.body)
        while left:
            room = min(asked.h2.local_flow_control_window(asked.stream), asked.h2.max_outbound_frame_size)
            if room:
                await asked.data(bytes(left[:room]), end=len(left) <= room)
                left = left[room:]
            await asyncio.sleep(0)

    async with serve2(echo) as server, client_of(server) as client:
        kept = await pushed(client.stream("POST", "/", content=large))
        assert kept.body == large
        async with client.stream("POST", "/", content=large) as response:
            await anyio.sleep(0.3)
            assert b"".join([read.data async for read in response]) == large


async def test_a_server_without_http2(certificate: Path) -> None:
    async def unasked(_: Conversation) -> None:
        raise AssertionError("nothing is sent")

    async with nothing_left_open(), serve(unasked, _server_tls(certificate, "http/1.1")) as server:
        async with StreamClient(server.url, clock=Clock(), insecure=True, http2=True) as client:
            kept = await pushed(client.stream("GET", "/"))
    assert isinstance(kept.error, TlsError)


@pytest.mark.parametrize("status", ["abc", "", "-5", "099", "99999", "\u0662\u0660\u0660", "101"])
async def test_a_status_that_is_none(status: str) -> None:
    async def script(asked: Asked) -> None:
        asked.h2.send_headers(asked.stream, [(":status", status)])
        asked.h2.send_data(asked.stream, b"x", end_stream=True)
        await asked.flush()

    async with nothing_left_open(), serve2(script) as server, client_of(server) as client:
        with anyio.fail_after(3):
            kept = await pushed(client.stream("GET", "/"))
    assert isinstance(kept.error, NoResponse)
    assert (kept.status, kept.body) == (None, b"")


async def test_stop_ends_the_exchange_whatever_its_stream_is_in() -> None:
    """Here h2 has closed it already, and refuses to reset it."""
    async with nothing_left_open(), serve2(lambda asked: asked.headers_back()) as server, client_of(server) as client:
        exchange = client.stream("GET", "/")
        async with anyio.create_task_group() as group:
            group.start_soon(pushed, exchange)
            await anyio.sleep(0.1)
            [session] = client._pool._sessions  # type: ignore[union-attr]
            session._h2.reset_stream(1)
            exchange.stop()
    assert exchange.over


async def test_connections_that_serve_one_exchange_are_not_remembered() -> None:
    async with nothing_left_open(), serve2(whole) as server, client_of(server, "new") as client:
        for _ in range(3):
            await pushed(client.stream("GET", "/"))
        assert client._pool._sessions == []  # type: ignore[union-attr]
        assert server.connections == 3


@pytest.mark.parametrize("connection", ["new", "reused"])
async def test_stopped_as_the_connection_comes(connection: str) -> None:
    async with nothing_left_open(), serve2(whole) as server:
        async with client_of(server, connection) as client:
            exchange = client.stream("GET", "/")
            with anyio.fail_after(3):
                await stopped_as_it_connects(exchange)
            assert (exchange.timings.connected, exchange.timings.requested) == (None, None)
            await anyio.sleep(0.05)
            assert server.asked == []
            another = client.stream("GET", "/")
            assert (await pushed(another)).body == b"onetwo"
            assert another.reused == (connection == "reused")


async def test_who_waited_for_a_connection_whose_opener_was_stopped_is_its_first() -> None:
    async with nothing_left_open(), serve2(whole) as server, client_of(server) as client:
        waiting = client.stream("GET", "/")
        async with anyio.create_task_group() as group:
            await stopped_as_it_connects(client.stream("GET", "/"), lambda: group.start_soon(pushed, waiting))
        assert server.connections == 1
        assert (waiting.reused, waiting.timings.connected) == (False, waiting.opened)


def short(asked: Asked) -> None:
    asked.h2.send_headers(asked.stream, [(":status", "200"), ("content-length", "9")])
    asked.h2.send_data(asked.stream, b"x" * 4, end_stream=True, pad_length=3)


def long(asked: Asked) -> None:
    asked.h2.send_headers(asked.stream, [(":status", "200"), ("content-length", "3")])
    asked.h2.send_data(asked.stream, b"x" * 4)
    asked.h2.send_data(asked.stream, b"x" * 4)


def no_status(asked: Asked) -> None:
    asked.h2.send_headers(asked.stream, [("x-served-by", "chat-7")])
    asked.h2.send_data(asked.stream, b"x")


def capitals(asked: Asked) -> None:
    asked.h2.send_headers(asked.stream, [(":status", "200"), ("X-Served-By", "chat-7")], end_stream=True)


def bad_trailers(asked: Asked) -> None:
    asked.h2.send_headers(asked.stream, [(":status", "200")])
    asked.h2.send_data(asked.stream, b"x" * 4)
    asked.h2.send_headers(asked.stream, [("connection", "close")], end_stream=True)


@pytest.mark.parametrize(
    ("malformed", "kind", "body"),
    [
        (short, "short_body", b"xxxx"),
        (long, "bad_chunk", b""),
        (no_status, None, b""),
        (capitals, None, b""),
        (bad_trailers, "bad_chunk", b"xxxx"),
    ],
)
async def test_a_malformed_answer_breaks_no_other_stream(
    malformed: Callable[[Asked], None], kind: str | None, body: bytes
) -> None:
    broken = anyio.Event()

    async def script(asked: Asked) -> None:
        if asked.headers[":path"] == "/bad":
            malformed(asked)
            await asked.flush()
            return
        await asked.headers_back()
        await broken.wait()
        await asked.data(b"good", end=True)

    async with nothing_left_open(), serve2(script) as server, client_of(server) as client:
        async with anyio.create_task_group() as group:
            good: list[Kept] = []

            async def go_on() -> None:
                good.append(await pushed(client.stream("GET", "/")))

            group.start_soon(go_on)
            await anyio.sleep(0.05)
            with anyio.fail_after(3):
                bad = await pushed(client.stream("GET", "/bad"))
            await anyio.sleep(0.05)
            broken.set()
        assert (good[0].body, good[0].error) == (b"good", None)
        assert server.connections == 1
    assert bad.body == body
    if kind is None:
        assert isinstance(bad.error, NoResponse)
    else:
        assert isinstance(bad.error, StreamCut)
        assert bad.error.kind == kind


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("ended", [True, False])
async def test_what_came_before_a_violation_counts(ended: bool, at_once: bool) -> None:
    async def script(asked: Asked) -> None:
        asked.h2.send_headers(asked.stream, [(":status", "200")])
        asked.h2.send_data(asked.stream, b"data", end_stream=ended)
        asked.writer.write(asked.h2.data_to_send())
        if not at_once:
            await asyncio.sleep(0.05)
        asked.writer.write(b"\0\0\x05\x08\0\0\0\0\0abcde")  # a WINDOW_UPDATE has four bytes

    async with nothing_left_open(), serve2(script) as server, client_of(server) as client:
        exchange = client.stream("GET", "/")
        with anyio.fail_after(3):
            kept = await pushed(exchange)
        await anyio.sleep(0.1)
    assert (kept.status, kept.body, exchange.ended_properly) == (200, b"data", ended)
    assert ended or (isinstance(kept.error, StreamCut) and kept.error.kind == "bad_chunk")


def data_frame(stream: int, data: bytes) -> bytes:
    """By hand, since h2 sends none before headers."""
    return len(data).to_bytes(3, "big") + b"\0\0" + stream.to_bytes(4, "big") + data


@pytest.mark.parametrize("taken_back", [False, True], ids=["open", "taken back by GOAWAY"])
async def test_data_before_headers_breaks_no_other_stream(taken_back: bool) -> None:
    """RFC 9113, section 8.1.1: a stream error of type PROTOCOL_ERROR, whether or not anybody waits for the answer."""
    broken = anyio.Event()

    async def script(asked: Asked) -> None:
        if asked.headers[":path"] == "/bad":
            if taken_back:
                await asked.goaway(asked.stream - 2)
            asked.writer.write(data_frame(asked.stream, b"early"))
            await asyncio.sleep(0.02)
            asked.writer.write(data_frame(asked.stream, b"still on its way as the reset came"))
            return
        await asked.headers_back()
        await broken.wait()
        await asked.data(b"good", end=True)

    async with nothing_left_open(), serve2(script) as server, client_of(server) as client:
        good: list[Kept] = []

        async def go_on() -> None:
            good.append(await pushed(client.stream("GET", "/")))

        async with anyio.create_task_group() as group:
            group.start_soon(go_on)
            await anyio.sleep(0.05)
            with anyio.fail_after(3):
                bad = await pushed(client.stream("GET", "/bad"))
            await anyio.sleep(0.05)
            assert server.resets == [3]
            broken.set()
        assert (good[0].body, good[0].error) == (b"good", None)
    assert isinstance(bad.error, NoResponse)
    assert bad.error.stale == taken_back


async def test_data_on_a_stream_that_never_began_ends_the_connection() -> None:
    """RFC 9113, section 5.1: a connection error."""

    async def script(asked: Asked) -> None:
        await asked.headers_back()
        asked.writer.write(data_frame(asked.stream + 2, b"early"))

    async with nothing_left_open(), serve2(script) as server, client_of(server) as client:
        with anyio.fail_after(3):
            kept = await pushed(client.stream("GET", "/"))
    assert isinstance(kept.error, StreamCut)
    assert kept.error.kind == "bad_chunk"
