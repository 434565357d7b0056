"""Every way in which a request can end, from a socket to its row."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from chaosrunner.probes import Expect, Limits, Overrides, Shape, probe_once
from chaosrunner.probes.spec import CancelAfter
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import RequestHeaders, Row
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, answer, chunk, serve
from tests.probes.helpers import QUICK, Rows, ask, ask_script, run_until, spec_for

pytestmark = pytest.mark.anyio

TOKEN = '{"choices":[{"index":0,"text":"a","finish_reason":null}]}'
FINISH = '{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}'
USAGE = '{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
DONE = "[DONE]"
ALL = (TOKEN, TOKEN, FINISH, USAGE, DONE)


def stream(*payloads: str, end: Callable[[Conversation], Awaitable[Any]] | None = None, head: bytes = OK_SSE) -> Any:
    """A script: headers, events, then `end`; the last chunk where there is none."""

    async def script(conversation: Conversation) -> None:
        await conversation.write(head)
        await conversation.events(*payloads)
        if end is None:
            await conversation.write(LAST_CHUNK)
        else:
            await end(conversation)

    return script


def plain(data: bytes, *, close: bool = False) -> Any:
    async def script(conversation: Conversation) -> None:
        await conversation.write(data)
        if close:
            await conversation.fin()

    return script


async def silence(_: Conversation) -> None:
    await asyncio.sleep(10)


async def bad_chunk(conversation: Conversation) -> None:
    await conversation.write(b"xyz\r\n")


CLOSED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
SHORT = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 5000\r\n\r\n"


def body(*payloads: str) -> bytes:
    return "".join(f"data: {payload}\n\n" for payload in payloads).encode()


@pytest.mark.parametrize(
    ("script", "outcome", "error"),
    [
        (stream(*ALL), Outcome.COMPLETE, None),
        (stream(*ALL[:-1]), Outcome.COMPLETE_MISSING_DONE, "no [DONE]"),
        (stream(TOKEN, FINISH, DONE), Outcome.COMPLETE_MISSING_DONE, "usage was asked for and did not come"),
        (stream(*ALL, end=Conversation.fin), Outcome.COMPLETE_MISSING_DONE, "complete, but then missing_last_chunk"),
        (stream(*ALL, end=Conversation.reset), Outcome.COMPLETE_MISSING_DONE, "complete, but then reset: ECONNRESET"),
        (stream(*ALL, end=silence), Outcome.COMPLETE_MISSING_DONE, "complete, but then the body did not end"),
        (stream(FINISH, USAGE, DONE), Outcome.EMPTY_COMPLETION, None),
        (stream(TOKEN, DONE), Outcome.UNTERMINATED_STREAM, "no finish_reason"),
        (stream(TOKEN), Outcome.UNTERMINATED_STREAM, "no finish_reason"),
        (stream(), Outcome.UNTERMINATED_STREAM, "no finish_reason"),
        (stream(TOKEN, FINISH.replace("stop", "abort"), USAGE, DONE), Outcome.ABORTED, "finish_reason abort"),
        (stream(TOKEN, '{"error":{"message":"m","code":500}}', DONE), Outcome.ERROR_IN_STREAM, "m"),
        (stream(TOKEN, '{"error":{"message":"m"}}', end=silence), Outcome.ERROR_IN_STREAM, "m"),
        (stream(TOKEN, end=Conversation.reset), Outcome.CUT_STREAM, "reset: ECONNRESET"),
        (stream(TOKEN, end=Conversation.fin), Outcome.CUT_STREAM, "missing_last_chunk: peer closed"),
        (stream(TOKEN, FINISH, end=Conversation.fin), Outcome.CUT_STREAM, "missing_last_chunk: peer closed"),
        (stream(TOKEN, end=bad_chunk), Outcome.CUT_STREAM, "bad_chunk: "),
        (stream(TOKEN, end=silence), Outcome.STALLED_STREAM, "no byte within the limit"),
        (plain(SHORT + body(TOKEN), close=True), Outcome.CUT_STREAM, "short_body: "),
        # A body that is delimited by the close looks clean to any client: only the terminal frame tells.
        (plain(CLOSED + body(TOKEN), close=True), Outcome.UNTERMINATED_STREAM, "no finish_reason"),
        (plain(CLOSED + body(*ALL), close=True), Outcome.COMPLETE, None),
        (plain(answer("200 OK", b'{"object":"list"}', "content-type: application/json")), Outcome.NOT_A_STREAM, "{"),
        (plain(answer("200 OK", b"", "content-type: text/html")), Outcome.NOT_A_STREAM, "content-type text/html"),
        (plain(answer("200 OK", body(*ALL), "content-type: text/plain")), Outcome.COMPLETE, None),
        (plain(answer("429 Too Many Requests", b"slow down")), Outcome.REJECTED, "slow down"),
        (plain(answer("503 Service Unavailable", b"", "retry-after: 1")), Outcome.REJECTED, "HTTP 503"),
        (plain(answer("503 Service Unavailable", b"no healthy upstream")), Outcome.HTTP_ERROR, "no healthy upstream"),
        (plain(answer("500 Internal Server Error", b"x" * 5000)), Outcome.HTTP_ERROR, "x" * 2048),
        (plain(answer("307 Temporary Redirect", b"", "location: /")), Outcome.HTTP_ERROR, "HTTP 307"),
        (plain(b"HTTP/1.1 502 Bad\r\ncontent-length: 9\r\n\r\nno upst", close=True), Outcome.HTTP_ERROR, "no upst"),
        (Conversation.reset, Outcome.CONNECT_RESET, "ECONNRESET"),
        (Conversation.fin, Outcome.NO_RESPONSE, "Server disconnected"),
        (silence, Outcome.NO_RESPONSE, "no headers within 0.4 s"),
    ],
)  # fmt: skip
async def test_endings(script: Any, outcome: Outcome, error: str | None) -> None:
    request = await ask_script(script)
    assert request.outcome == outcome
    assert (request.error or "").startswith(error or "")
    assert (request.error is None) == (error is None)
    if outcome == Outcome.HTTP_ERROR:
        assert len(request.error or "") <= 2048


async def test_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    request = await ask(f"http://127.0.0.1:{port}")
    assert (request.outcome, request.status, request.headers) == (Outcome.CONNECT_REFUSED, None, None)


async def test_local_faults_and_tls() -> None:
    assert (await ask("http://no-such-host.invalid")).outcome == Outcome.PROBER_FAULT
    async with serve(silence) as server:
        tls = await ask(server.url.replace("http:", "https:"))
    assert tls.outcome == Outcome.CONNECT_TIMEOUT
    async with serve(plain(b"this is not TLS\r\n\r\n")) as server:
        listener = await asyncio.start_server(lambda _, writer: writer.write(b"220 not TLS\r\n"), "127.0.0.1", 0)
        async with listener:
            port = listener.sockets[0].getsockname()[1]
            tls = await ask(f"https://127.0.0.1:{port}")
    assert tls.outcome == Outcome.TLS_ERROR


async def test_comments_break_the_byte_silence_but_not_the_token_silence() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await conversation.events(TOKEN)
        for _ in range(40):
            await conversation.write(chunk(b": ping\n\n"))
            await asyncio.sleep(0.1)

    request = await ask_script(script)
    assert (request.outcome, request.error) == (Outcome.STALLED_STREAM, "no token within the limit")
    assert request.last_token is not None
    assert 0.75 < request.at - request.last_token < 1.2
    assert request.comments >= 6


async def test_the_token_silence_counts_from_the_headers_and_ends_with_the_terminal_frame() -> None:
    async def no_token(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        for _ in range(40):
            await conversation.write(chunk(b": ping\n\n"))
            await asyncio.sleep(0.1)

    assert (await ask_script(no_token)).outcome == Outcome.STALLED_STREAM

    async def slow_usage(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await conversation.events(TOKEN, FINISH)
        for _ in range(10):
            await conversation.write(chunk(b": ping\n\n"))
            await asyncio.sleep(0.1)
        await conversation.events(USAGE, DONE)
        await conversation.write(LAST_CHUNK)

    assert (await ask_script(slow_usage)).outcome == Outcome.COMPLETE


async def test_the_total_limit() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await conversation.events(*[TOKEN] * 100, gap=0.05)

    limits = Limits(total=0.5)
    request = await ask_script(script, limits=limits)
    assert request.outcome == Outcome.DEADLINE_EXCEEDED
    assert 0.49 < request.at - request.sent < 0.8
    assert (await ask_script(silence, limits=limits)).outcome == Outcome.DEADLINE_EXCEEDED


def hold_up(when: type[Row], delay: float, seconds: float, rows: Rows) -> Callable[[Row], None]:
    """An emit after which the loop stands still: `delay` after a row of that type, for so many seconds."""

    def emit(row: Row) -> None:
        rows.emit(row)
        if isinstance(row, when):
            if delay:
                asyncio.get_running_loop().call_later(delay, time.sleep, seconds)
            else:
                time.sleep(seconds)

    return emit


async def test_the_end_is_when_the_last_byte_came() -> None:
    whole = OK_SSE + b"".join(chunk(body(payload)) for payload in ALL) + LAST_CHUNK
    async with serve(plain(whole)) as server:
        rows = Rows()
        emit = hold_up(RequestHeaders, 0.0, 0.3, rows)
        request = await probe_once(spec_for(server.url), Overrides(), Expect(), emit, Clock())
    assert request.outcome == Outcome.COMPLETE
    assert request.at == request.last_token == request.headers, "all came in one receive"


@pytest.mark.parametrize(
    ("script", "after", "limits", "outcome"),
    [
        (stream(TOKEN, end=silence), 0.4, QUICK, Outcome.STALLED_STREAM),
        (stream(*ALL, end=silence), 0.3, QUICK, Outcome.COMPLETE_MISSING_DONE),
        (stream(TOKEN, end=silence), 0.4, replace(QUICK, byte_idle=9, token_idle=0.4), Outcome.STALLED_STREAM),
    ],
)
async def test_the_end_is_when_a_limit_passed(script: Any, after: float, limits: Limits, outcome: Outcome) -> None:
    async with serve(script) as server:
        rows = Rows()
        emit = hold_up(RequestHeaders, 0.2, 0.5, rows)
        request = await probe_once(spec_for(server.url, limits=limits), Overrides(), Expect(), emit, Clock())
    assert request.outcome == outcome
    assert request.last_token is not None
    assert request.at - request.last_token == pytest.approx(after, abs=0.02)


@pytest.mark.parametrize("changes", [
    {"limits": Limits(total=0.35)},
    {"limits": Limits(), "shapes": (Shape(prompt="hello", max_tokens=8, cancel_after=CancelAfter(time=0.35)),)},
])  # fmt: skip
async def test_an_answer_that_is_over_when_a_limit_passes_is_judged_by_its_end(changes: dict[str, Any]) -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await asyncio.sleep(0.1)
        conversation.writer.write(b"".join(chunk(body(payload)) for payload in ALL) + LAST_CHUNK)
        time.sleep(0.4)  # noqa: ASYNC251 - then the loop, which is the probe's too, finds the answer and the timer

    request = await ask_script(script, **changes)
    assert (request.outcome, request.limit) == (Outcome.COMPLETE, None)
    assert request.at == request.last_token


async def test_a_choice_that_begins_late_has_the_silence_of_before() -> None:
    role = '{"choices":[{"index":1,"delta":{"role":"assistant"}}]}'
    limits = Limits(first_byte=2, byte_idle=2, token_idle=0.5, total=5, linger=2)

    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await conversation.events(TOKEN, FINISH)
        await conversation.events(*(["{}"] * 3), gap=0.1)
        await conversation.events(role)
        await silence(conversation)

    request = await ask_script(script, limits=limits)
    assert request.limit == "token_idle"
    assert request.last_token is not None
    assert request.at - request.last_token == pytest.approx(0.5, abs=0.01)


async def test_a_whole_answer_may_take_as_long_as_the_total_limit() -> None:
    async def script(conversation: Conversation) -> None:
        await asyncio.sleep(0.8)
        whole = b'{"choices":[{"text":"hi","finish_reason":"stop"}],"usage":{"completion_tokens":1}}'
        await conversation.write(answer("200 OK", whole))

    request = await ask_script(script, stream=False)
    assert (request.outcome, request.tokens, request.first_token) == (Outcome.COMPLETE, 1, None)
    assert request.first_byte is not None


async def test_plain_streams_and_their_terminal_rule() -> None:
    plain_sse: dict[str, Any] = {"dialect": "sse", "shapes": (Shape(),)}
    ended = stream("a", "b", "end")
    assert (await ask_script(ended, **plain_sse)).outcome == Outcome.COMPLETE
    assert (await ask_script(ended, **plain_sse, terminal_data="end")).outcome == Outcome.COMPLETE
    assert (await ask_script(ended, **plain_sse, terminal_event="done")).outcome == Outcome.UNTERMINATED_STREAM
    cut = stream("a", end=Conversation.fin)
    assert (await ask_script(cut, **plain_sse, terminal_data="end")).outcome == Outcome.CUT_STREAM


async def test_the_serving_pod_comes_from_a_header() -> None:
    head = OK_SSE.replace(b"\r\n\r\n", b"\r\nX-Served-By: chat-7\r\n\r\n")
    async with serve(stream(*ALL, head=head)) as server:
        rows = Rows()
        await run_until(spec_for(server.url, pod_header="x-served-by"), 1, rows)
        request = rows.requests[0]
        assert (request.pod, rows.headers[0].pod) == ("chat-7", "chat-7")
        assert rows.headers[0].at == request.headers
        assert rows.headers[0].remote == request.remote
        assert rows.sent[0].at == request.sent
        assert request.remote == server.url.removeprefix("http://")
        assert request.connection == server.seen[0].peer


async def test_secrets_stay_out_of_error_texts() -> None:
    key, cookie = "sk-very-secret", "session=abc"

    async def script(conversation: Conversation) -> None:
        echoed = f"bad key {conversation.headers['authorization']} {key} {conversation.headers['cookie']}"
        await conversation.write(answer("401 Unauthorized", echoed.encode()))

    request = await ask_script(script, api_key=key, headers={"cookie": cookie})
    assert request.error == "bad key Bearer [redacted] [redacted] [redacted]"
    error = '{"error":{"message":"token sk-very-secret is no good"}}'
    request = await ask_script(stream(error), headers={"x-api-key": key})
    assert request.error == "token [redacted] is no good"


async def test_ready_is_not_warm() -> None:
    # vllm-project/vllm#39790, sgl-project/sglang#14685: one times out, one is slow, then all is fast
    delays = iter([5.0, 0.3, 0.02, 0.02, 0.02])

    async def script(conversation: Conversation) -> None:
        await asyncio.sleep(next(delays))
        await stream(*ALL)(conversation)

    async with serve(script) as server:
        rows = Rows()
        await run_until(spec_for(server.url, limits=QUICK), 5, rows)
    outcomes = [request.outcome for request in rows.requests]
    assert outcomes == [Outcome.NO_RESPONSE] + [Outcome.COMPLETE] * 4
    ttft = [request.first_token - request.sent for request in rows.requests if request.first_token is not None]
    assert 0.29 < ttft[0] < 0.4
    assert all(0.015 < value < 0.2 for value in ttft[1:])


async def test_a_path_that_buffers_shows_in_the_chunk_times() -> None:
    # dstackai/dstack#4269: a gateway that holds everything back; all chunks then share one receive time
    async def script(conversation: Conversation) -> None:
        await asyncio.sleep(0.2)
        await conversation.write(OK_SSE + b"".join(chunk(body(payload)) for payload in ALL) + LAST_CHUNK)

    request = await ask_script(script)
    assert request.outcome == Outcome.COMPLETE
    assert request.largest_gap is not None
    assert request.largest_gap < 0.02
    assert request.first_token is not None
    assert request.first_token - request.sent > 0.19
