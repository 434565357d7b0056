"""Whatever way the bytes of an answer are cut into reads, its row is the same but for the times."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaosrunner.http import Exchange, StreamClient, Timeouts, TransportError
from chaosrunner.http.http1 import Http1Response
from chaosrunner.probes.attempt import Attempts
from chaosrunner.probes.maker import RequestMaker
from chaosrunner.probes.self_check import LoopWatch
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Request
from tests.http.scripted import LAST_CHUNK, OK_SSE, chunk
from tests.probes.helpers import Rows, spec_for
from tests.probes.test_endings import ALL, CLOSED, FINISH, SHORT, TOKEN, body

TIMES = {
    "at", "sent", "connected", "headers", "first_byte", "last_byte", "first_token", "first_answer", "last_token",
    "chunks", "largest_gap",
}  # fmt: skip
READS = {"first_token_exact", "content_reads", "at_once"}
"""What a row says of the reads themselves."""


@dataclass
class Cut:
    """Carrier that brings an answer in given pieces, one a turn of the loop, and then the peer's close."""

    pieces: list[bytes]

    async def start(self, exchange: Exchange) -> None:
        loop = asyncio.get_running_loop()
        response = Http1Response(exchange.came, bodiless=False)
        exchange.timings.requested = exchange.timings.sent
        waiting = list(self.pieces)
        at = itertools.count(1)

        def bring() -> None:
            try:
                if not waiting:
                    response.end()
                    exchange.complete(0.0, properly=response.ended_properly)
                elif response.feed(float(next(at)), waiting.pop(0), True):
                    exchange.complete(0.0, properly=True)
                elif response.stopped:
                    exchange.complete(0.0, properly=False)
                else:
                    loop.call_soon(bring)
            except TransportError as error:
                exchange.fail(0.0, error)

        loop.call_soon(bring)

    def release(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@dataclass
class Cutting:
    """Stands for a client: the answer comes whatever is asked."""

    pieces: list[bytes]

    def stream(self, *_: object, **__: object) -> Exchange:
        return Exchange(Cut(self.pieces), Clock(), Timeouts())


def row_of(pieces: list[bytes]) -> dict[str, Any]:
    spec, rows, clock = spec_for("http://chat.example"), Rows(), Clock()
    attempts = Attempts(spec, rows.emit, clock, LoopWatch(clock))
    row = asyncio.run(attempts.send(cast(StreamClient, Cutting(pieces)), RequestMaker(spec).make(1)))
    rows.check()
    return {key: value for key, value in msgspec.structs.asdict(row).items() if key not in TIMES | READS}


def chunked(*payloads: str) -> bytes:
    return OK_SSE + b"".join(chunk(body(payload)) for payload in payloads)


ANSWERS = {
    "complete": chunked(*ALL) + LAST_CHUNK,
    "all in one chunk": OK_SSE + chunk(body(*ALL)) + LAST_CHUNK,
    "CRLF and comments": OK_SSE + chunk(b": ping\r\n\r\n" + body(*ALL).replace(b"\n", b"\r\n")) + LAST_CHUNK,
    "UTF-8": chunked(TOKEN.replace('"a"', '"äöü€😀"'), *ALL) + b"0;x=y\r\nx-sum: 1\r\n\r\n",
    "1xx": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + chunked(*ALL) + LAST_CHUNK,
    "no [DONE]": chunked(*ALL[:-1]) + LAST_CHUNK,
    "no terminal": chunked(TOKEN, "[DONE]") + LAST_CHUNK,
    "error": chunked(TOKEN, '{"error":{"message":"m","code":500}}', "[DONE]") + LAST_CHUNK,
    "abort": chunked(TOKEN, FINISH.replace("stop", "abort"), "[DONE]") + LAST_CHUNK,
    "cut": chunked(TOKEN, TOKEN),
    "complete, then cut": chunked(*ALL),
    "bad chunk": chunked(TOKEN) + b"xyz\r\n",
    "no line end": OK_SSE + b"3\r\n: a!!\r\n",
    "until close": CLOSED + body(*ALL),
    "short": SHORT + body(TOKEN),
    "JSON": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 17\r\n\r\n" + b'{"object":"list"}',
    "503": b"HTTP/1.1 503 Busy\r\nretry-after: 1\r\ncontent-length: 9\r\n\r\nno more x",
    "garbage": b"220 mail.example ESMTP\r\n",
    "half a head": OK_SSE[:40],
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_byte_by_byte(name: str) -> None:
    answer = ANSWERS[name]
    assert row_of([bytes([byte]) for byte in answer]) == row_of([answer])


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(1, 700), max_size=10))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_any_cutting(name: str, cuts: list[int]) -> None:
    answer = ANSWERS[name]
    borders = [0, *sorted({cut for cut in cuts if cut < len(answer)}), len(answer)]
    assert row_of([answer[a:b] for a, b in itertools.pairwise(borders)]) == row_of([answer])


def test_the_names_left_out_are_fields_of_the_row() -> None:
    assert set(Request.__struct_fields__) >= TIMES | READS
