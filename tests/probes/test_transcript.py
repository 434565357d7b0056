"""What is added up of one answer: instants, terminal facts, and that reads may be cut anywhere."""

from __future__ import annotations

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.probes.dialects import OpenAI
from chaosrunner.probes.transcript import Transcript

DATA = Path(__file__).parent.parent / "data"


def read(*reads: bytes) -> Transcript:
    """Reads that come at 1, 2, 3 ... seconds."""
    transcript = Transcript(OpenAI(), "events")
    for at, data in enumerate(reads, 1):
        transcript.feed(float(at), data)
    transcript.end()
    return transcript


def test_an_error_object_before_a_polite_done() -> None:
    # vllm-project/guidellm#743, apache/rocketmq-dashboard#2178, huggingface/text-generation-inference#2668
    answer = read(
        b'data: {"error":{"message":"TimeoutError","type":"GatewayTimeout","code":504}}\n\n', b"data: [DONE]\n\n"
    )
    assert answer.error is not None
    assert (answer.error.code, answer.error.text) == (504, "TimeoutError")
    assert (answer.first_token, answer.usage, answer.done) == (None, None, True)
    named = read(b"event: error\ndata: engine died\n\n")
    assert named.error is not None
    assert named.error.text == "engine died"


def test_the_last_usage_wins() -> None:
    # router-for-me/CLIProxyAPI#3077, XSpoonAi/spoon-core#179, vllm-project/vllm#35705
    answer = read(
        b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":0}}\n\n',
        b'data: {"choices":[{"delta":{"content":"."},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n',
        b"data: [DONE]\n\n",
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
    assert (answer.finish_reason, answer.done, answer.events) == ("stop", True, 4)
    assert (answer.first_token, answer.last_token, answer.largest_gap, answer.settled) == (1.0, 2.0, 1.0, 4.0)


def test_role_reasoning_and_tool_frames() -> None:
    answer = read(
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        b": ping\n\n",
        b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choices":[{"delta":{"content":"b"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":""},"finish_reason":"tool_calls"}]}\n\n',
    )
    assert (answer.first_byte, answer.first_token, answer.first_answer, answer.last_token) == (1.0, 3.0, 4.0, 4.0)
    assert answer.chunks == [3.0, 4.0, 4.0]
    assert (answer.events, answer.comments) == (5, 1)


def test_a_bad_finish_stays() -> None:
    answer = read(
        b'data: {"choices":[{"text":"","finish_reason":"abort"}]}\n\n',
        b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\n',
    )
    assert answer.finish_reason == "abort"


def test_chunk_times_are_optional_and_the_gap_stays() -> None:
    transcript = Transcript(OpenAI(), "events", record_chunks=False)
    for at in (1.0, 1.5, 4.0):
        transcript.feed(at, b'data: {"choices":[{"text":"a"}]}\n\n')
    assert transcript.chunks is None
    assert transcript.largest_gap == 2.5


def test_an_endless_line_ends_the_reading() -> None:
    transcript = Transcript(OpenAI(), "events")
    assert transcript.feed(0.0, b"data: " + b"x" * (1 << 20))
    assert not transcript.feed(0.0, b"x" * (4 << 20))
    assert transcript.too_long is not None


def facts(transcript: Transcript) -> dict[str, object]:
    hidden = {"_framing", "_dialect", "_read", "content_reads"}
    return {name: value for name, value in vars(transcript).items() if name not in hidden} | {
        "comments": transcript.comments
    }


def body_of(path: Path) -> bytes:
    """The body of a recorded answer, its chunks put together."""
    rest = path.read_bytes().partition(b"\r\n\r\n")[2]
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            return body
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]


RECORDED = body_of(DATA / "vllm" / "chat_stream.bin")


@given(st.lists(st.integers(0, len(RECORDED)), max_size=30))
def test_reads_cut_anywhere_give_the_same(cuts: list[int]) -> None:
    whole, parts = (Transcript(OpenAI(), "events") for _ in range(2))
    whole.feed(1.0, RECORDED)
    for start, end in itertools.pairwise([0, *sorted(cuts), len(RECORDED)]):
        parts.feed(1.0, RECORDED[start:end])
    assert facts(parts) == facts(whole)
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.finish_reason, whole.done) == (8, "length", True)
