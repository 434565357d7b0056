"""HTTP/1.1 over asyncio transports, for both ends: what the lab's server, gateway and alert source need of RFC 9112.

Nothing is buffered on the way out, reading pauses when nobody takes the data, and a peer that goes away is noticed at
once. Header names are kept as they came; look them up with `find`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol, cast

_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{1,16}")

Headers = list[tuple[str, str]]

HIGH_WATER = 64 * 1024
"""Bytes that a connection holds unread before it stops reading."""
HEAD_LIMIT = 64 * 1024
"""Longest request or response head, in bytes."""
BODY_LIMIT = 4 * 1024 * 1024
"""Longest request body, in bytes."""


class Disconnected(ConnectionError):
    """The peer closed or reset the connection before a message was whole."""


class MalformedMessage(ValueError):
    """What came is no HTTP/1.1."""


class MessageTooLarge(MalformedMessage):
    """A head or body is longer than allowed."""


def find(headers: Iterable[tuple[str, str]], name: str) -> str | None:
    """The value of the first header called `name` (lower case), or None."""
    return next((value for key, value in headers if key.lower() == name), None)


def phrase(status: int) -> str:
    """The reason phrase of a status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def date() -> str:
    """Now, as a Date header has it."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


class Body(Protocol):
    """Finds the end of a message body in the bytes of a connection."""

    complete: bool

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Take bytes off the wire; return (payload, what belongs to the next message)."""

    def end(self) -> bool:
        """The peer closed the connection: whether the body is complete by that."""


class LengthBody:
    """A body of a known number of bytes; none is a length of 0."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.complete = length == 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        payload, rest = data[: self._left], data[self._left :]
        self._left -= len(payload)
        self.complete = self._left == 0
        return payload, rest

    def end(self) -> bool:
        return self.complete


class CloseBody:
    """A body that ends when the connection does."""

    complete = False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        return data, b""

    def end(self) -> bool:
        self.complete = True
        return True


class ChunkedBody:
    """A chunked body (RFC 9112, section 7.1). Extensions and trailers are dropped."""

    def __init__(self) -> None:
        self.complete = False
        self._held = b""
        self._left = 0
        self._state = "size"

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        payload = []
        data = self._held + data
        while data and not self.complete:
            if self._state == "data":
                part, data = data[: self._left], data[self._left :]
                payload.append(part)
                self._left -= len(part)
                if not self._left:
                    self._state = "data end"
                continue
            line, newline, rest = data.partition(b"\n")
            if not newline:
                if len(data) > HEAD_LIMIT:
                    raise MalformedMessage("a line of a chunked body is too long")
                break
            data = rest
            self._line(line.rstrip(b"\r"))
        self._held = b"" if self.complete else data
        return b"".join(payload), data if self.complete else b""

    def _line(self, line: bytes) -> None:
        if self._state == "size":
            digits = line.split(b";")[0].strip()
            if not _HEXADECIMAL.fullmatch(digits):
                raise MalformedMessage(f"{digits[:40]!r} is no chunk size")
            self._left = int(digits, 16)
            self._state = "data" if self._left else "trailers"
        elif self._state == "data end":
            if line:
                raise MalformedMessage("a chunk is longer than its size")
            self._state = "size"
        elif not line:
            self.complete = True

    def end(self) -> bool:
        return self.complete


class Connection(asyncio.Protocol):
    """One TCP connection. All methods are for the event loop that the connection belongs to."""

    def __init__(self, accepted: Callable[[Connection], None] | None = None) -> None:
        self._accepted = accepted
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._paused_writing = False
        self._paused_reading = False
        self.ended = False
        """The peer has closed its side, or the connection is gone."""
        self.error: Exception | None = None
        """Why the connection broke (a reset, mostly); None if the peer closed it properly."""
        self.on_end: Callable[[], object] | None = None
        """Called once, when `ended` becomes true."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._accepted is not None:
            self._accepted(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > HIGH_WATER:
            self._paused_reading = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._end()
        return False  # nor is there anything more to say

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self._end()

    def pause_writing(self) -> None:
        self._paused_writing = True

    def resume_writing(self) -> None:
        self._paused_writing = False
        self._release()

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._wake()
        self._release()
        if self.on_end is not None:
            self.on_end()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _release(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def _more(self) -> bool:
        """Wait until there is more to read than before; False if nothing will come any more."""
        if self.ended:
            return False
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        return True

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        if self._paused_reading and len(self._buffer) <= HIGH_WATER and not self.ended:
            self._paused_reading = False
            self.transport.resume_reading()
        return data

    async def read(self) -> bytes:
        """Whatever has come, as soon as something has; empty once the peer has closed."""
        while not self._buffer:
            if not await self._more():
                break
        return self._take(len(self._buffer))

    def unread(self, data: bytes) -> None:
        """Put back what belongs to the next message."""
        self._buffer[:0] = data

    async def read_head(self) -> bytes | None:
        """The next message's head without its blank line; None if the peer closed before it began."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > HEAD_LIMIT:
                raise MessageTooLarge("the head is too long")
            if not await self._more() and self._buffer.find(b"\r\n\r\n") < 0:
                if self._buffer:
                    raise Disconnected("closed inside a head")
                return None
        return self._take(end + 4)[:-4]

    async def read_body(self, body: Body, limit: int = BODY_LIMIT) -> bytes:
        """A whole body. Raises MessageTooLarge, MalformedMessage, Disconnected."""
        payload = b""
        while not body.complete:
            data = await self.read()
            if not data:
                if self.error is None and body.end():
                    break
                raise Disconnected("closed inside a body")
            part, rest = body.feed(data)
            self.unread(rest)
            payload += part
            if len(payload) > limit:
                raise MessageTooLarge("the body is too long")
        return payload

    def write(self, data: bytes) -> None:
        """Send bytes; raises Disconnected when the peer is gone."""
        if self.ended or self.transport.is_closing():
            raise Disconnected("the peer is gone")
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the peer has taken enough of what was written; raises Disconnected when it is gone."""
        while self._paused_writing and not self.ended:
            self._drained = asyncio.get_running_loop().create_future()
            try:
                await self._drained
            finally:
                self._drained = None
        if self.ended:
            raise Disconnected("the peer is gone")

    def close(self) -> None:
        """Close after what was written is sent (FIN)."""
        self.transport.close()

    @property
    def peer(self) -> str:
        """Address and port of the other end."""
        host, port = (self.transport.get_extra_info("peername") or ("?", 0))[:2]
        return f"{host}:{port}"


@dataclass
class Request:
    """A request with its whole body."""

    method: str
    target: str
    version: str
    headers: Headers
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    @property
    def keep_alive(self) -> bool:
        options = (find(self.headers, "connection") or "").lower()
        return "close" not in options and (self.version == "HTTP/1.1" or "keep-alive" in options)


@dataclass
class Response:
    """The head of a response, and the reader of its body."""

    status: int
    version: str
    headers: Headers
    body: Body

    @property
    def keep_alive(self) -> bool:
        options = (find(self.headers, "connection") or "").lower()
        return self.version == "HTTP/1.1" and "close" not in options and not isinstance(self.body, CloseBody)


def _lines(head: bytes) -> tuple[str, Headers]:
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = []
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise MalformedMessage(f"{line[:60]!r} is no header")
        headers.append((name, value.strip()))
    return first, headers


def _framing(headers: Headers) -> Body | None:
    if (coding := find(headers, "transfer-encoding")) is not None:
        if coding.lower() != "chunked":
            raise MalformedMessage(f"transfer-encoding {coding!r} is not supported")
        return ChunkedBody()
    if (length := find(headers, "content-length")) is not None:
        if not length.isdecimal():
            raise MalformedMessage(f"content-length {length!r} is no number")
        return LengthBody(int(length))
    return None


async def read_request(connection: Connection) -> Request | None:
    """The next request of a connection, or None if the client closed. A client that asks `Expect: 100-continue` is
    told to go on. Raises MalformedMessage, MessageTooLarge, Disconnected."""
    head = await connection.read_head()
    if head is None:
        return None
    first, headers = _lines(head)
    match first.split(" "):
        case [method, target, ("HTTP/1.1" | "HTTP/1.0") as version] if method and target:
            request = Request(method, target, version, headers)
        case _:
            raise MalformedMessage(f"{first[:60]!r} is no request line")
    body = _framing(headers) or LengthBody(0)
    if not body.complete and (find(headers, "expect") or "").lower() == "100-continue":
        connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.body = await connection.read_body(body)
    return request


async def read_response(connection: Connection, method: str) -> Response:
    """The head of the answer to a request. Raises Disconnected if there is none, MalformedMessage."""
    while True:
        head = await connection.read_head()
        if head is None:
            raise Disconnected("closed before an answer")
        first, headers = _lines(head)
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not (len(code) == 3 and code.isdecimal()):
            raise MalformedMessage(f"{first[:60]!r} is no status line")
        status = int(code)
        if status >= 200:
            break
    bodiless = method == "HEAD" or status in (204, 304)
    body = LengthBody(0) if bodiless else _framing(headers) or CloseBody()
    return Response(status, version, headers, body)


def head(first: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """A message head, blank line included."""
    return "".join([first, "\r\n", *(f"{name}: {value}\r\n" for name, value in headers), "\r\n"]).encode("latin-1")


@dataclass
class Exchange:
    """One request being answered: either `respond`, or `start`, any number of `send`, and `finish`."""

    connection: Connection
    request: Request
    keep_alive: bool = field(init=False)
    status: int = field(default=0, init=False)
    _chunked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.keep_alive = self.request.keep_alive

    def respond(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send a whole answer; content-length is the caller's, so that the order of headers is."""
        self.status = status
        if not self.keep_alive:
            headers = [*headers, ("connection", "close")]
        if self.request.method == "HEAD":
            body = b""
        self.connection.write(head(f"HTTP/1.1 {status} {phrase(status)}", headers) + body)

    def start(self, status: int, headers: Headers) -> None:
        """Send the head of an answer whose length is not known: chunked, or for HTTP/1.0 ended by closing."""
        self.status = status
        self._chunked = self.request.version == "HTTP/1.1"
        if self._chunked:
            headers = [*headers, ("transfer-encoding", "chunked")]
        else:
            self.keep_alive = False
        if not self.keep_alive:
            headers = [*headers, ("connection", "close")]
        self.connection.write(head(f"HTTP/1.1 {status} {phrase(status)}", headers))

    def send(self, data: bytes) -> None:
        """Send one piece of the body, as one chunk."""
        if data:
            self.connection.write(chunk(data) if self._chunked else data)

    def finish(self) -> None:
        """End the body properly."""
        if self._chunked:
            self.connection.write(LAST_CHUNK)


Handler = Callable[[Exchange], Awaitable[None]]


class Server:
    """Accepts connections and runs `handler` for each request, one after the other on a connection.

    A handler whose client goes away is cancelled. Connections beyond `max_connections` are closed at once.
    """

    def __init__(self, handler: Handler, *, keep_alive: float = 60.0, max_connections: int = 1024) -> None:
        self._handler = handler
        self._keep_alive = keep_alive
        self._max_connections = max_connections
        self._tasks: dict[asyncio.Task[None], Connection] = {}
        self._busy: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Open the port and return its number; raises OSError if it cannot be had."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self._accept), host, port, backlog=512)
        return cast(int, self._server.sockets[0].getsockname()[1])

    def _accept(self, connection: Connection) -> None:
        if len(self._tasks) >= self._max_connections:
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks[task] = connection
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        connection.on_end = task.cancel

    async def _serve(self, connection: Connection) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            while True:
                async with asyncio.timeout(self._keep_alive):
                    request = await read_request(connection)
                if request is None:
                    break
                exchange = Exchange(connection, request)
                self._busy.add(task)
                try:
                    await self._handler(exchange)
                finally:
                    self._busy.discard(task)
                if not exchange.keep_alive:
                    break
        except MalformedMessage as error:
            status = 413 if isinstance(error, MessageTooLarge) else 400
            text = str(error).encode()
            headers = [("content-type", "text/plain"), ("content-length", str(len(text))), ("connection", "close")]
            if not connection.ended:
                connection.write(head(f"HTTP/1.1 {status} {phrase(status)}", headers) + text)
        except (TimeoutError, Disconnected):
            pass
        except asyncio.CancelledError:
            # The client has gone, or the server is being closed: either way nothing waits for this task.
            pass
        finally:
            connection.close()

    def stop_listening(self) -> None:
        """Close the port; connections that are open stay so."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Close the port and every connection."""
        self.stop_listening()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def connect(
    host: str,
    port: int,
    timeout: float,
    tls: ssl.SSLContext | None = None,
    make: Callable[[], Connection] = Connection,
) -> Connection:
    """Open a connection; raises OSError (refused, a wrong certificate and the like) or TimeoutError."""
    async with asyncio.timeout(timeout):
        _, connection = await asyncio.get_running_loop().create_connection(make, host, port, ssl=tls)
    return connection


@asynccontextmanager
async def get(
    host: str, port: int, target: str, headers: Headers, timeout: float, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Response, Connection]]:
    """GET over a connection of its own; yields the head and the connection to read the body from.

    `timeout` bounds connecting and the wait for the head, each. Raises OSError, TimeoutError, MalformedMessage.
    """
    connection = await connect(host, port, timeout, tls)
    try:
        lines = [("Host", f"{host}:{port}"), ("Accept", "application/json"), ("Connection", "close"), *headers]
        connection.write(head(f"GET {target} HTTP/1.1", lines))
        async with asyncio.timeout(timeout):
            response = await read_response(connection, "GET")
        yield response, connection
    finally:
        connection.close()
