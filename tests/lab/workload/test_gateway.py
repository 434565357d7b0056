"""The gateway as a process, before real model servers and before upstreams that misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.lab.workload.gateway import main
from tests.lab.workload.conftest import Start
from tests.lab.workload.harness import (
    Call,
    Client,
    Program,
    answered,
    eventually,
    fetch,
    get,
    get_json,
    request,
    stream,
)
from tests.lab.workload.slices import Slices, api, endpoint

Replicas = tuple[Program, Program]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def gateway(start: Start, slices: Slices, folder: Path, *arguments: str) -> tuple[Program, int]:
    """A gateway that knows the slices' endpoints."""
    program = start("gateway", "--kubeconfig", slices.kubeconfig(folder), "--service", "chat", *arguments)
    port = await program.listening()
    await program.logged("endpoints_applied")
    return program, port


async def upstream(answer: Serve) -> int:
    """A server on a raw socket, run by the test; `answer` is called for each connection, after the request has come."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):  # the gateway leaves when its client does
            await answer(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


def unused_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


async def nth_row(program: Program, number: int) -> dict[str, Any]:
    """The gateway's row of its n-th request, counted from 0."""

    async def there() -> bool:
        return len(program.rows("request")) > number

    await eventually(there)
    return program.rows("request")[number]


async def served_by(port: int, number: int) -> Counter[str | None]:
    """Which Pods answered so many requests, one after the other."""
    return Counter([(await fetch(port, stream(1))).header("x-served-by") for _ in range(number)])


@pytest.mark.anyio
async def test_a_frame_goes_on_before_the_next_one_comes(start: Start, tmp_path: Path) -> None:
    frames = [b"data: %d\n\n" % number for number in range(20)]
    arrived = asyncio.Semaphore(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for frame in frames:
            writer.write(b"%x\r\n%b\r\n" % (len(frame), frame))
            await arrived.acquire()
        writer.write(b"0\r\n\r\n")

    async with api() as slices:
        slices.put(endpoint("chat-0", await upstream(answer)))
        _, port = await gateway(start, slices, tmp_path)
        client = await Client.send(port, stream(20))
        for number in range(1, len(frames) + 1):
            await client.until(lambda call, number=number: len(call.chunks) == number)
            arrived.release()
        call = await client.until(answered)
        client.close()
    assert call.chunks == [*frames, b""]


@pytest.mark.anyio
async def test_streams_pass_through_and_name_their_pod(start: Start, serve: Start, tmp_path: Path) -> None:
    server = serve("--pod-name", "not-the-endpoints-name", "--tokens-per-second", "50")
    async with api() as slices:
        slices.put(endpoint("chat-0", await server.listening()))
        program, port = await gateway(start, slices, tmp_path)
        body = {"prompt": "hello", "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
        client = await Client.send(port, request("POST", "/v1/completions", body, {"x-request-id": "r-7"}))
        call = await client.until(answered)
        # A connection serves one request after the other.
        client.next(request("GET", "/v1/models"))
        models = await client.until(answered)
        client.close()
    assert [value for name, value in call.headers if name == "x-served-by"] == ["chat-0"]
    assert call.header("content-type") == "text/event-stream; charset=utf-8"
    assert (call.finish_reasons, call.events[-1], call.whole) == (["length"], "[DONE]", True)
    assert call.data.count(b'"text"') == 20
    assert json.loads(models.body)["data"][0]["id"] == "tiny"
    assert (await server.logged("request"))["id"] == "r-7"
    row = await program.logged("request")
    assert (row["request_id"], row["pod"], row["status"], row["flag"]) == ("r-7", "chat-0", 200, "-")


@pytest.mark.anyio
async def test_policies_spread_and_are_counted(start: Start, replicas: Replicas, tmp_path: Path) -> None:
    ports = [await server.listening() for server in replicas]
    async with api() as slices:
        slices.put(*(endpoint(f"chat-{number}", port) for number, port in enumerate(ports)))
        _, port = await gateway(start, slices, tmp_path, "--policy", "round_robin")
        assert await served_by(port, 10) == {"chat-0": 5, "chat-1": 5}
        _, port = await gateway(start, slices, tmp_path, "--policy", "random", "--seed", "1")
        assert min((await served_by(port, 30)).values()) >= 5
        _, port = await gateway(start, slices, tmp_path, "--policy", "least_request")
        long = await Client.send(port, stream(2000))
        busy = (await long.until(lambda call: bool(call.head))).header("x-served-by")
        assert set(await served_by(port, 6)) == {"chat-0", "chat-1"} - {busy}
        stats = await get_json(port, "/gateway/stats")
        assert stats["in_flight"] == {busy: 1}
        assert stats["total_in_flight"] == 1
        assert stats["responses"] == {"200": 6}
        assert {row["pod"]: row["requests"] for row in stats["endpoints"]}[busy] == 1
        long.close()


@pytest.mark.anyio
async def test_changes_of_the_endpoints_act_after_the_propagation_delay(
    start: Start, replicas: Replicas, tmp_path: Path
) -> None:
    ports = [await server.listening() for server in replicas]
    async with api() as slices:
        slices.put(*(endpoint(f"chat-{number}", port) for number, port in enumerate(ports)))
        program, port = await gateway(
            start, slices, tmp_path, "--policy", "round_robin", "--propagation-delay", "400ms"
        )
        running = await Client.send(port, stream(300))
        victim = (await running.until(lambda call: bool(call.chunks))).header("x-served-by")
        number = int(str(victim)[-1])
        slices.put(endpoint(f"chat-{number}", ports[number], ready=False, serving=True, terminating=True))
        await program.logged("endpoints_seen", lambda row: any(entry["terminating"] for entry in row["endpoints"]))
        # Stale for a while, and then right.
        assert set(await served_by(port, 4)) == {"chat-0", "chat-1"}
        await program.logged("endpoints_applied", lambda row: len(row["ready"]) == 1)
        assert set(await served_by(port, 4)) == {"chat-0", "chat-1"} - {victim}
        # What runs on the leaving endpoint runs on.
        slices.remove(f"chat-{number}")
        assert (await running.until(answered)).finish_reasons == ["length"]
        seen, applied = [program.rows(event)[1]["at"] for event in ("endpoints_seen", "endpoints_applied")]
        assert applied - seen == pytest.approx(0.4, abs=0.1)


@pytest.mark.anyio
async def test_a_watch_goes_on_after_its_end_after_410_and_after_an_outage(
    start: Start, replicas: Replicas, tmp_path: Path
) -> None:
    server_port = await replicas[0].listening()
    async with api() as slices:
        slices.put(endpoint("chat-0", server_port))
        program, port = await gateway(start, slices, tmp_path)
        await eventually(lambda: _watching(port, True))

        async def told(pods: set[str]) -> None:
            await eventually(lambda: _endpoints(port, pods))

        # The watch ends properly: it goes on from where it was, without another list.
        slices.hang_up()
        slices.put(endpoint("chat-1", server_port + 1))
        await told({"chat-0", "chat-1"})
        assert slices.lists == 1
        # The history is gone: a list.
        slices.put(endpoint("chat-2", server_port + 2))
        await told({"chat-0", "chat-1", "chat-2"})
        slices.items.pop("chat-chat-1")
        slices.version += 1
        slices.forget()
        slices.hang_up()
        await told({"chat-0", "chat-2"})
        assert program.rows("relist")[0]["code"] == 410
        # The API server is away: the endpoints stay, and requests go on.
        slices.remove("chat-2")
        await told({"chat-0"})
        await slices.go_away()
        await eventually(lambda: _watching(port, False))
        assert (await fetch(port, stream(2))).finish_reasons == ["length"]
        slices.put(endpoint("chat-3", server_port + 3))
        await slices.listen(slices.port)
        await told({"chat-0", "chat-3"})


async def _watching(port: int, wanted: bool) -> bool:
    return bool((await get_json(port, "/gateway/stats"))["watching"] == wanted)


async def _endpoints(port: int, pods: set[str]) -> bool:
    return {row["pod"] for row in (await get_json(port, "/gateway/stats"))["endpoints"]} == pods


@pytest.mark.anyio
async def test_slices_that_say_little_are_understood(start: Start, replicas: Replicas, tmp_path: Path) -> None:
    # kubernetes-client/python#2214: endpoints may be null.
    server_port = await replicas[0].listening()
    bare = endpoint("chat-0", server_port, ready=None)
    empty: dict[str, Any] = {**endpoint("chat-1", 1), "endpoints": None, "ports": None}
    async with api() as slices:
        slices.put(bare, empty)
        _, port = await gateway(start, slices, tmp_path)
        known = {"pod": "chat-0", "ready": True, "serving": True, "terminating": False}
        (row,) = (await get_json(port, "/gateway/stats"))["endpoints"]
        assert known.items() <= row.items()
        assert (await fetch(port, stream(1))).status == 200


@pytest.mark.anyio
async def test_without_endpoints_503_with_an_empty_body(start: Start, tmp_path: Path) -> None:
    async with api() as slices:
        program = start("gateway", "--kubeconfig", slices.kubeconfig(tmp_path), "--service", "chat")
        port = await program.listening()
        await eventually(lambda: _healthy(port))
        call = await fetch(port, stream(1))
    assert (call.status, call.body, call.header("x-served-by")) == (503, b"", None)
    assert (await program.logged("request"))["flag"] == "UH"


async def _healthy(port: int) -> bool:
    return (await get(port, "/gateway/healthz")).status == 200


@pytest.mark.anyio
@pytest.mark.parametrize(("panic", "statuses"), [("all", [200, 503]), ("serving", [200]), ("off", [503])])
async def test_panic_with_no_ready_endpoint(
    start: Start, replicas: Replicas, tmp_path: Path, panic: str, statuses: list[int]
) -> None:
    # Recorded of Envoy: it sends to terminating Pods and to replacements that are not ready.
    async with api() as slices:
        slices.put(endpoint("chat-0", await replicas[0].listening(), ready=False, serving=True, terminating=True))
        slices.put(endpoint("chat-1", unused_port(), ready=False, serving=False))
        _, port = await gateway(start, slices, tmp_path, "--panic", panic, "--policy", "round_robin")
        assert sorted({(await fetch(port, stream(1))).status for _ in range(4)}) == statuses


async def one_answer(start: Start, folder: Path, answer: Serve, *arguments: str) -> tuple[Call, dict[str, Any]]:
    """What a client gets through the gateway from an upstream, and the gateway's row."""
    async with api() as slices:
        slices.put(endpoint("chat-0", await upstream(answer)))
        program, port = await gateway(start, slices, folder, *arguments)
        call = await fetch(port, request("GET", "/"))
        return call, await program.logged("request")


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.anyio
async def test_refused_is_503_in_envoys_words(start: Start, tmp_path: Path) -> None:
    async with api() as slices:
        slices.put(endpoint("chat-0", unused_port()))
        program, port = await gateway(start, slices, tmp_path)
        call = await fetch(port, stream(1))
    assert call.status == 503
    assert call.body.endswith(b"before headers. reset reason: remote connection failure")
    assert (await program.logged("request"))["flag"] == "UF"


@pytest.mark.anyio
async def test_a_retry_goes_to_another_endpoint_and_only_for_connects(
    start: Start, replicas: Replicas, tmp_path: Path
) -> None:
    async with api() as slices:
        slices.put(endpoint("chat-0", unused_port()), endpoint("chat-1", await replicas[0].listening()))
        program, port = await gateway(start, slices, tmp_path, "--retries", "1", "--policy", "round_robin")
        calls = [await fetch(port, stream(1)) for _ in range(4)]
        assert {(call.status, call.header("x-served-by")) for call in calls} == {(200, "chat-1")}
        assert {(await nth_row(program, number))["attempts"] for number in range(4)} == {1, 2}

    tries = 0

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.close()

    call, row = await one_answer(start, tmp_path, die, "--retries", "3")
    assert (call.status, row["flag"], tries) == (503, "UC", 1)


@pytest.mark.anyio
async def test_no_answer_from_upstream(start: Start, tmp_path: Path) -> None:
    cases = [("fin", 503, "UC"), ("reset", 503, "UC"), ("half a head", 503, "UC"), ("garbage", 502, "UPE")]
    ways = iter([way for way, _, _ in cases])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = next(ways)
        if way == "half a head":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-")
            await writer.drain()
        elif way == "garbage":
            writer.write(b"\x00\x01garbage\r\n\r\n")
            await writer.drain()
        if way == "reset":
            reset(writer)
        else:
            writer.close()

    async with api() as slices:
        slices.put(endpoint("chat-0", await upstream(answer)))
        program, port = await gateway(start, slices, tmp_path)
        for number, (_, status, flag) in enumerate(cases):
            call = await fetch(port, request("GET", "/"))
            row = await nth_row(program, number)
            assert (call.status, row["flag"]) == (status, flag)
            assert call.body.startswith(b"upstream connect error or disconnect/reset before headers. reset reason: ")


@pytest.mark.anyio
@pytest.mark.parametrize("last", ["fin", "reset", "bad chunk"])
async def test_death_in_mid_stream_is_fin_without_the_last_chunk(start: Start, tmp_path: Path, last: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n9\r\ndat")
        await writer.drain()
        await asyncio.sleep(0.1)
        if last == "bad chunk":
            writer.write(b"a: 2\n\n*\r\n")
        elif last == "reset":
            reset(writer)
        else:
            writer.close()

    call, row = await one_answer(start, tmp_path, answer, "--death-delay", "300ms")
    assert call.status == 200
    assert call.error is None
    assert not call.whole
    # What came is passed on, in chunks that are whole.
    assert b"".join(call.chunks).startswith(b"data: 1\n\n")
    assert call.body.endswith(b"\r\n")
    assert (row["flag"], row["status"]) == ("UPE", 200)
    if last != "bad chunk":
        assert row["ended"] - row["headers"] == pytest.approx(0.4, abs=0.15)


BODIES: list[tuple[bytes, bytes, bool]] = [
    (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello", False),
    (b"HTTP/1.1 200 OK\r\n\r\nhello", b"hello", True),
    (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello", True),
    (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello", True),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", b"ok", False),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b"", False),
    (b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\nx-served-by: x\r\n\r\nnope", b"nope", False),
]
"""What an upstream sends before it closes, the body that is in it, and whether the client gets it in chunks."""


@pytest.mark.anyio
async def test_every_kind_of_body_is_relayed(start: Start, tmp_path: Path) -> None:
    sent = iter([wire for wire, _, _ in BODIES])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(next(sent))
        await writer.drain()
        writer.close()

    async with api() as slices:
        slices.put(endpoint("chat-0", await upstream(answer)))
        _, port = await gateway(start, slices, tmp_path, "--new-connections")
        for wire, body, chunked in BODIES:
            client = await Client.send(port, request("GET", "/", headers={"Connection": "close"}))
            call = await client.end()
            client.close()
            assert (b"".join(call.chunks) if chunked else call.body) == body
            assert call.whole == chunked
            assert [value for name, value in call.headers if name == "x-served-by"] == ["chat-0"]
            assert str(call.status) == wire.split(b" ")[3 if b"100 Continue" in wire else 1].decode()


@pytest.mark.anyio
async def test_a_short_body_is_cut_short(start: Start, tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello")
        await writer.drain()
        writer.close()

    call, row = await one_answer(start, tmp_path, answer)
    assert (call.body, call.header("content-length"), call.error) == (b"hello", "50", None)
    assert row["flag"] == "UPE"


@pytest.mark.anyio
async def test_a_client_that_leaves_closes_the_upstream_at_once(start: Start, serve: Start, tmp_path: Path) -> None:
    server = serve()
    async with api() as slices:
        slices.put(endpoint("chat-0", await server.listening()))
        program, port = await gateway(start, slices, tmp_path)
        client = await Client.send(port, stream(2000))
        await client.until(lambda call: len(call.chunks) > 3)
        left = time.time()
        client.close()
        row = await server.logged("request")
        stats = await get_json(port, "/gateway/stats")
    assert row["ended"] == "client_gone"
    assert row["at"] - left < 0.2
    assert (await program.logged("request"))["flag"] == "DC"
    assert (stats["client_gone"], stats["total_in_flight"], stats["cut"]) == (1, 0, 0)


@pytest.mark.anyio
@pytest.mark.parametrize(("arguments", "connections"), [([], 1), (["--new-connections"], 3)])
async def test_upstream_connections_are_pooled_unless_told_otherwise(
    start: Start, tmp_path: Path, arguments: list[str], connections: int
) -> None:
    opened = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while True:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            try:
                await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return

    async with api() as slices:
        slices.put(endpoint("chat-0", await upstream(answer)))
        program, port = await gateway(start, slices, tmp_path, *arguments, "--idle-timeout", "1s")
        for _ in range(3):
            assert (await get(port, "/")).body == b"ok"
        assert opened == connections
        reused = [not (await nth_row(program, number))["new_connection"] for number in range(3)]
        assert reused == ([False, True, True] if connections == 1 else [False] * 3)
        # An idle connection is not kept for ever.
        await eventually(lambda: _idle(port, 0))


async def _idle(port: int, number: int) -> bool:
    return bool((await get_json(port, "/gateway/stats"))["endpoints"][0]["idle"] == number)


@pytest.mark.anyio
async def test_the_time_limit_of_a_route(start: Start, replicas: Replicas, tmp_path: Path) -> None:
    # Recorded of Envoy Gateway with nothing set: a stream is cut at 15.0 s, FIN, no [DONE].
    async with api() as slices:
        slices.put(endpoint("chat-0", await replicas[0].listening()))
        program, port = await gateway(start, slices, tmp_path, "--request-timeout", "400ms")
        call = await fetch(port, stream(2000))
        whole = {"prompt": "x", "max_tokens": 2000}
        late = await fetch(port, request("POST", "/v1/completions", whole))
    assert (call.status, call.whole, call.error) == (200, False, None)
    assert "[DONE]" not in call.events
    assert (late.status, late.body) == (504, b"upstream request timeout")
    row = await nth_row(program, 0)
    assert row["flag"] == "UT"
    assert row["ended"] - row["received"] == pytest.approx(0.4, abs=0.1)


@pytest.mark.anyio
async def test_a_slow_client_slows_the_upstream(start: Start, tmp_path: Path) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    async with api() as slices:
        slices.put(endpoint("chat-0", await upstream(flood)))
        _, port = await gateway(start, slices, tmp_path)
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request("GET", "/"))
        before = -1
        while not 0 < sent == before:
            before = sent
            await asyncio.sleep(0.3)
            assert sent < 1e8, "no end to what is taken off the upstream"
        writer.close()


@pytest.mark.anyio
async def test_a_replica_dies_under_streams(start: Start, serve: Start, tmp_path: Path) -> None:
    servers = [serve(), serve()]
    ports = [await server.listening() for server in servers]
    async with api() as slices:
        slices.put(*(endpoint(f"chat-{number}", port) for number, port in enumerate(ports)))
        _, port = await gateway(start, slices, tmp_path, "--policy", "round_robin")
        clients = [await Client.send(port, stream(200)) for _ in range(4)]
        for client in clients:
            await client.until(lambda call: len(call.chunks) > 3)
        servers[0].process.kill()
        calls = await asyncio.gather(*(client.until(answered) for client in clients))
        stats = await get_json(port, "/gateway/stats")
    outcome = Counter((call.header("x-served-by"), call.whole, call.error is None) for call in calls)
    assert outcome == {("chat-0", False, True): 2, ("chat-1", True, True): 2}
    assert (stats["cut"], stats["responses"], stats["flags"]) == (2, {"200": 4}, {"-": 2, "UPE": 2})


@pytest.mark.parametrize("text", ["{}", "clusters: [", "", "current-context: x\ncontexts: []\n"])
def test_a_bad_kubeconfig_is_one_clear_error(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    assert main(["--kubeconfig", str(path), "--service", "chat"]) == 2
    assert capsys.readouterr().err.startswith(f"{path}: ")


def test_without_a_kubeconfig_outside_of_a_pod_is_one_clear_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["--service", "chat"]) == 2
    assert capsys.readouterr().err.startswith("no kubeconfig is given, and this is no Pod")
