"""Streams as language model servers and gateways really send them, each with its right outcome."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from chaosrunner.probes import Shape
from chaosrunner.timeline.outcomes import Outcome
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, answer, chunk
from tests.probes.helpers import ask_script

pytestmark = pytest.mark.anyio

ROLE = '{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
A = '{"choices":[{"index":0,"delta":{"content":"A"},"finish_reason":null}]}'
STOP = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = '{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
DONE = "[DONE]"
CHAT: dict[str, Any] = {"dialect": "chat"}


def delta(fields: str, finish: str = "null", index: int = 0) -> str:
    return f'{{"choices":[{{"index":{index},"delta":{fields},"finish_reason":{finish}}}]}}'


def wire(*payloads: str) -> bytes:
    return "".join(f"data: {payload}\n\n" for payload in payloads).encode()


def sent(data: bytes, head: bytes = OK_SSE, tail: bytes = LAST_CHUNK) -> Any:
    """A script that sends these bytes as one chunk, and then the end of the body."""

    async def script(conversation: Conversation) -> None:
        await conversation.write(head + (chunk(data) if data else b"") + tail)

    return script


@pytest.mark.parametrize(
    ("payloads", "outcome"),
    [
        # langroid/langroid#987: null where a delta should be
        ([ROLE, '{"choices":[{"index":0,"delta":null,"finish_reason":null}]}', A, STOP, USAGE, DONE], Outcome.COMPLETE),
        # Azure: the first frame has no choices but the results of its filter
        (['{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}', A, STOP, USAGE, DONE], Outcome.COMPLETE),
        ([delta('{"refusal":"I cannot"}'), STOP, USAGE, DONE], Outcome.COMPLETE),
        ([delta('{"reasoning_content":"hm"}'), STOP, USAGE, DONE], Outcome.COMPLETE),
        ([delta('{"tool_calls":[{"index":0}]}'), delta("{}", '"tool_calls"'), USAGE, DONE], Outcome.COMPLETE),
        ([delta('{"audio":{"data":"UklG"}}'), STOP, USAGE, DONE], Outcome.COMPLETE),
        # sgl-project/sglang#3912: an empty finish_reason is none
        ([delta('{"content":"A"}', '""'), USAGE, DONE], Outcome.UNTERMINATED_STREAM),
        # openvinotoolkit/model_server#4372: nothing but empty text
        ([ROLE, delta('{"content":""}'), STOP, USAGE, DONE], Outcome.EMPTY_COMPLETION),
        ([ROLE, STOP, USAGE, DONE], Outcome.EMPTY_COMPLETION),
        ([A, STOP, USAGE, USAGE, DONE, DONE], Outcome.COMPLETE),
        ([A, STOP, '{"choices":[],"usage":null}', USAGE, DONE], Outcome.COMPLETE),
        # A field of another type than the API says must not cost the frame its content or its end.
        ([delta('{"content":"A"}', '{"type":"stop","matched":2}'), USAGE, DONE], Outcome.COMPLETE),
        ([delta('{"content":"A"}', '{"type":"abort","message":"gone"}'), USAGE, DONE], Outcome.ABORTED),
        (['{"object":7,"choices":[{"delta":{"content":"A"},"finish_reason":"stop"}]}', USAGE, DONE], Outcome.COMPLETE),
        ([A, STOP, '{"choices":[],"usage":{"prompt_tokens":1.0,"completion_tokens":2.0}}', DONE], Outcome.COMPLETE),
        ([A, STOP, '{"choices":{},"usage":{"completion_tokens":2}}', DONE], Outcome.COMPLETE),
        ([A, STOP, USAGE, '{"error":null}', DONE], Outcome.COMPLETE),
        (['{"error":"","choices":[{"delta":{"content":"A"}}]}', STOP, USAGE, DONE], Outcome.COMPLETE),
        ([A, '{"error":{}}', DONE], Outcome.ERROR_IN_STREAM),
        ([A, '{"type":"error","error":{"type":"overloaded_error","message":"busy"}}', DONE], Outcome.ERROR_IN_STREAM),
        # OpenRouter: the error beside a choice that says so
        ([A, '{"error":{"code":502,"message":"m"},"choices":[{"delta":{},"finish_reason":"error"}]}', DONE],
         Outcome.ERROR_IN_STREAM),
        # DeepSeek and Zhipu: the server's own words for a generation that it broke off
        ([A, delta("{}", '"insufficient_system_resource"'), USAGE, DONE], Outcome.ABORTED),
        ([A, delta("{}", '"network_error"'), USAGE, DONE], Outcome.ERROR_IN_STREAM),
        ([A, delta("{}", '"canceled"'), USAGE, DONE], Outcome.ABORTED),
        # can1357/oh-my-pi#9433: [DONE] without a finish_reason is no end
        ([A, USAGE, DONE], Outcome.UNTERMINATED_STREAM),
        # vllm-project/vllm#57082
        ([A, delta("{}", '"abort"'), USAGE, DONE], Outcome.ABORTED),
    ],
)  # fmt: skip
async def test_frames(payloads: list[str], outcome: Outcome) -> None:
    request = await ask_script(sent(wire(*payloads)), **CHAT)
    assert request.outcome == outcome, request
    if outcome == Outcome.COMPLETE:
        assert (request.tokens, request.error) == (2, None)
        assert request.first_token is not None


@pytest.mark.parametrize(
    ("payloads", "outcome", "finish"),
    [
        ([delta('{"content":"A"}', '"stop"', 0), delta('{"content":"B"}', '"length"', 1)], Outcome.COMPLETE, None),
        ([delta('{"content":"A"}'), delta('{"content":"B"}', '"stop"', 1)], Outcome.UNTERMINATED_STREAM, None),
        ([delta('{"content":"A"}', '"stop"'), delta('{"content":"B"}', "null", 1)], Outcome.UNTERMINATED_STREAM, None),
        ([delta('{"content":"A"}', '"stop"'), delta("{}", '"abort"', 1)], Outcome.ABORTED, "abort"),
        ([delta('{"content":"A"}', '"abort"'), delta("{}", '"stop"', 1)], Outcome.ABORTED, "abort"),
        (
            ['{"choices":[{"index":0,"text":"A","finish_reason":"abort"},{"index":1,"finish_reason":"stop"}]}'],
            Outcome.ABORTED,
            "abort",
        ),
        (
            ['{"choices":[{"index":0,"text":"A","finish_reason":"stop"},{"index":1,"text":"B"}]}'],
            Outcome.UNTERMINATED_STREAM,
            "stop",
        ),
    ],
)
async def test_a_stream_of_several_choices_ends_when_each_has(
    payloads: list[str], outcome: Outcome, finish: str | None
) -> None:
    # openai/openai-python#434: with n > 1 the choices end at different times
    request = await ask_script(sent(wire(*payloads, USAGE, DONE)), shapes=(Shape(prompt="x", body={"n": 2}),), **CHAT)
    assert request.outcome == outcome, request
    assert finish is None or request.finish_reason == finish


async def test_a_fixed_length_is_asked_of_each_choice() -> None:
    shape = Shape(prompt="x", max_tokens=1, body={"n": 2})
    script = sent(wire(delta('{"content":"A"}', '"length"'), delta('{"content":"B"}', '"length"', 1), USAGE, DONE))
    request = await ask_script(script, fixed_length=True, shapes=(shape,), **CHAT)
    assert (request.outcome, request.expected_tokens) == (Outcome.COMPLETE, 2)


async def test_what_follows_done_is_not_read() -> None:
    # Every client stops at [DONE] (openai-python: `if sse.data.startswith("[DONE]"): break`).
    late = await ask_script(sent(wire(A, DONE, A, STOP, USAGE)), **CHAT)
    assert (late.outcome, late.tokens) == (Outcome.UNTERMINATED_STREAM, None)
    more = await ask_script(sent(wire(A, STOP, USAGE, DONE, USAGE.replace("2}", "9}"), A)), **CHAT)
    assert (more.outcome, more.tokens, len(more.chunks or ())) == (Outcome.COMPLETE, 2, 1)
    # An error is one wherever it stands.
    error = await ask_script(sent(wire(A, STOP, USAGE, DONE, '{"error":{"message":"m"}}')), **CHAT)
    assert error.outcome == Outcome.ERROR_IN_STREAM


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (wire(A, STOP, USAGE) + b"data: [DONE] \n\n", Outcome.COMPLETE),
        (wire(A, STOP, USAGE) + b"data:[DONE]\n\n", Outcome.COMPLETE),
        (wire(A, STOP, USAGE) + b"event: done\ndata: [DONE]\n\n", Outcome.COMPLETE),
        # The standard drops an event without its blank line: a [DONE] like that was not seen.
        (wire(A, STOP, USAGE) + b"data: [DONE]", Outcome.COMPLETE_MISSING_DONE),
        (wire(A, STOP, USAGE) + b"data: [DONE]\n", Outcome.COMPLETE_MISSING_DONE),
        (wire(A) + f"data: {STOP}".encode(), Outcome.UNTERMINATED_STREAM),
        (wire(A, STOP, USAGE, DONE).replace(b"\n", b"\r\n"), Outcome.COMPLETE),
        (wire(A, STOP, USAGE, DONE).replace(b"\n", b"\r"), Outcome.COMPLETE),
        (b"\xef\xbb\xbf" + wire(A, STOP, USAGE, DONE), Outcome.COMPLETE),
        (b": ping\n\n" * 5, Outcome.UNTERMINATED_STREAM),
        (b'event: ping\ndata: {"type": "ping"}\n\n' + wire(A, STOP, USAGE, DONE), Outcome.COMPLETE),
        (b"event: ping\ndata: ping\n\n" + wire(A, STOP, USAGE, DONE), Outcome.COMPLETE),
        # nothing of it is an event
        (wire(A, STOP, USAGE, DONE).replace(b"data: ", b""), Outcome.NOT_A_STREAM),
        (b"data: " + A.encode()[:20], Outcome.UNTERMINATED_STREAM),
        (wire(A) + b"event: error\ndata: Internal Server Error\n\n", Outcome.ERROR_IN_STREAM),
        (wire(A, STOP, USAGE) + b"event: error\ndata:\n\n" + wire(DONE), Outcome.ERROR_IN_STREAM),
        (wire(delta('{"content":"' + "x" * 1_000_000 + '"}'), STOP, USAGE, DONE), Outcome.COMPLETE),
    ],
)
async def test_framing(data: bytes, outcome: Outcome) -> None:
    request = await ask_script(sent(data), **CHAT)
    assert request.outcome == outcome, request


PLAIN_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"
TOO_MANY = b'{"error":{"message":"Rate limit","type":"rate_limit","code":429}}'


@pytest.mark.parametrize(
    ("script", "outcome", "error"),
    [
        # topcheer/ggcode#446, MiXaiLL76/auto_ai_router#149: an error object as the whole body of a 200
        (sent(TOO_MANY, PLAIN_HEAD + b"content-type: application/json\r\n\r\n"), Outcome.ERROR_IN_STREAM, "Rate limit"),
        (sent(TOO_MANY), Outcome.ERROR_IN_STREAM, "Rate limit"),
        (sent(wire(A) + TOO_MANY + b"\n"), Outcome.UNTERMINATED_STREAM, "no finish_reason"),
        (
            sent(b"<html><title>Log in</title></html>", PLAIN_HEAD + b"content-type: text/html\r\n\r\n"),
            Outcome.NOT_A_STREAM,
            "<html>",
        ),
        (sent(wire(A, STOP, USAGE, DONE), PLAIN_HEAD + b"content-type: text/plain\r\n\r\n"), Outcome.COMPLETE, None),
        (sent(wire(A, STOP, USAGE, DONE), PLAIN_HEAD + b"\r\n"), Outcome.COMPLETE, None),
        (sent(b"", b"HTTP/1.1 204 No Content\r\n\r\n", b""), Outcome.NOT_A_STREAM, "content-type absent"),
        (sent(wire(A, STOP, USAGE, DONE), OK_SSE, b"0\r\nx-time: 3\r\n\r\n"), Outcome.COMPLETE, None),
        (
            sent(wire(A, STOP, USAGE, DONE), b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK_SSE),
            Outcome.COMPLETE,
            None,
        ),
        (sent(wire(A, STOP, USAGE, DONE), b"HTTP/1.1 100 Continue\r\n\r\n" + OK_SSE), Outcome.COMPLETE, None),
        (sent(b"", answer("302 Found", b"", "location: /login"), b""), Outcome.HTTP_ERROR, "HTTP 302"),
    ],
)  # fmt: skip
async def test_answers_that_are_no_plain_stream(script: Any, outcome: Outcome, error: str | None) -> None:
    request = await ask_script(script, **CHAT)
    assert request.outcome == outcome, request
    assert (request.error or "").startswith(error or "") is True
    assert (request.error is None) == (error is None)


@pytest.mark.parametrize(
    ("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("x-unheard", gzip.compress)]
)
async def test_a_content_coding_that_nobody_asked_for(coding: str, pack: Any) -> None:
    # praxis-proxy/ai#668, btubbs/sseclient#27, Wei-Shaw/claude-relay-service#1030: compressed although identity was
    # asked for. A coding that we cannot read is no stream to us, never a stream that lacked its end.
    head = OK_SSE.replace(b"\r\n\r\n", f"\r\ncontent-encoding: {coding}\r\n\r\n".encode())
    request = await ask_script(sent(pack(wire(A, STOP, USAGE, DONE)), head), **CHAT)
    if coding == "x-unheard":
        assert (request.outcome, request.error) == (Outcome.NOT_A_STREAM, "content-encoding x-unheard")
    else:
        assert (request.outcome, request.tokens) == (Outcome.COMPLETE, 2)


async def test_compressed_bytes_without_a_header_are_no_stream() -> None:
    # Wei-Shaw/claude-relay-service#1039
    request = await ask_script(sent(gzip.compress(wire(A, STOP, USAGE, DONE))), **CHAT)
    assert request.outcome == Outcome.NOT_A_STREAM


async def test_keep_alives_of_a_plain_stream_are_no_tokens() -> None:
    data = b"event: ping\ndata: {}\n\n" + wire("a") + b"event: heartbeat\ndata: 1\n\n" + wire("end")
    request = await ask_script(sent(data), dialect="sse", shapes=(Shape(),), terminal_data="end")
    assert (request.outcome, len(request.chunks or ())) == (Outcome.COMPLETE, 1)
    only = await ask_script(sent(b"event: ping\ndata: {}\n\n"), dialect="sse", shapes=(Shape(),))
    assert only.outcome == Outcome.EMPTY_COMPLETION


@pytest.mark.parametrize(
    ("body", "outcome", "tokens"),
    [
        (b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}',
         Outcome.COMPLETE, 1),
        (b'{"choices":[{"message":{"content":null,"refusal":"no"},"finish_reason":"stop"}]}', Outcome.COMPLETE, None),
        (b'{"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"},'
         b'{"index":1,"message":{"content":"h"},"finish_reason":"abort"}]}', Outcome.ABORTED, None),
        (TOO_MANY, Outcome.ERROR_IN_STREAM, None),
        (b'{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}', Outcome.EMPTY_COMPLETION, None),
    ],
)  # fmt: skip
async def test_whole_answers(body: bytes, outcome: Outcome, tokens: int | None) -> None:
    head = PLAIN_HEAD + b"content-type: application/json\r\n\r\n"
    request = await ask_script(sent(body, head), stream=False, **CHAT)
    assert (request.outcome, request.tokens) == (outcome, tokens)
