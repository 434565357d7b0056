"""The transport seam against raw sockets: each way in which an exchange can go wrong has one error of ours."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from chaosrunner.errors import UserError
from chaosrunner.http import (
    ConnectRefused,
    ConnectReset,
    ConnectTimeout,
    FirstByteTimeout,
    JsonFetcher,
    LocalFault,
    NoResponse,
    StreamClient,
    StreamCut,
    Timeouts,
    TlsError,
    TransportError,
    dial,
)
from chaosrunner.timeline.clock import Clock
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, Script, answer, chunk, serve

pytestmark = pytest.mark.anyio


async def read_all(client: StreamClient) -> tuple[bytes, StreamClient]:
    async with client.stream("GET", "/") as response:
        return b"".join([read.data async for read in response]), client


async def failure_of(script: Script, **options: object) -> TransportError:
    timeouts = Timeouts(connect=0.5, first_byte=0.3)
    async with serve(script) as server:
        async with StreamClient(server.url, clock=Clock(), timeouts=timeouts) as client:
            with pytest.raises(TransportError) as caught:
                await read_all(client)
    return caught.value


async def test_reads_carry_their_times_and_the_exchange_its_facts() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        for part in (b"one", b"two", b"three"):
            await asyncio.sleep(0.05)
            await conversation.write(chunk(part))
        await conversation.write(LAST_CHUNK)

    clock = Clock()
    async with serve(script) as server, StreamClient(server.url, clock=clock) as client:
        exchange = client.stream("POST", "/path?x=1", content=b"body", headers={"x-probe": "a"})
        async with exchange as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/event-stream"
            reads = [read async for read in response]
        seen = server.seen[0]
    assert [read.data for read in reads] == [b"one", b"two", b"three"]
    assert all(0.04 <= b.at - a.at < 0.2 for a, b in itertools.pairwise(reads))
    timings = exchange.timings
    assert timings.connected is not None
    assert timings.headers is not None
    assert timings.sent <= timings.connected <= timings.headers < reads[0].at <= clock.now()
    assert (seen.method, seen.path, seen.body, seen.headers["x-probe"]) == ("POST", "/path?x=1", b"body", "a")
    assert exchange.connection == seen.peer
    assert exchange.remote == server.url.removeprefix("http://")
    assert exchange.reused is False
    assert exchange.opened == timings.connected
    assert exchange.ended_properly is True


async def test_a_read_has_the_time_of_its_arrival_however_late_it_is_taken() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE + chunk(b"one"))
        for part in (b"two", b"three"):
            await asyncio.sleep(0.1)
            await conversation.write(chunk(part))
        await conversation.write(LAST_CHUNK)

    async with serve(script) as server, StreamClient(server.url, clock=Clock()) as client:
        async with client.stream("GET", "/") as response:
            first = await anext(response)
            await anyio.sleep(0.4)
            times = [read.at - first.at async for read in response]
    assert times == [pytest.approx(0.1, abs=0.05), pytest.approx(0.2, abs=0.05)]


@pytest.mark.parametrize("end", [None, Conversation.fin, Conversation.reset])
async def test_the_end_has_the_time_of_its_arrival_however_late_it_is_noticed(
    end: Callable[[Conversation], Awaitable[None]] | None,
) -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE + chunk(b"one"))
        await asyncio.sleep(0.1)
        await (conversation.write(LAST_CHUNK) if end is None else end(conversation))

    async with serve(script) as server, StreamClient(server.url, clock=Clock()) as client:
        exchange = client.stream("GET", "/")
        with suppress(StreamCut):
            async with exchange:
                first = await anext(exchange)
                assert exchange.timings.ended is None
                await anyio.sleep(0.4)
                await anext(exchange, None)
        assert exchange.timings.ended is not None
        assert exchange.timings.ended - first.at == pytest.approx(0.11, abs=0.05)


async def test_a_limit_has_its_own_instant_however_late_it_is_noticed() -> None:
    async with serve(lambda _: asyncio.sleep(5)) as server:
        clock, timeouts = Clock(), Timeouts(connect=0.3, first_byte=0.3)
        for url, error in ((server.url, FirstByteTimeout), (server.url.replace("http", "https"), ConnectTimeout)):
            async with StreamClient(url, clock=clock, timeouts=timeouts, insecure=True) as client:
                exchange = client.stream("GET", "/")
                asyncio.get_running_loop().call_later(0.2, time.sleep, 0.4)
                with pytest.raises(error):
                    async with exchange:
                        pass
                assert clock.now() - exchange.timings.sent > 0.55
                assert exchange.timings.ended is not None
                assert 0.29 < exchange.timings.ended - exchange.timings.sent < 0.5


async def test_a_large_answer_read_slowly() -> None:
    size = 8 << 20

    async def script(conversation: Conversation) -> None:
        await conversation.write(answer("200 OK", bytes(size)))

    async with serve(script) as server, StreamClient(server.url, clock=Clock()) as client:
        async with client.stream("GET", "/") as response:
            await anyio.sleep(0.2)
            assert sum([len(read.data) async for read in response]) == size
        assert response.ended_properly


async def test_a_name_with_several_addresses() -> None:
    """localhost is ::1 and 127.0.0.1 on most machines; the server has the latter only."""

    async def script(conversation: Conversation) -> None:
        await conversation.write(answer("200 OK", b"hi"))

    async with serve(script) as server:
        async with StreamClient(server.url.replace("127.0.0.1", "localhost"), clock=Clock()) as client:
            assert (await read_all(client))[0] == b"hi"
    async with StreamClient(server.url.replace("127.0.0.1", "localhost"), clock=Clock()) as client:
        with pytest.raises(ConnectRefused):
            await read_all(client)


async def test_connections_are_new_or_reused_as_asked() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(answer("200 OK", b"hi"))

    async with serve(script) as server:
        async with StreamClient(server.url, clock=Clock(), connection="reused") as client:
            first, second = client.stream("GET", "/"), client.stream("GET", "/")
            for exchange in (first, second):
                async with exchange:
                    assert [read.data async for read in exchange] == [b"hi"]
        assert server.connections == 1
        assert (first.reused, second.reused) == (False, True)
        assert first.connection == second.connection
        assert first.opened == second.opened
        assert second.timings.connected is None
        async with StreamClient(server.url, clock=Clock(), connection="new") as client:
            await read_all(client)
            await read_all(client)
        assert server.connections == 3


async def test_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with StreamClient(f"http://127.0.0.1:{port}", clock=Clock()) as client:
        with pytest.raises(ConnectRefused) as caught:
            await read_all(client)
    assert caught.value.errno == errno.ECONNREFUSED
    assert "Connection refused" in str(caught.value)
    assert not caught.value.after_headers


async def test_no_route_is_our_own_fault() -> None:
    """The broadcast address of the loopback network: the system refuses a connection to it without sending anything."""
    async with StreamClient("http://127.255.255.255:9", clock=Clock()) as client:
        exchange = client.stream("GET", "/")
        with pytest.raises(LocalFault) as caught:
            async with exchange:
                pass
    assert caught.value.errno == errno.ENETUNREACH
    assert exchange.remote == "127.255.255.255:9"


async def test_a_full_backlog_is_a_connect_timeout() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            url = f"http://127.0.0.1:{address[1]}"
            async with StreamClient(url, clock=Clock(), timeouts=Timeouts(connect=0.2)) as client:
                with pytest.raises(ConnectTimeout, match=r"0\.2 s"):
                    await read_all(client)
        finally:
            for filler in fillers:
                filler.close()


async def test_reset_before_headers() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.reset()

    error = await failure_of(script)
    assert isinstance(error, ConnectReset)
    assert error.errno == errno.ECONNRESET


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-", b"220 mail.example ESMTP\r\n\r\n"])
async def test_closed_before_headers(sent: bytes) -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(sent)
        await conversation.fin()

    error = await failure_of(script)
    assert isinstance(error, NoResponse)
    assert not error.after_headers


async def test_silence_before_headers() -> None:
    error = await failure_of(lambda _: asyncio.sleep(5))
    assert isinstance(error, FirstByteTimeout)
    assert "0.3 s" in str(error)


@pytest.mark.parametrize(
    ("head", "body", "end", "kind"),
    [
        (OK_SSE, chunk(b"data: a\n\n"), Conversation.reset, "reset"),
        (OK_SSE, chunk(b"data: a\n\n"), Conversation.fin, "missing_last_chunk"),
        (OK_SSE, b"20\r\ndata: cut short", Conversation.fin, "missing_last_chunk"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", b"ten bytes.", Conversation.fin, "short_body"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", b"ten bytes.", Conversation.reset, "reset"),
        (OK_SSE, chunk(b"data: a\n\n") + b"zz\r\noops\r\n", Conversation.fin, "bad_chunk"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"until close", Conversation.reset, "reset"),
    ],
)
async def test_cut_after_headers(
    head: bytes, body: bytes, end: Callable[[Conversation], asyncio.Future[None]], kind: str
) -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(head)
        await asyncio.sleep(0.02)
        await conversation.write(body)
        await end(conversation)

    error = await failure_of(script)
    assert isinstance(error, StreamCut)
    assert error.kind == kind
    assert error.after_headers
    assert (error.errno == errno.ECONNRESET) == (kind == "reset")


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
async def test_a_body_that_ends_by_a_close_has_no_provable_end(version: bytes) -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(version + b" 200 OK\r\n\r\nsome of it")
        await conversation.fin()

    async with serve(script) as server, StreamClient(server.url, clock=Clock()) as client:
        exchange = client.stream("GET", "/")
        async with exchange:
            assert [read.data async for read in exchange] == [b"some of it"]
    assert exchange.ended_properly is None


async def test_a_name_that_does_not_resolve_is_our_own_fault() -> None:
    async with StreamClient("http://no-such-host.invalid", clock=Clock()) as client:
        with pytest.raises(LocalFault, match=r"cannot resolve no-such-host\.invalid"):
            await read_all(client)


async def test_many_who_look_up_one_name_share_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    look_up = dial._look_up

    def slow(host: str, port: int) -> Any:
        asked.append(host)
        time.sleep(0.1)  # the resolver's thread
        return look_up(host, port)

    monkeypatch.setattr(dial, "_look_up", slow)
    refused: list[ConnectRefused] = []

    async def ask() -> None:
        try:
            await read_all(client)
        except ConnectRefused as error:
            refused.append(error)

    async with StreamClient("http://localhost:9", clock=Clock()) as client, anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(ask)
    assert len(refused) == 40
    assert asked == ["localhost"]


async def test_an_address_family_that_the_machine_lacks_is_our_own_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_such_family(*_: Any) -> Any:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    async with StreamClient("http://127.0.0.1:9", clock=Clock()) as client:
        monkeypatch.setattr(dial.socket, "socket", no_such_family)
        with pytest.raises(LocalFault, match="EAFNOSUPPORT"):
            await read_all(client)


async def test_no_descriptor_left_is_our_own_fault() -> None:
    async with StreamClient("http://127.0.0.1:9", clock=Clock()) as client:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            with pytest.raises(LocalFault) as caught:
                await read_all(client)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.errno == errno.EMFILE


async def test_redirects_are_not_followed() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(answer("302 Found", b"", "location: /elsewhere"))

    async with serve(script) as server, StreamClient(server.url, clock=Clock()) as client:
        async with client.stream("GET", "/") as response:
            assert response.status == 302
        assert len(server.seen) == 1


@pytest.mark.parametrize("url", ["chat.example", "ftp://x", "http://", "http://[::1"])
def test_an_address_of_no_use(url: str) -> None:
    with pytest.raises(UserError, match="URL"):
        StreamClient(url, clock=Clock())


def test_a_ca_file_of_no_use(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for name in ("ca.pem", "absent.pem"):
        with pytest.raises(UserError, match="CA file"):
            StreamClient("https://127.0.0.1", clock=Clock(), ca=str(tmp_path / name))


async def test_tls(certificate: Path) -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(answer("200 OK", b"secret"))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert", certificate / "key")
    async with serve(script, context) as server:
        async with StreamClient(server.url, clock=Clock()) as client:
            with pytest.raises(TlsError, match="CERTIFICATE_VERIFY_FAILED"):
                await read_all(client)
        async with StreamClient(server.url, clock=Clock(), ca=str(certificate / "cert")) as client:
            assert (await read_all(client))[0] == b"secret"
        async with StreamClient(server.url, clock=Clock(), insecure=True) as client:
            exchange = client.stream("GET", "/")
            async with exchange:
                assert [read.data async for read in exchange] == [b"secret"]
            assert exchange.connection is not None


@pytest.mark.parametrize("ending", ["reset", "fin"])
async def test_the_peer_ends_the_handshake(ending: str) -> None:
    """A plain listener that hangs up on the first bytes of a ClientHello."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5)
        conversation = Conversation("", "", {}, b"", "", reader, writer)
        await (conversation.reset() if ending == "reset" else _read_out_and_close(reader, writer))

    listener = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with listener:
        url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with StreamClient(url, clock=Clock(), insecure=True) as client:
            with pytest.raises(ConnectReset if ending == "reset" else TlsError):
                await read_all(client)


async def _read_out_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    writer.close()


async def test_leaving_in_mid_stream_closes_the_connection() -> None:
    ended = anyio.Event()

    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE + chunk(b"data: a\n\n"))
        assert await conversation.reader.read() == b""
        ended.set()

    async with serve(script) as server, StreamClient(server.url, clock=Clock(), connection="reused") as client:
        async with client.stream("GET", "/") as response:
            await anext(response)
        with anyio.fail_after(2):
            await ended.wait()
        assert response.ended_properly is False


async def test_json_fetcher() -> None:
    async def script(conversation: Conversation) -> None:
        if conversation.path == "/slow":
            await asyncio.sleep(5)
        body = {"/api/v1/query?query=up+%3D%3D+0": b'{"status":"success"}', "/list": b"[1]"}
        await conversation.write(answer("200 OK", body.get(conversation.path, b"not JSON")))

    async with serve(script) as server:
        async with JsonFetcher(server.url, clock=Clock(), timeout=0.3) as fetcher:
            assert await fetcher.get("/api/v1/query", {"query": "up == 0"}) == (200, {"status": "success"})
            assert await fetcher.get("/list") == (200, {})
            assert await fetcher.get("/text") == (200, {})
            assert server.connections == 1
            with pytest.raises(FirstByteTimeout):
                await fetcher.get("/slow")
