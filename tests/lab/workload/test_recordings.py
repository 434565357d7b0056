"""The model server's bytes against those of a real vLLM, request by request."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.workload.harness import DATA, Call, Client, Program, answered, fetch, get, request

GENERATIONS = (
    "completions_stream",
    "completions_stream_200",
    "completions_stream_nousage",
    "completions_stream_continuous_usage",
    "chat_stream",
    "chat_nonstream",
    "first_completion",
)
ERRORS = (
    "err_404",
    "err_405",
    "err_bad_json",
    "err_chat_max_tokens",
    "err_max_tokens",
    "err_max_tokens_0",
    "err_missing_field",
    "err_model_404",
    "err_prompt_too_long",
)
PAGES = ("get_ping", "get_version", "get_load", "get_models")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    arguments = ["--startup", "0", "--tokens-per-second", "400", "--pod-name", "chat-0"]
    program = Program("model_server", tmp_path_factory.mktemp("server"), arguments)
    yield program
    program.kill()


def recorded(name: str, folder: str = "vllm") -> tuple[bytes, Call]:
    """The request and the answer of a recording."""
    path = DATA / folder / name
    sent = json.loads(path.with_suffix(".json").read_text())["request"]
    return sent.encode(), Call(path.with_suffix(".bin").read_bytes())


def head_skeleton(call: Call) -> list[str]:
    """Status line and headers in order; what differs from call to call left out, and the header that the lab adds."""
    lines = call.head.split("\r\n")
    kept = [re.sub(r"^(date|content-length): .*", r"\1", line) for line in lines if not line.startswith("x-served-by")]
    if (length := call.header("content-length")) is not None:
        assert int(length) == len(call.body)
    return kept


def skeleton(value: Any, key: str = "") -> Any:
    """A frame with its keys in order; ids, times and texts replaced by their kind."""
    if isinstance(value, dict):
        return [(name, skeleton(part, name)) for name, part in value.items()]
    if isinstance(value, list):
        return [skeleton(part) for part in value]
    if key == "id" and "-" in str(value):
        return value.partition("-")[0]
    if key in ("text", "content", "created", "root"):
        return type(value).__name__
    return value


@pytest.mark.anyio
@pytest.mark.parametrize("name", GENERATIONS)
async def test_generation_has_the_recorded_shape(server: Program, name: str) -> None:
    sent, want = recorded(name)
    got = await fetch(await server.listening(), sent)
    assert head_skeleton(got) == head_skeleton(want)
    if want.header("transfer-encoding"):
        assert got.whole
        assert [chunk.count(b"data: ") for chunk in got.chunks] == [chunk.count(b"data: ") for chunk in want.chunks]
        assert [skeleton(event) for event in got.events] == [skeleton(event) for event in want.events]
        raw = re.compile(rb'("(?:id|text|content)":)"(?:[^"\\]|\\.)*"|("created":)\d+')
        for chunk, wanted in zip(got.chunks, want.chunks, strict=True):
            assert raw.sub(rb"\1\2", chunk) == raw.sub(rb"\1\2", wanted)
    else:
        assert skeleton(json.loads(got.body)) == skeleton(json.loads(want.body))


@pytest.mark.anyio
@pytest.mark.parametrize("name", ERRORS)
async def test_error_is_the_recorded_one_to_the_byte(server: Program, name: str) -> None:
    sent, want = recorded(name)
    got = await fetch(await server.listening(), sent)
    assert head_skeleton(got) == head_skeleton(want)
    assert got.body == want.body


@pytest.mark.anyio
@pytest.mark.parametrize("name", PAGES)
async def test_page_has_the_recorded_shape(server: Program, name: str) -> None:
    sent, want = recorded(name, "vllm_pages")
    got = await fetch(await server.listening(), sent)
    assert head_skeleton(got) == head_skeleton(want)
    if want.body:
        assert skeleton(json.loads(got.body)) == skeleton(json.loads(want.body))


@pytest.mark.anyio
async def test_health_has_no_body(server: Program) -> None:
    sent, want = recorded("get_health")
    got = await fetch(await server.listening(), sent)
    assert head_skeleton(got) == head_skeleton(want)
    assert got.body == b""


def series(page: bytes) -> dict[str, float]:
    """vLLM's own series of a metrics page, by name and labels."""
    lines = [line for line in page.decode().splitlines() if line.startswith("vllm:")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.anyio
async def test_metrics_have_the_recorded_series(tmp_path: Path) -> None:
    program = Program("model_server", tmp_path, ["--startup", "0", "--tokens-per-second", "400"])
    try:
        port = await program.listening()
        for name in ("completions_stream", "chat_nonstream"):
            await fetch(port, recorded(name)[0])
        cancelled = await Client.send(port, recorded("cancel_mid_stream", "vllm_pages")[0])
        await cancelled.until(lambda call: len(call.chunks) > 3)
        cancelled.close()
        await program.logged("request", lambda row: row["ended"] == "client_gone")
        got = series((await get(port, "/metrics")).body)
    finally:
        program.kill()
    want = series((DATA / "vllm_pages" / "metrics_after.bin").read_bytes())
    info = "vllm:cache_config_info"
    assert {name for name in got if info not in name} == {name for name in want if info not in name}
    engine = '{engine="0",model_name="tiny"}'
    assert got[f"vllm:num_requests_running{engine}"] == 0
    assert got[f"vllm:time_to_first_token_seconds_count{engine}"] == 2
    assert got[f"vllm:request_generation_tokens_sum{engine}"] == 12
    # A client that leaves is counted nowhere, as recorded.
    reasons = {
        reason: got[f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="tiny"}}']
        for reason in ("length", "abort", "error")
    }
    assert reasons == {"length": 2, "abort": 0, "error": 0}


def tail(call: Call, number: int) -> list[Any]:
    return [skeleton(event) for event in call.events[-number:]]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("manner", "name", "frames"),
    [
        (["--sigterm", "abort"], "A_sigterm_default", 3),
        (["--sigterm", "error"], "H_sigint", 2),
        (["--sigterm", "drain", "--drain-timeout", "0.3"], "C_sigterm_drain3_exceeded", 2),
        (["--sigterm", "drain"], "B_sigterm_drain30", 3),
    ],
)
async def test_stream_ends_as_recorded_at_sigterm(tmp_path: Path, manner: list[str], name: str, frames: int) -> None:
    sent, want = recorded(f"{name}_stream0", "vllm_kill")
    program = Program("model_server", tmp_path, ["--startup", "0", "--tokens-per-second", "1000", *manner])
    try:
        port = await program.listening()
        clients = [await Client.send(port, sent) for _ in range(3)]
        for client in clients:
            await client.until(lambda call: len(call.chunks) > 5)
        program.process.terminate()
        calls = await asyncio.gather(*(client.until(answered) for client in clients))
        assert await program.ended() == 0
    finally:
        program.kill()
    for call in calls:
        assert head_skeleton(call) == head_skeleton(want)
        assert call.whole
        assert want.whole
        counts = re.compile(r"(_tokens', )\d+")
        assert counts.sub(r"\1N", repr(tail(call, frames))) == counts.sub(r"\1N", repr(tail(want, frames)))
        # The frames that end a stream each come in a chunk of their own.
        assert [chunk.count(b"data: ") for chunk in call.chunks[-frames:]] == [
            chunk.count(b"data: ") for chunk in want.chunks[-frames:]
        ]


@pytest.mark.anyio
async def test_refusals_while_ending_are_the_recorded_ones(tmp_path: Path) -> None:
    def probe(name: str, path: str, number: int = 0) -> str:
        summary = json.loads((DATA / "vllm_kill" / f"{name}.summary.json").read_text())
        return str([text for _, where, _, _, text in summary["probes"] if where == path][number])

    body = request("POST", "/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 4})
    for manner, name in (("abort", "A_sigterm_default"), ("drain", "B_sigterm_drain30")):
        program = Program("model_server", tmp_path, ["--startup", "0", "--sigterm", manner, "--pod-header", ""])
        try:
            port = await program.listening()
            running = await Client.send(port, request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 40}))
            await program.logged("received")
            program.process.terminate()
            await program.logged("sigterm")
            refusal = await fetch(port, body)
            assert (await get(port, "/health")).status == 200
            running.close()
        finally:
            program.kill()
        assert refusal.status == 500
        # The recording has only the end of each answer.
        assert refusal.data.decode().endswith(probe(name, "/v1/completions"))
        assert (refusal.header("connection") == "close") == (manner == "abort")
