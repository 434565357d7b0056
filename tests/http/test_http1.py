"""The HTTP/1.1 parser on its own: every way to frame an answer, and every way to cut it into reads."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.http.errors import NoResponse, StreamCut, TransportError
from chaosrunner.http.headers import Headers
from chaosrunner.http.http1 import LONGEST_HEAD, LONGEST_SIZE_LINE, Http1Response, OnData

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WIKI = b"4\r\nWiki\r\n6\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n"


@dataclass
class Answer:
    """What a parser made of some reads."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    calls: int = 0
    ended: bool | None = False
    keep_alive: bool | None = None
    error: str | None = None

    def came(self, at: float, status: int, headers: Headers) -> OnData:
        assert self.status is None
        self.status, self.headers = status, dict(headers)
        return self.data

    def data(self, at: float, data: bytes, exact: bool) -> bool:
        assert data
        self.body += data
        self.calls += 1
        return True


def parse(*reads: bytes, bodiless: bool = False, close: bool = False) -> Answer:
    answer = Answer()
    parser = Http1Response(answer.came, bodiless=bodiless)
    try:
        complete = False
        for read in reads:
            assert not complete, "complete, and yet more was read"
            complete = parser.feed(0.0, read, True)
        if close and not complete:
            parser.end()
    except TransportError as error:
        answer.error = f"{error.kind}: {error}" if isinstance(error, StreamCut) else f"none: {error}"
        return answer
    answer.ended = parser.ended_properly
    answer.keep_alive = parser.keep_alive if parser.complete else None
    return answer


@pytest.mark.parametrize(
    ("reads", "body", "ended", "keep_alive"),
    [
        (CHUNKED + WIKI + b"0\r\n\r\n", b"Wikipedia in \r\n\r\nchunks.", True, True),
        (CHUNKED + b"4 ;a=1;b=\"x;y\"\r\nWiki\r\n000;last\r\n\r\n", b"Wiki", True, True),
        (CHUNKED + b"00004\t\r\nWiki\r\n0\r\nExpires: never\r\nX-Sum: 1 2\r\n\r\n", b"Wiki", True, True),
        (CHUNKED + b"aB\r\n" + b"x" * 171 + b"\r\n0\r\n\r\n", b"x" * 171, True, True),
        (CHUNKED + b"0\r\n\r\n", b"", True, True),
        (CHUNKED + WIKI, b"Wikipedia in \r\n\r\nchunks.", False, None),
        (CHUNKED + WIKI + b"0\r\n", b"Wikipedia in \r\n\r\nchunks.", False, None),
        (CHUNKED + b"4\r\nWiki\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", b"Wiki", True, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nWiki", b"Wiki", True, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4, 4\r\ncontent-length:4\r\n\r\nWiki", b"Wiki", True, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nWik", b"Wik", False, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nWikipedia", b"Wiki", True, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: Close\r\n\r\nWiki", b"Wiki", True, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nWiki", b"Wiki", True, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\nWiki", b"Wiki", True, True),
        # RFC 9112, section 6.3: transfer coding goes before length, and such a connection is not trusted with more.
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"", True, False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n1\r\nz\r\n0\r\n\r\n", b"z", True, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nuntil close", b"until close", None, None),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil close", b"until close", None, None),
        (b"HTTP/1.1 200\r\n\r\nno reason", b"no reason", None, None),
        (b"HTTP/1.1 200 OK\nContent-Length: 4\n\nWiki", b"Wiki", True, True),
        (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\tc\r\nContent-Length: 4\r\n\r\nWiki", b"Wiki", True, True),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n", b"", True, True),
        (b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", b"", True, True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + CHUNKED + b"0\r\n\r\n",
         b"", True, True),
    ],
)  # fmt: skip
def test_framing(reads: bytes, body: bytes, ended: bool | None, keep_alive: bool | None) -> None:
    answer = parse(reads)
    assert answer.error is None
    assert (answer.body, answer.ended, answer.keep_alive) == (body, ended, keep_alive)
    assert answer.calls <= 1, "one call for each read"


def test_header_fields() -> None:
    answer = parse(
        b"HTTP/1.1 200 OK\r\nX-One:  a b \r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nEmpty:\r\nFold: a\r\n  b\r\n\r\n"
    )
    assert answer.headers == {"x-one": "a b", "set-cookie": "a=1, b=2", "empty": "", "fold": "a b"}
    headers = Headers([(b"X-One", b"a")])
    assert (headers["x-ONE"], headers.get("x-two"), "X-oNe" in headers, len(headers)) == ("a", None, True, 1)


@pytest.mark.parametrize(
    "line",
    [b"x:" + b" " * 60_000 + b"\0", b"x: a" + b" " * 60_000 + b"b", b"x: a" + b" \t" * 30_000 + b"\n" + b" " * 30_000],
)
def test_spaces_in_a_header_field_cost_no_more_than_other_bytes(line: bytes) -> None:
    began = time.process_time()
    with contextlib.suppress(NoResponse):
        parse(b"HTTP/1.1 200 OK\r\n" + line + b"\r\n\r\n")
    assert time.process_time() - began < 1.0  # seconds; it was hours


def test_an_answer_to_head_has_no_body() -> None:
    answer = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", bodiless=True)
    assert (answer.ended, answer.keep_alive, answer.headers) == (True, True, {"content-length": "4"})


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "none: Server disconnected"),
        (b"HTTP/1.1 200 OK\r\nContent-", "none: peer closed the connection amid the headers"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "none: Server disconnected"),
        (b"220 mail.example ESMTP\r\n", "none: no HTTP/1 status line: b'220 mail.example ESMTP'"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "none: no HTTP/1 status line"),
        (b"HTTP/2.0 200 OK\r\n\r\n", "none: no HTTP/1 status line"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "none: no HTTP/1 status line"),
        (b"HTTP/1.1  200 OK\r\n\r\n", "none: no HTTP/1 status line"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "none: no HTTP/1 status line"),
        (b"\r\nHTTP/1.1 200 OK\r\n\r\n", "none: no HTTP/1 status line"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "none: HTTP 101"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 33, "none: more than 32 interim answers"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "none: no header field: b'no colon'"),
        (b"HTTP/1.1 200 OK\r\nname : value\r\n\r\n", "none: no header field"),
        (b"HTTP/1.1 200 OK\r\nname: a\0b\r\n\r\n", "none: no header field"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "none: content-length '-1' is no length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "none: content-length '1, 2'"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * LONGEST_HEAD + b"\r\n\r\n", "none: status line and headers are longer"),
        (CHUNKED + b"0x4\r\nWiki\r\n", "bad_chunk: no size"),
        (CHUNKED + b"-4\r\nWiki\r\n", "bad_chunk: no size"),
        (CHUNKED + b"1_0\r\n", "bad_chunk: no size"),
        (CHUNKED + b"\r\n", "bad_chunk: no size"),
        (CHUNKED + b"4\nWiki\r\n", "bad_chunk: no size"),
        (CHUNKED + b"4;a\rb\r\nWiki\r\n", "bad_chunk: no size"),
        (CHUNKED + b"11112222333344445\r\n", "bad_chunk: no size"),
        (CHUNKED + b"4;" + b"x" * LONGEST_SIZE_LINE + b"\r\nWiki\r\n", "bad_chunk: no size"),
        (CHUNKED + b"4\r\nWikipedia\r\n", "bad_chunk: no line end after the data"),
        (CHUNKED + b"4\r\nWiki\n5\r\n", "bad_chunk: no line end after the data"),
        (CHUNKED + b"0\r\nno trailer\r\n\r\n", "bad_chunk: no trailer field"),
        (CHUNKED + b"0\r\nx: " + b"y" * LONGEST_HEAD + b"\r\n\r\n", "bad_chunk: a trailer field longer"),
        (CHUNKED + WIKI, "missing_last_chunk: peer closed"),
        (CHUNKED + b"40\r\nWiki", "missing_last_chunk: peer closed"),
        (CHUNKED + b"0\r\n", "missing_last_chunk: peer closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nWiki", "short_body: peer closed the connection 5 bytes before"),
    ],
)  # fmt: skip
def test_what_is_no_answer_or_no_end(data: bytes, error: str) -> None:
    whole = parse(data, close=True)
    assert (whole.error or "").startswith(error)
    # Byte by byte it comes to the same.
    if len(data) < 1000:
        assert parse(*(data[i : i + 1] for i in range(len(data))), close=True).error == whole.error


def test_the_body_before_a_broken_chunk_is_handed_on() -> None:
    answer = parse(CHUNKED + WIKI + b"zz\r\n")
    assert (answer.body, answer.error is not None) == (b"Wikipedia in \r\n\r\nchunks.", True)


HEADS = [
    CHUNKED,
    b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED,
    b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\nX: a\r\n b\r\n\r\n",
    b"HTTP/1.0 200\nConnection: keep-alive\n\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 3\r\n\r\n",
]
BODIES = st.lists(
    st.sampled_from(
        [b"4\r\nWiki\r\n", b"1;x=\"1\"\r\n\n\r\n", b"E \r\nin \r\n\r\nchunks.\r\n", b"0\r\n\r\n",
         b"0\r\nX-Trailer: 1\r\n\r\n", b"\r\n", b"zz", b"Wiki", b"\0", b"20\r\n"]
    ),
    max_size=8,
).map(b"".join)  # fmt: skip


@given(st.sampled_from(HEADS), BODIES, st.lists(st.integers(1, 200), max_size=12), st.booleans())
def test_any_cutting_into_reads_gives_the_same(head: bytes, body: bytes, cuts: list[int], close: bool) -> None:
    data = head + body
    whole = parse(data, close=close)
    borders = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(borders)]
    answer, fed = Answer(), 0
    parser = Http1Response(answer.came, bodiless=False)
    try:
        for piece in pieces:
            fed += 1
            if parser.feed(0.0, piece, True):
                break
        if close and not parser.complete:
            parser.end()
    except TransportError as error:
        answer.error = f"{error.kind}: {error}" if isinstance(error, StreamCut) else f"none: {error}"
    else:
        answer.ended = parser.ended_properly
    assert (answer.status, answer.headers, answer.body) == (whole.status, whole.headers, whole.body)
    assert (answer.ended, answer.error) == (whole.ended, whole.error)
    assert answer.calls <= fed


@given(st.binary(max_size=80), st.lists(st.integers(1, 80), max_size=4))
def test_garbage_is_an_answer_or_one_of_two_errors(data: bytes, cuts: list[int]) -> None:
    borders = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    parser = Http1Response(Answer().came, bodiless=False)
    try:
        for a, b in itertools.pairwise(borders):
            if data[a:b] and parser.feed(0.0, data[a:b], True):
                return
        parser.end()
    except (NoResponse, StreamCut):
        pass


def test_a_receiver_that_wants_no_more() -> None:
    parser = Http1Response(lambda at, status, headers: lambda *_: False, bodiless=False)
    assert not parser.feed(0.0, CHUNKED + WIKI, True)
    assert parser.stopped


def test_one_read_by_the_loop_makes_the_answer_inexact() -> None:
    parser = Http1Response(Answer().came, bodiless=False)
    parser.feed(0.0, CHUNKED, True)
    assert parser.exact
    parser.feed(0.0, WIKI, False)
    parser.feed(0.0, b"0\r\n\r\n", True)
    assert (parser.complete, parser.exact) == (True, False)
