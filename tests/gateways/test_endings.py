"""Streams that a server ends in every way, through real gateways: the outcome is the one that the recordings show."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from chaosrunner.probes import Limits
from chaosrunner.timeline.rows import Request
from tests.endings.server import DONE, ERROR, LAST, frame, usage
from tests.gateways.programs import PROGRAMS, Gateway, missing, running
from tests.gateways.recorded import Seen, recorded
from tests.http.scripted import OK_SSE, Conversation, answer, chunk, serve
from tests.probes.helpers import ask

pytestmark = pytest.mark.anyio

LIMITS = Limits(connect=5, first_byte=10, byte_idle=10, token_idle=15, total=30, linger=5)
WORDS = [frame(f" word{number}") for number in range(5)]
TAIL = [frame("", "length"), usage(5), DONE]
NO_LENGTH = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
SHORT = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 200\r\n\r\ndata: " + b"x" * 94
Script = Callable[[Conversation], Awaitable[None]]


async def _send(conversation: Conversation, head: bytes, pieces: list[bytes]) -> None:
    await conversation.write(head)
    for piece in pieces:
        await asyncio.sleep(0.03)
        await conversation.write(piece)


def _sends(head: bytes, pieces: list[bytes], then: str) -> Script:
    async def script(conversation: Conversation) -> None:
        await _send(conversation, head, pieces)
        await _end(conversation, then)

    return script


async def _end(conversation: Conversation, then: str) -> None:
    match then:
        case "fin":
            await conversation.fin()
        case "reset":
            await conversation.reset()
        case "hang":
            await conversation.reader.read()
            await conversation.fin()


def _chunks(pieces: list[bytes]) -> list[bytes]:
    return [chunk(piece) for piece in pieces]


def _only(data: bytes, then: str) -> Script:
    async def script(conversation: Conversation) -> None:
        await asyncio.sleep(0.03)
        if data:
            await conversation.write(data)
        await _end(conversation, then)

    return script


SCRIPTS: dict[str, Script] = {
    "ok": _sends(OK_SSE, [*_chunks(WORDS + TAIL), LAST], "keep"),
    "clean_end_no_done": _sends(OK_SSE, [*_chunks(WORDS), LAST], "keep"),
    "error_frame": _sends(OK_SSE, [*_chunks([*WORDS, ERROR, DONE]), LAST], "keep"),
    "fin_between_chunks": _sends(OK_SSE, _chunks(WORDS), "fin"),
    "sigkill_mid_chunk": _sends(OK_SSE, [*_chunks(WORDS), chunk(frame(" torn"))[:-30]], "fin"),
    "rst_between_chunks": _sends(OK_SSE, _chunks(WORDS), "reset"),
    "hang_mid_stream": _sends(OK_SSE, _chunks(WORDS), "hang"),
    "short_cl": _only(SHORT, "fin"),
    "eof_ok": _sends(NO_LENGTH, WORDS + TAIL, "fin"),
    "eof_sigkill": _sends(NO_LENGTH, WORDS, "fin"),
    "eof_rst": _sends(NO_LENGTH, WORDS, "reset"),
    "bad_chunk_size": _sends(OK_SSE, [*_chunks(WORDS), b"zz\r\nnonsense\r\n"], "fin"),
    "garbage": _only(b"SSH-2.0-OpenSSH_9.2\r\n", "fin"),
    "status?code=503": _only(answer("503 Service Unavailable", b'{"error":"busy"}'), "keep"),
    "fin_before_headers": _only(b"", "fin"),
    "rst_before_headers": _only(b"", "reset"),
    "hang_before_headers": _only(b"", "hang"),
}
"""By the recording's names. Of a process that is killed between two writes, the system ends the connection in order."""


def seen(row: Request) -> Seen:
    return Seen(row.outcome, row.status, row.content_chunks, row.done)  # type: ignore[arg-type]


async def through(gateway: Gateway, path: str, upstream: int) -> Seen:
    """One request."""
    headers = {"x-up": str(upstream)}
    row = await ask(gateway.url, path=f"/{path}", headers=headers, limits=LIMITS, http2=gateway.http2)
    return seen(row)


@pytest.mark.parametrize("name", PROGRAMS)
async def test_what_a_gateway_makes_of_it(name: str, tmp_path: Path) -> None:
    if (reason := missing(name)) is not None:
        pytest.skip(reason)
    meant = {mode: row for mode, row in recorded(name).items() if mode in {*SCRIPTS, "REFUSED"}}
    assert len(meant) > 4
    found: dict[str, Seen] = {}

    async def script(conversation: Conversation) -> None:
        await SCRIPTS[conversation.path[1:]](conversation)

    with running(name, tmp_path) as gateway:
        async with serve(script, port=gateway.upstreams[0]), anyio.create_task_group() as tasks:

            async def note(mode: str) -> None:
                found[mode] = await through(gateway, mode, 1 if mode == "REFUSED" else 0)

            for mode in meant:
                tasks.start_soon(note, mode)
    assert found == meant
