"""Recorded answers of a real vLLM, served again byte by byte with their read boundaries, in a tenth of the time."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.probes import Limits, Shape
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Request
from tests.http.scripted import Conversation, serve
from tests.probes.helpers import ask

pytestmark = pytest.mark.anyio
DATA = Path(__file__).parent.parent / "data"
PACE = 0.1


async def replay(recording: str, *, pace: float = PACE, **changes: Any) -> Request:
    raw = (DATA / f"{recording}.bin").read_bytes()
    recv: list[tuple[float, int]] = json.loads((DATA / f"{recording}.json").read_text())["recv"]

    async def script(conversation: Conversation) -> None:
        start = asyncio.get_running_loop().time()
        offset = 0
        for at, size in recv:
            ahead = start + at * pace - asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, ahead))
            await conversation.write(raw[offset : offset + size])
            offset += size
        await conversation.fin()

    async with serve(script) as server:
        return await ask(server.url, **{"limits": Limits(), **changes})


def frames_of(recording: str) -> list[Any]:
    """The JSON frames of a recorded stream, read in the plainest way (its chunks are never cut within an event)."""
    raw = (DATA / f"{recording}.bin").read_text("utf-8")
    return [
        json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: ") and line.strip() != "data: [DONE]"
    ]


@pytest.mark.parametrize(
    ("recording", "outcome", "finish_reason", "done"),
    [
        ("A_sigterm_default", Outcome.ABORTED, "abort", True),
        ("B_sigterm_drain30", Outcome.COMPLETE, "length", True),
        ("C_sigterm_drain3_exceeded", Outcome.ERROR_IN_STREAM, None, True),
        ("D_sigkill_api", Outcome.CUT_STREAM, None, False),
        ("E_sigkill_enginecore", Outcome.ERROR_IN_STREAM, None, True),
        ("F_sigkill_worker", Outcome.ERROR_IN_STREAM, None, True),
        ("G_sigstop_cont_enginecore", Outcome.COMPLETE, "length", True),
        ("H_sigint", Outcome.ERROR_IN_STREAM, None, True),
    ],
)
async def test_streams_of_a_server_that_is_hit(
    recording: str, outcome: Outcome, finish_reason: str | None, done: bool
) -> None:
    name = f"vllm_kill/{recording}_stream0"
    summary = json.loads((DATA / f"vllm_kill/{recording}.summary.json").read_text())["rows"][0]
    request = await replay(name)
    frames = frames_of(name)
    texts = [frame for frame in frames if any(choice["text"] for choice in frame.get("choices", ()))]
    usages = [frame["usage"]["completion_tokens"] for frame in frames if frame.get("usage")]
    assert request.outcome == outcome
    assert request.status == 200
    assert (request.finish_reason, request.done) == (finish_reason, done)
    assert request.done == summary["done"]
    assert request.ended_properly == summary["term_chunk"]
    assert request.events == len(frames) + done
    assert request.chunks is not None
    assert len(request.chunks) == len(texts)
    assert request.tokens == (usages[-1] if usages else None)
    if outcome == Outcome.ERROR_IN_STREAM:
        assert request.error_code == 500
        assert request.error is not None
        assert request.error.startswith("EngineCore encountered an issue")
    if outcome == Outcome.CUT_STREAM:
        assert request.error is not None
        assert request.error.startswith("missing_last_chunk")


async def test_a_stopped_engine_is_a_stall_where_the_limit_is_shorter_than_the_stop() -> None:
    request = await replay("vllm_kill/G_sigstop_cont_enginecore_stream0", limits=Limits(byte_idle=0.4))
    assert request.outcome == Outcome.STALLED_STREAM
    assert request.error == "no byte within the limit"
    assert request.chunks is not None
    assert 0.39 < request.at - request.chunks[-1] < 0.6


@pytest.mark.parametrize(
    ("recording", "changes", "tokens"),
    [
        ("completions_stream", {}, 8),
        ("completions_stream_200", {}, 200),
        ("completions_stream_continuous_usage", {}, 3),
        ("completions_stream_nousage", {"include_usage": False}, None),
        ("chat_stream", {"dialect": "chat"}, 8),
        ("chat_nonstream", {"dialect": "chat", "stream": False}, 4),
        ("first_completion", {"stream": False}, 4),
    ],
)
async def test_whole_answers(recording: str, changes: dict[str, Any], tokens: int | None) -> None:
    request = await replay(f"vllm/{recording}", **changes)
    assert request.outcome == Outcome.COMPLETE
    assert (request.tokens, request.finish_reason) == (tokens, "length")
    if changes.get("stream", True):
        texts = [choice["text"] if "text" in choice else choice["delta"]["content"]
                 for frame in frames_of(f"vllm/{recording}") for choice in frame["choices"]]  # fmt: skip
        assert request.chunks is not None
        assert len(request.chunks) == sum(map(bool, texts)), "chunks with text, not tokens"
        assert request.first_token == request.chunks[0]
        assert request.largest_gap == (
            max(b - a for a, b in itertools.pairwise(request.chunks)) if len(request.chunks) > 1 else None
        )


async def test_length_is_judged_by_usage() -> None:
    shapes = (Shape(prompt="hello", max_tokens=8),)
    request = await replay("vllm/chat_stream", dialect="chat", shapes=shapes, fixed_length=True)
    assert (request.outcome, request.expected_tokens) == (Outcome.COMPLETE, 8)
    shapes = (Shape(prompt="hello", max_tokens=9),)
    request = await replay("vllm/chat_stream", dialect="chat", shapes=shapes, fixed_length=True)
    assert (request.outcome, request.error) == (Outcome.WRONG_LENGTH, "8 tokens instead of 9")


async def test_usage_that_was_asked_for_and_did_not_come_is_a_warning() -> None:
    request = await replay("vllm/completions_stream_nousage")
    assert (request.outcome, request.error) == (
        Outcome.COMPLETE_MISSING_DONE,
        "usage was asked for and did not come",
    )


@pytest.mark.parametrize("recording", sorted(path.stem for path in (DATA / "vllm").glob("err_*.bin")))
async def test_refusals(recording: str) -> None:
    raw = (DATA / "vllm" / f"{recording}.bin").read_bytes().decode()
    request = await replay(f"vllm/{recording}")
    assert request.outcome == Outcome.HTTP_ERROR
    assert request.status == int(raw.split(" ")[1])
    assert request.error == raw.partition("\r\n\r\n")[2]
    assert request.ended_properly


async def test_an_answer_that_is_no_stream_where_one_was_asked_for() -> None:
    request = await replay("vllm/chat_nonstream", dialect="chat")
    assert request.outcome == Outcome.NOT_A_STREAM
    assert request.error is not None
    assert request.error.startswith('{"id":"chatcmpl-')


async def test_an_empty_health_answer_is_complete_for_plain_http() -> None:
    request = await replay("vllm/get_health", dialect="http", shapes=(Shape(),))
    assert (request.outcome, request.status, request.size) == (Outcome.COMPLETE, 200, 0)
