"""HTTP/1.1 answers from bytes as they arrive (RFC 9112). No clock, no network."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple

from chaosrunner.http.errors import NoResponse, StreamCut
from chaosrunner.http.headers import Headers

LONGEST_HEAD = 128 << 10
"""Bytes that status line and header fields may have, and each trailer field."""
LONGEST_SIZE_LINE = 16 << 10
"""Bytes that the line with a chunk's size may have, extensions included."""
KEPT_HEADS = 64
"""Heads that are kept parsed: a server says much the same each time, but for the date."""
MOST_INTERIM = 32
"""Interim answers (1xx) before the final one."""

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n\0]*)?")
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIELDS = re.compile(rb"^(" + _TOKEN + rb"):([^\r\n\0]*)\r?$", re.MULTILINE)
_FIELD = re.compile(_TOKEN + rb":[^\r\n\0]*")
_FOLD = re.compile(rb"\r?\n[ \t]+")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?")
_SIZE_BEGUN = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*(?:;[^\r\n]*)?\r?")

OnData = Callable[[float, bytes, bool], bool]
OnHeaders = Callable[[float, int, Headers], OnData]
"""As in `chaosrunner.http.exchange.Receiver`."""
State = Literal["head", "chunked", "trailers", "counted", "until_close", "complete"]


class _Head(NamedTuple):
    """A status line and header fields, and what they say of the body and the connection."""

    status: int
    headers: Headers
    persists: bool
    """The connection is to go on after the answer, as far as the peer says."""
    codings: str | None
    length: str | None


_heads: dict[bytes, _Head] = {}


class Http1Response:
    """One answer. Feed it reads, cut anywhere; it hands on what they bring.

    The body is given on as it comes, with one call a read, whatever chunks it is cut into.
    """

    __slots__ = (
        "_after_data",
        "_begun",
        "_bodiless",
        "_interim",
        "_left",
        "_on_data",
        "_on_headers",
        "_rest",
        "_state",
        "exact",
        "keep_alive",
        "stopped",
    )

    def __init__(self, on_headers: OnHeaders, *, bodiless: bool) -> None:
        """`bodiless`: it answers HEAD. `on_headers` is called once, and says where the body goes."""
        self._on_headers = on_headers
        self._on_data: OnData
        self._bodiless = bodiless
        self._state: State = "head"
        self._rest = b""
        self._left = 0
        self._after_data = False
        self._interim = 0
        self._begun = False
        self.exact = True
        """All times so far are the kernel's."""
        self.keep_alive = False
        """Once complete: whether the connection may serve again."""
        self.stopped = False
        """Whoever takes the body wants no more of it."""

    @property
    def begun(self) -> bool:
        """Whether any byte of an answer has come."""
        return self._begun

    @property
    def has_headers(self) -> bool:
        return self._state != "head"

    @property
    def complete(self) -> bool:
        return self._state == "complete"

    @property
    def ended_properly(self) -> bool | None:
        """Whether the body has ended as HTTP says it must; None where only a close can end it, which proves nothing."""
        return None if self._state == "until_close" else self._state == "complete"

    def feed(self, at: float, data: bytes, exact: bool) -> bool:
        """Take one read; True once the answer is complete. Raises NoResponse and StreamCut for what is no HTTP."""
        self._begun = True
        if not exact:
            self.exact = False
        if self._rest:
            data = self._rest + data
            self._rest = b""
        position = 0
        if self._state == "head":
            position = self._head(at, data)
            if self._state == "head":
                self._rest = data[position:]
                return False
            if position == len(data) and self._state != "complete":
                return False
        if self._state == "chunked":
            position = self._chunks(at, data, position, exact)
        elif self._state == "counted":
            end = position + self._left
            part = data[position:end]
            self._left -= len(part)
            if self._left == 0:
                self._state = "complete"
            position += len(part)
            self._give(at, part, exact)
        elif self._state == "until_close":
            self._give(at, data[position:], exact)
            position = len(data)
        if self._state == "trailers":
            position = self._trailers(data, position)
        if self._state == "complete":
            if position < len(data):
                self.keep_alive = False  # nobody asked for what follows
            return True
        return False

    def end(self) -> None:
        """The peer has closed in order. Raises where that is no end of an answer."""
        match self._state:
            case "head" if self._rest:
                _parse_status_line(self._rest.partition(b"\n")[0].rstrip(b"\r"))
                raise NoResponse("peer closed the connection amid the headers")
            case "head":
                raise NoResponse("Server disconnected without sending a response.")
            case "chunked":
                raise StreamCut("missing_last_chunk", "peer closed the connection before the last chunk")
            case "trailers":
                raise StreamCut("missing_last_chunk", "peer closed the connection within the last chunk")
            case "counted":
                raise StreamCut("short_body", f"peer closed the connection {self._left} bytes before the body's end")

    def _give(self, at: float, data: bytes, exact: bool) -> None:
        if not self._on_data(at, data, exact):
            self.stopped = True

    # --- status line and header fields ---

    def _head(self, at: float, data: bytes) -> int:
        """Read heads, of interim answers too; returns the position after the last whole one."""
        position = 0
        while True:
            end = _end_of_head(data, position)
            if (len(data) if end < 0 else end) - position > LONGEST_HEAD:
                raise NoResponse(f"status line and headers are longer than {LONGEST_HEAD} bytes")
            if end < 0:
                first = data.find(b"\n", position)
                if first >= 0:
                    _parse_status_line(data[position:first].removesuffix(b"\r"))
                return position
            head = data[position:end]
            known = _heads.get(head)
            if known is None:
                known = _parse_head(head)
                if len(_heads) >= KEPT_HEADS:
                    _heads.clear()
                _heads[head] = known
            status, headers = known.status, known.headers
            position = end
            if status >= 200:
                self._frame(known)
                self._on_data = self._on_headers(at, status, headers)
                return position
            if status == 101:
                raise NoResponse("HTTP 101: the peer changes to a protocol that nobody asked for")
            self._interim += 1
            if self._interim > MOST_INTERIM:
                raise NoResponse(f"more than {MOST_INTERIM} interim answers (1xx)")

    def _frame(self, head: _Head) -> None:
        """How the body ends (RFC 9112, section 6.3), and whether the connection persists after it (section 9.3)."""
        self.keep_alive = head.persists
        codings, length = head.codings, head.length
        if self._bodiless or head.status in (204, 304):
            self._state = "complete"
        elif codings is not None:
            chunked = codings.rpartition(",")[2].strip().lower() == "chunked"
            self._state = "chunked" if chunked else "until_close"
            if length is not None or not chunked:
                self.keep_alive = False
        elif length is not None:
            self._left = _content_length(length)
            self._state = "counted" if self._left else "complete"
        else:
            self._state = "until_close"
            self.keep_alive = False

    # --- chunked bodies ---

    def _chunks(self, at: float, data: bytes, position: int, exact: bool) -> int:
        """Take chunks from `position` on; returns the position after the last chunk's size line."""
        pieces: list[bytes] = []
        size, left, after_data = len(data), self._left, self._after_data
        broken: str | None = None
        while True:
            if left:
                end = position + left
                if end > size:
                    if position < size:
                        pieces.append(data[position:])
                        left = end - size
                    break
                pieces.append(data[position:end])
                position, left, after_data = end, 0, True
            if after_data:
                if not data.startswith(b"\r\n", position):
                    if size - position >= 2 or (size > position and data[position] != 13):
                        broken = "no line end after the data of a chunk"
                    else:
                        self._rest = data[position:]
                    break
                position += 2
                after_data = False
            end = data.find(b"\r\n", position)
            length = _chunk_size(data[position:end]) if end >= 0 else None
            if length is None:
                if position < size:
                    self._rest = data[position:]
                    if not _SIZE_BEGUN.fullmatch(self._rest) or len(self._rest) > LONGEST_SIZE_LINE:
                        broken = "no size where a chunk begins"
                break
            if end + 2 - position > LONGEST_SIZE_LINE:
                broken = "no size where a chunk begins"
                break
            left, position = length, end + 2
            if left == 0:
                self._state = "trailers"
                break
        self._left, self._after_data = left, after_data
        if pieces:
            self._give(at, pieces[0] if len(pieces) == 1 else b"".join(pieces), exact)
        if broken is not None:
            raise StreamCut("bad_chunk", broken)
        return position

    def _trailers(self, data: bytes, position: int) -> int:
        """Pass over the trailer fields; returns the position after the line that ends them."""
        while True:
            end = data.find(b"\n", position)
            if (len(data) if end < 0 else end) - position > LONGEST_HEAD:
                raise StreamCut("bad_chunk", f"a trailer field longer than {LONGEST_HEAD} bytes")
            if end < 0:
                self._rest = data[position:]
                return position
            line = data[position:end].removesuffix(b"\r")
            position = end + 1
            if not line:
                self._state = "complete"
                return position
            if not _FIELD.fullmatch(line):
                raise StreamCut("bad_chunk", f"no trailer field: {line[:40]!r}")


def _end_of_head(data: bytes, position: int) -> int:
    """The position after the empty line that ends the head, -1 where there is none yet.

    Lines may end with LF alone (RFC 9112, section 2.2). A search for texts is many times faster than for a pattern.
    """
    end = data.find(b"\n\r\n", position)
    bare = data.find(b"\n\n", position, end if end >= 0 else None)
    if bare >= 0:
        return bare + 2
    return end + 3 if end >= 0 else -1


def _parse_head(head: bytes) -> _Head:
    """Of a head up to its empty line, that included."""
    for end in (b"\n", b"\r", b"\n", b"\r"):
        head = head.removesuffix(end)
    if b"\n " in head or b"\n\t" in head:
        head = _FOLD.sub(b" ", head)  # RFC 9112, section 5.2
    first, _, lines = head.partition(b"\n")
    status, version = _parse_status_line(first.removesuffix(b"\r"))
    fields = [(name, value.strip(b" \t")) for name, value in _FIELDS.findall(lines)]
    if lines and len(fields) != lines.count(b"\n") + 1:
        wrong = next(line for line in lines.split(b"\n") if not _FIELDS.fullmatch(line))
        raise NoResponse(f"no header field: {wrong.strip()[:40]!r}")
    headers = Headers(fields)
    options = [option.strip().lower() for option in headers.get("connection", "").split(",")]
    persists = "close" not in options and (version == 1 or "keep-alive" in options)
    return _Head(status, headers, persists, headers.get("transfer-encoding"), headers.get("content-length"))


@lru_cache(maxsize=256)
def _chunk_size(line: bytes) -> int | None:
    """The size of a chunk; None where the line has none. The chunks of a stream have few sizes."""
    match = _SIZE.fullmatch(line)
    return int(match[1], 16) if match is not None else None


def _parse_status_line(line: bytes) -> tuple[int, int]:
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise NoResponse(f"no HTTP/1 status line: {line[:40]!r}")
    return int(match[2]), int(match[1])


def _content_length(value: str) -> int:
    """RFC 9110, section 8.6: repeated alike is one; anything else is no message."""
    lengths = {part.strip() for part in value.split(",")}
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdigit()) or len(length) > 18:
        raise NoResponse(f"content-length {value!r} is no length")
    return int(length)
