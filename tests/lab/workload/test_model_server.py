"""The model server as a process: start-up, ways to end, clients that leave, control, log, bounds."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.lab.workload.conftest import Start
from tests.lab.workload.harness import Client, answered, eventually, fetch, get, get_json, refused, request, stream

HEAVY = ("pydantic", "pandas", "aiohttp", "httpx", "kubernetes", "anyio", "click", "msgspec", "yaml", "structlog")


def test_a_replica_imports_little() -> None:
    script = "import sys, chaosrunner.lab.workload.model_server; print('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = run.stdout.split()
    ours = {name for name in modules if name.startswith("chaosrunner")}
    rooms = {name for name in ours if not name.startswith("chaosrunner.lab.workload")}
    assert rooms == {"chaosrunner", "chaosrunner.lab"}
    assert not set(HEAVY) & set(modules)


@pytest.mark.anyio
async def test_the_port_is_closed_until_start_up_is_over(start: Start) -> None:
    server = start("model_server", "--startup", "500ms")
    begun = await server.logged("start")
    assert not server.rows("listening")
    port = await server.listening()
    ready = server.rows("listening")[0]
    assert ready["at"] - begun["at"] == pytest.approx(0.5, abs=0.15)
    assert (await get(port, "/health")).status == 200


@pytest.mark.anyio
async def test_sigterm_before_ready_ends_it_at_once(start: Start) -> None:
    server = start("model_server", "--startup", "30s")
    await server.logged("start")
    server.process.terminate()
    assert await server.ended(timeout=2) == 128 + signal.SIGTERM


@pytest.mark.anyio
async def test_abort_ends_streams_within_moments_then_refuses_then_closes(serve: Start) -> None:
    server = serve("--sigterm", "abort", "--exit-delay", "300ms", "--max-sequences", "2")
    port = await server.listening()
    clients = [await Client.send(port, stream(2000)) for _ in range(2)]
    for client in clients:
        await client.until(lambda call: len(call.chunks) > 3)
    queued = await Client.send(port, stream(2000))
    await queued.until(lambda call: bool(call.head))
    told = time.monotonic()
    server.process.terminate()
    calls = await asyncio.gather(*(client.until(answered) for client in [*clients, queued]))
    for call in calls:
        assert call.whole
        assert call.finish_reasons == ["abort"]
        assert call.events[-1] == "[DONE]"
        assert call.events[-2]["usage"]["completion_tokens"] < 2000
        # Recorded: within 25 ms of the signal; more here only for a busy machine.
        assert call.reads[-1][0] - told < 0.25
    refusal = await fetch(port, stream(5))
    assert (refusal.status, refusal.header("connection")) == (500, "close")
    assert await refused(port)
    assert await server.ended() == 0
    assert [row["ended"] for row in server.rows("request")] == ["aborted"] * 3 + ["refused"]


@pytest.mark.anyio
async def test_hang_leaves_streams_open_and_silent_until_killed(serve: Start) -> None:
    server = serve("--sigterm", "hang")
    client = await Client.send(await server.listening(), stream(2000))
    await client.until(lambda call: len(call.chunks) > 3)
    server.process.terminate()
    await server.logged("sigterm")
    with pytest.raises(TimeoutError):
        await client.end(timeout=0.1)
    seen = len(client.call.data)
    with pytest.raises(TimeoutError):
        await client.end(timeout=0.5)
    assert len(client.call.data) == seen
    assert server.process.poll() is None
    server.process.kill()
    call = await client.end()
    assert not call.whole
    assert call.finish_reasons == []


@pytest.mark.anyio
async def test_drain_finishes_what_runs_and_refuses_what_comes(serve: Start) -> None:
    server = serve("--sigterm", "drain", "--max-sequences", "1")
    port = await server.listening()
    running, waiting = [await Client.send(port, stream(80)) for _ in range(2)]
    await running.until(lambda call: len(call.chunks) > 3)
    await waiting.until(lambda call: bool(call.head))
    server.process.terminate()
    await server.logged("sigterm")
    assert (await fetch(port, stream(5))).status == 500
    assert (await get(port, "/health")).status == 200
    for client in (running, waiting):
        call = await client.until(answered)
        assert (call.finish_reasons, call.whole) == (["length"], True)
        assert call.events[-2]["usage"]["completion_tokens"] == 80
    assert await server.ended() == 0


@pytest.mark.anyio
async def test_drain_timeout_ends_streams_with_an_error_object(serve: Start) -> None:
    server = serve("--sigterm", "drain", "--drain-timeout", "300ms", "--exit-delay", "300ms")
    port = await server.listening()
    client = await Client.send(port, stream(2000))
    await client.until(lambda call: len(call.chunks) > 3)
    server.process.terminate()
    call = await client.until(answered)
    assert call.whole
    assert call.events[-2]["error"]["code"] == 500
    assert call.events[-1] == "[DONE]"
    assert (await get(port, "/health")).status == 503
    assert await server.ended() == 0
    at = {row["event"]: row["at"] for row in server.rows()}
    assert at["drain_timeout"] - at["sigterm"] == pytest.approx(0.3, abs=0.1)


@pytest.mark.anyio
async def test_ignore_goes_on(serve: Start) -> None:
    server = serve("--sigterm", "ignore")
    port = await server.listening()
    client = await Client.send(port, stream(60))
    await client.until(lambda call: len(call.chunks) > 3)
    server.process.terminate()
    await server.logged("sigterm")
    assert (await client.until(answered)).finish_reasons == ["length"]
    assert (await fetch(port, stream(5))).finish_reasons == ["length"]


@pytest.mark.anyio
async def test_a_killed_server_cuts_its_streams(serve: Start) -> None:
    server = serve()
    client = await Client.send(await server.listening(), stream(2000))
    await client.until(lambda call: len(call.chunks) > 3)
    server.process.kill()
    call = await client.end()
    assert not call.whole
    assert "[DONE]" not in call.events
    # Nothing that was logged before is lost: which request was in flight is known.
    received = {row["id"] for row in server.rows("received")}
    assert received - {row["id"] for row in server.rows("request")}


@pytest.mark.anyio
async def test_a_client_that_leaves_frees_its_slot_at_once(serve: Start) -> None:
    server = serve("--max-sequences", "1")
    port = await server.listening()
    leaving = await Client.send(port, stream(2000))
    await leaving.until(lambda call: len(call.chunks) > 3)
    next_one = await Client.send(port, stream(5))
    await next_one.until(lambda call: bool(call.head))
    left = time.monotonic()
    leaving.close()
    call = await next_one.until(lambda call: bool(call.chunks))
    # Recorded: 19 ms.
    assert call.reads[-1][0] - left < 0.25
    row = await server.logged("request", lambda row: row["ended"] == "client_gone")
    assert 0 < row["tokens"] < 2000
    next_one.close()
    assert (await get_json(port, "/load")) == {"server_load": 0}


@pytest.mark.anyio
async def test_answers_carry_the_pod_and_the_request_id(serve: Start) -> None:
    server = serve("--pod-name", "chat-7d9")
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    call = await fetch(await server.listening(), request("POST", "/v1/chat/completions", body, {"X-Request-Id": "r-1"}))
    assert call.header("x-served-by") == "chat-7d9"
    assert json.loads(call.body)["id"] == "chatcmpl-r-1"
    row = await server.logged("request")
    assert (row["id"], row["tokens"], row["ended"]) == ("r-1", 2, "complete")
    assert row["received"] <= row["admitted"] <= row["first_token"] <= row["last_token"] <= row["at"]


@pytest.mark.anyio
async def test_a_crashed_engine_ends_streams_with_an_error_and_serves_no_more(serve: Start) -> None:
    server = serve("--control")
    port = await server.listening()
    streaming = await Client.send(port, stream(2000))
    await streaming.until(lambda call: len(call.chunks) > 3)
    plain = await Client.send(port, request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2000}))
    await server.logged("received", lambda row: len(server.rows("received")) == 2)
    assert (await fetch(port, request("POST", "/control/crash-engine", {"exit": False}))).status == 200
    call = await streaming.until(answered)
    assert (call.events[-2]["error"]["code"], call.events[-1], call.whole) == (500, "[DONE]", True)
    assert (await plain.until(answered)).status == 500
    later = await fetch(port, stream(5))
    assert later.status == 500
    assert b"EngineCore encountered an issue" in later.body
    assert (await get(port, "/health")).status == 503
    # Recorded: a server whose engine was killed ends by itself, with exit code 0.
    await fetch(port, request("POST", "/control/crash-engine"))
    assert await server.ended() == 0


@pytest.mark.anyio
async def test_an_engine_core_is_a_process_that_is_stopped_alone(serve: Start) -> None:
    """Recorded (vllm_kill, G): streams stand still and go on, /health is 200 all along."""
    server = serve("--engine-process")
    port = await server.listening()
    core = psutil.Process((await server.logged("engine_core"))["pid"])
    assert core.cmdline()[0] == "VLLM::EngineCore"
    client = await Client.send(port, stream(200))
    await client.until(lambda call: len(call.chunks) > 3)
    assert core.name().startswith("VLLM::EngineCor")
    core.suspend()
    begun = -1
    while begun != len(client.call.chunks):  # what came before is read first
        begun = len(client.call.chunks)
        with pytest.raises(TimeoutError):
            await client.end(timeout=0.4)
    assert (await get(port, "/health")).status == 200
    late = await Client.send(port, stream(5))
    with pytest.raises(TimeoutError):
        await late.until(lambda call: bool(call.chunks), timeout=0.3)
    core.resume()
    call = await client.until(answered)
    assert (call.finish_reasons, call.events[-1]) == (["length"], "[DONE]")
    assert (await late.until(answered)).finish_reasons == ["length"]


@pytest.mark.anyio
@pytest.mark.parametrize("death", ["exit", "stay"])
async def test_a_killed_engine_core_ends_streams_with_an_error(serve: Start, death: str) -> None:
    """Recorded (vllm_kill, E and F): the error object, [DONE], the last chunk; 503 on /health; then exit code 0."""
    server = serve("--engine-process", "--engine-death", death, "--exit-delay", "2")
    port = await server.listening()
    client = await Client.send(port, stream(2000))
    await client.until(lambda call: len(call.chunks) > 3)
    psutil.Process((await server.logged("engine_core"))["pid"]).kill()
    call = await client.until(answered)
    assert (call.events[-2]["error"]["code"], call.events[-1], call.whole) == (500, "[DONE]", True)
    assert (await get(port, "/health")).status == 503
    assert (await fetch(port, stream(5))).status == 500
    if death == "exit":
        assert await server.ended() == 0
    else:
        with pytest.raises(TimeoutError):
            await server.ended(timeout=2.5)


@pytest.mark.anyio
async def test_an_engine_core_does_not_outlive_its_server(serve: Start) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        server = serve("--engine-process")
        await server.listening()
        core = psutil.Process((await server.logged("engine_core"))["pid"])
        server.process.send_signal(number)
        await server.ended()

        async def gone(core: psutil.Process = core) -> bool:
            return not core.is_running()

        await eventually(gone)


@pytest.mark.anyio
async def test_stall_slow_and_resume(serve: Start) -> None:
    server = serve("--control")
    port = await server.listening()
    client = await Client.send(port, stream(2000))
    await client.until(lambda call: len(call.chunks) > 3)
    await fetch(port, request("POST", "/control/stall"))
    begun = -1
    while begun != len(client.call.chunks):  # what came before is read first
        begun = len(client.call.chunks)
        with pytest.raises(TimeoutError):
            await client.end(timeout=0.4)
    await fetch(port, request("POST", "/control/resume"))
    await client.until(lambda call: len(call.chunks) > begun + 20)
    await fetch(port, request("POST", "/control/slow", {"factor": 20}))
    with pytest.raises(TimeoutError):
        await client.end(timeout=0.05)  # what came before
    begun, since = len(client.call.chunks), time.monotonic()
    await client.until(lambda call: len(call.chunks) > begun + 6)
    assert time.monotonic() - since > 0.2  # 0.6 s of the server's time; not slowed, 0.03 s
    for factor in ("much", 0, -1):
        assert (await fetch(port, request("POST", "/control/slow", {"factor": factor}))).status == 400
    assert (await fetch(port, request("POST", "/control/settle"))).status == 200
    assert (await fetch(port, request("POST", "/control/nothing"))).status == 404


@pytest.mark.anyio
async def test_control_is_off_unless_asked_for(serve: Start) -> None:
    server = serve()
    assert (await fetch(await server.listening(), request("POST", "/control/stall"))).status == 404


@pytest.mark.anyio
async def test_a_full_queue_is_answered_503(serve: Start) -> None:
    server = serve("--max-sequences", "1", "--queue", "1")
    port = await server.listening()
    clients = [await Client.send(port, stream(2000))]
    await clients[0].until(lambda call: bool(call.chunks))
    clients.append(await Client.send(port, stream(2000)))
    await clients[1].until(lambda call: bool(call.head))
    assert (await fetch(port, stream(5))).status == 503
    for client in clients:
        client.close()


@pytest.mark.anyio
async def test_a_server_stays_small_and_gives_back_what_clients_held(serve: Start) -> None:
    server = serve("--max-sequences", "4")
    port = await server.listening()
    process = psutil.Process(server.process.pid)
    await fetch(port, stream(5))
    before = process.memory_info().rss
    clients = [await Client.send(port, stream(2000)) for _ in range(100)]
    await clients[0].until(lambda call: len(call.chunks) > 3)
    for client in clients:
        client.close()

    async def idle() -> bool:
        return bool(await get_json(port, "/load") == {"server_load": 0})

    await eventually(idle)
    assert process.num_fds() < 20
    assert process.memory_info().rss - before < 8e6


@pytest.mark.anyio
async def test_curl_reads_a_stream_as_it_comes(serve: Start) -> None:
    server = serve("--tokens-per-second", "20")
    url = f"http://127.0.0.1:{await server.listening()}/v1/completions"
    body = json.dumps({"prompt": "hello", "max_tokens": 10, "stream": True, "ignore_eos": True})
    curl = await asyncio.create_subprocess_exec("curl", "-sN", url, "-d", body, stdout=asyncio.subprocess.PIPE)
    assert curl.stdout is not None
    times = []
    async for line in curl.stdout:
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
    assert await curl.wait() == 0
    assert len(times) == 10
    assert times[-1] - times[0] == pytest.approx(9 / 20, abs=0.15)
