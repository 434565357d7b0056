"""The wire: framing whatever the pieces, bad messages, bounds."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.lab.workload import http1
from chaosrunner.lab.workload.http1 import ChunkedBody, Exchange, LengthBody, MalformedMessage, Server
from tests.lab.workload.harness import Client, answered, fetch, request


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in pairwise(borders)]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.binary(max_size=20), st.lists(st.integers(0, 999)))
def test_chunked_body_ends_at_the_same_byte_however_it_is_cut(parts: list[bytes], rest: bytes, cuts: list[int]) -> None:
    wire = b"".join(map(http1.chunk, parts)) + http1.LAST_CHUNK + rest
    body, payload, left = ChunkedBody(), b"", b""
    for piece in pieces_of(wire, cuts):
        if body.complete:
            left += piece
            continue
        part, over = body.feed(piece)
        payload += part
        left += over
    assert body.complete
    assert payload == b"".join(parts)
    assert left == rest


def test_chunk_extensions_and_trailers_are_dropped() -> None:
    body = ChunkedBody()
    assert body.feed(b"3;name=value\r\nabc\r\n0\r\nexpires: never\r\n\r\nnext") == (b"abc", b"next")


@pytest.mark.parametrize("wire", [b"zz\r\n", b"3\r\nabcd\r\n", b"-1\r\n", b"+1\r\n", b"0x1\r\n", b"\r\n"])
def test_a_broken_chunk_is_told(wire: bytes) -> None:
    with pytest.raises(MalformedMessage):
        ChunkedBody().feed(wire)


def test_a_body_of_known_length_leaves_the_rest() -> None:
    body = LengthBody(3)
    assert body.feed(b"ab") == (b"ab", b"")
    assert not body.end()
    assert body.feed(b"cdef") == (b"c", b"def")
    assert body.end()


async def echo(exchange: Exchange) -> None:
    text = exchange.request.body
    exchange.respond(200, [("content-length", str(len(text)))], text)


@pytest.fixture
async def port(anyio_backend: str) -> int:
    server = Server(echo, keep_alive=0.3, max_connections=4)
    return await server.listen("127.0.0.1", 0)


@pytest.mark.anyio
async def test_requests_follow_each_other_on_one_connection(port: int) -> None:
    one, two = request("POST", "/", b"one"), request("POST", "/", b"two!")
    client = await Client.send(port, one + two)
    call = await client.until(lambda call: call.data.endswith(b"two!"))
    assert call.data.count(b"HTTP/1.1 200 OK") == 2
    client.close()


@pytest.mark.anyio
async def test_an_upload_in_chunks_is_whole_and_may_wait_to_be_told_to_go_on(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    client = await Client.send(port, head)
    await client.until(lambda call: b"100 Continue\r\n\r\n" in call.data)
    client.next(b"4\r\nsome\r\n5\r\n more\r\n0\r\n\r\n")
    assert (await client.until(answered)).body == b"some more"
    client.close()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbad header : x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: many\r\n\r\n", 400),
        (
            b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (http1.BODY_LIMIT + 1) + b"x" * (http1.BODY_LIMIT + 1),
            413,
        ),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * (http1.HEAD_LIMIT + 1), 413),
    ],
)
async def test_a_bad_message_is_answered_and_the_connection_closed(port: int, sent: bytes, status: int) -> None:
    client = await Client.send(port, sent)
    assert (await client.end()).status == status
    client.close()


@pytest.mark.anyio
async def test_idle_connections_and_those_beyond_the_limit_are_closed(port: int) -> None:
    held = [await Client.send(port, b"") for _ in range(4)]
    await asyncio.sleep(0.05)
    beyond = await Client.send(port, b"")
    assert (await beyond.end(timeout=0.2)).data == b""
    for client in held:
        assert (await client.end(timeout=1)).data == b""
    assert (await fetch(port, request("POST", "/", b"again"))).body == b"again"


@pytest.mark.anyio
async def test_http_1_0_gets_a_body_that_ends_with_the_connection() -> None:
    async def answer(exchange: Exchange) -> None:
        exchange.start(200, [])
        exchange.send(b"piece")
        exchange.send(b"meal")
        exchange.finish()

    port = await Server(answer).listen("127.0.0.1", 0)
    call = await (await Client.send(port, b"GET / HTTP/1.0\r\n\r\n")).end()
    assert call.body == b"piecemeal"
    assert call.header("transfer-encoding") is None


@pytest.mark.anyio
async def test_a_client_that_does_not_read_holds_the_sender_back() -> None:
    sent = 0

    async def flood(exchange: Exchange) -> None:
        nonlocal sent
        exchange.start(200, [])
        while True:
            exchange.send(b"x" * 65536)
            sent += 65536
            await exchange.connection.drain()

    port = await Server(flood).listen("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(request("GET", "/"))
    await asyncio.sleep(0.3)
    before = sent
    await asyncio.sleep(0.3)
    assert sent == before
    writer.close()
