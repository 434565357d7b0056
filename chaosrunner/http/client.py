"""One HTTP/1.1 exchange at a time, with the time of every read, over httpx.

What callers may rely on is in `StreamClient`, `Exchange` and the errors; nothing of httpx shows through, so that
another transport can take its place.
"""

from __future__ import annotations

import errno
import math
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import anyio
import httpcore
import httpx

from chaosrunner.errors import UserError
from chaosrunner.http.errors import (
    ConnectRefused,
    ConnectReset,
    ConnectTimeout,
    FirstByteTimeout,
    LocalFault,
    NoResponse,
    StreamCut,
    TlsError,
    TransportError,
)
from chaosrunner.http.network import LimitPassed, Network, ResolveError, Stream
from chaosrunner.timeline.clock import Clock

LOCAL_ERRNOS = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EADDRNOTAVAIL,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.EACCES,
        errno.EPERM,
    }
)
"""Errors of a socket call that are about this machine, not about the target: descriptors, memory, local ports, a local
firewall, no route. ENETUNREACH is nearly always the answer of our own routing table; a router that has lost the route
says it too (ICMP net unreachable). One that proves nothing of the service leaves a run inconclusive, not passed."""

UNREACHABLE_ERRNOS = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN})
"""Of a connection attempt: nobody answers there. The system's own SYN retries ran out, the last hop finds no such host
(no answer to ARP, ICMP host unreachable), or a firewall on the way says no (ICMP administratively prohibited)."""
RESET_ERRNOS = frozenset({errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE})


@dataclass(frozen=True)
class Timeouts:
    """Limits of the transport, seconds. What may pass between reads of a body is the caller's to judge."""

    connect: float = 5.0
    """Name resolution, TCP and TLS handshake together at most twice this (each has its own limit)."""
    first_byte: float | None = 60.0
    """From having a connection to having the headers; None for no limit."""


@dataclass
class Timings:
    """Instants of an exchange on the recording's clock, seconds; None where it did not get that far."""

    sent: float
    """When the exchange began, before connecting."""
    connected: float | None = None
    """When the connection was ready for the request; None if it had been open already."""
    headers: float | None = None
    """When status and headers were there."""
    ended: float | None = None
    """When the exchange ended: its last bytes came, it failed, a limit of the transport passed. However late that was
    noticed; None while it goes on, and where the caller left it."""


class Read(NamedTuple):
    """Some bytes of the body, after the transfer coding is removed, and when they came (seconds)."""

    at: float
    data: bytes


class StreamClient:
    """A client of one target, for one user: at most one exchange at a time.

    connection: "new" opens one for each exchange, "reused" keeps one alive between them, as a chat client would.
    No redirects are followed, nothing is retried, no proxy is taken from the environment, no content coding is
    asked for.

    Raises UserError where the address or the CA file is of no use.
    """

    def __init__(
        self,
        base_url: str,
        *,
        clock: Clock,
        headers: Mapping[str, str] | None = None,
        ca: str | None = None,
        insecure: bool = False,
        connection: Literal["new", "reused"] = "new",
        timeouts: Timeouts | None = None,
    ) -> None:
        self._base = check_url(base_url)
        self._clock = clock
        self.timeouts = timeouts if timeouts is not None else Timeouts()
        self._network = Network(clock)
        # One httpx client per user: its pool looks at every connection for every connection at each request.
        self._client = httpx.AsyncClient(
            headers={"accept-encoding": "identity", "user-agent": "chaosrunner", **(headers or {})},
            transport=_Transport(
                httpcore.AsyncConnectionPool(
                    ssl_context=tls_context(ca, insecure) if self._base.startswith("https:") else None,
                    max_keepalive_connections=1 if connection == "reused" else 0,
                    http1=True,
                    http2=False,
                    network_backend=self._network,
                )
            ),
            timeout=httpx.Timeout(None, connect=self.timeouts.connect),
            follow_redirects=False,
            trust_env=False,
        )
        self._latest: Stream | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    def stream(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        """An exchange, begun on `async with`: POST `content` (or GET ...) to `path` below the base URL."""
        request = self._client.build_request(method, self._base + path, content=content, headers=headers)
        return Exchange(self, self._client, request, self._clock)


class _Transport(httpx.AsyncHTTPTransport):
    """httpx over a pool of our making, which its own constructor does not take."""

    def __init__(self, pool: httpcore.AsyncConnectionPool) -> None:
        self._pool = pool


class Exchange:
    """One request and its answer.

        async with client.stream("POST", "/v1/completions", content=body) as response:
            async for read in response: ...

    Entering returns once headers are there, or raises a `TransportError`; iterating yields reads as they arrive and
    raises `StreamCut` or `LocalFault`. The attributes hold whatever was learned, also after an error.
    """

    def __init__(
        self,
        client: StreamClient,
        transport: httpx.AsyncClient,
        request: httpx.Request,
        clock: Clock,
    ) -> None:
        self._client = client
        self._transport = transport
        self._request = request
        self._clock = clock
        self._timeouts = client.timeouts
        self._response: httpx.Response | None = None
        self._stream: Stream | None = None
        self._scope = anyio.CancelScope()
        self.timings = Timings(sent=math.nan)
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.connection: str | None = None
        """Our end of the connection, `address:port`: what the other side's logs call it, too."""
        self.remote: str | None = None
        """The other end, `address:port`; where no connection came about, the address that was tried last."""
        self.opened: float | None = None
        """When the connection was opened, seconds."""
        self.reused: bool | None = None
        """Whether an earlier exchange had used the connection; None until there is one."""
        self.ended_properly: bool | None = False
        """The body ended by its last chunk or its full length. None: it ended by a close, which proves nothing."""

    async def __aenter__(self) -> Self:
        self.timings.sent = self._clock.now()
        self._request.extensions["trace"] = self._trace
        try:
            with self._scope:
                self._response = await self._transport.send(self._request, stream=True)
        except httpx.TransportError as error:
            self.timings.ended = self._failed_at(error)
            raise self._before_headers(error) from error
        if self._response is None:
            self.timings.ended = self._clock.from_monotonic(self._scope.deadline)
            raise FirstByteTimeout(f"no headers within {self._timeouts.first_byte:g} s")
        self._note_connection(self._response.extensions["network_stream"])
        self.timings.headers = self._read_at
        self.status = self._response.status_code
        self.headers = self._response.headers
        # Nobody asked for a content coding, yet some servers and proxies compress all the same.
        coded = "content-encoding" in self.headers
        self._reads = self._response.aiter_bytes() if coded else self._response.aiter_raw()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._response is not None:
            with anyio.CancelScope(shield=True):
                await self._response.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Read:
        assert self._response is not None, "iterate inside `async with`"
        try:
            data = await anext(self._reads)
        except StopAsyncIteration:
            self.timings.ended = self._read_at
            self.ended_properly = True if _has_an_end(self._response, self._request.method) else None
            raise
        except httpx.TransportError as error:
            self.timings.ended = self._read_at
            raise _after_headers(error) from error
        except httpx.DecodingError as error:
            self.timings.ended = self._read_at
            raise StreamCut("bad_chunk", f"content coding: {error}") from error
        return Read(self._read_at, data)

    @property
    def _read_at(self) -> float:
        """When the latest bytes came, or the end of the connection."""
        assert self._stream is not None
        return self._stream.read_at

    async def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Follow the connection's life; httpcore names the events after the call that it makes."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self.reused = False
            self._note_connection(info["return_value"])
            self.timings.connected = self.opened
        elif event == "connection.connect_tcp.failed":
            self.remote = _address(self._client._network.tried)
        elif event == "http11.send_request_headers.started":
            if self.reused is None and self._client._latest is not None:
                self.reused = True
                self._note_connection(self._client._latest)
            if self._timeouts.first_byte is not None:
                self._scope.deadline = anyio.current_time() + self._timeouts.first_byte

    def _note_connection(self, stream: Stream) -> None:
        self._stream = self._client._latest = stream
        self.opened = stream.opened
        self.connection = _address(stream.get_extra_info("client_addr"))
        self.remote = _address(stream.get_extra_info("server_addr"))

    def _failed_at(self, error: httpx.TransportError) -> float:
        for cause in _causes(error):
            if isinstance(cause, LimitPassed):
                return cause.at
        # What came of this exchange, if only the end; an earlier one may have left its time in the connection.
        if self._stream is not None and self._stream.read_at >= self.timings.sent:
            return self._stream.read_at
        return self._clock.now()

    def _before_headers(self, error: httpx.TransportError) -> TransportError:
        failure = _Failure.of(error)
        number, text = failure.errno, failure.text
        if failure.resolving:
            return LocalFault(f"cannot resolve {self._request.url.host}: {text}")
        if failure.tls:
            return TlsError(text)
        if number in LOCAL_ERRNOS:
            return LocalFault(text, errno=number)
        if number == errno.ECONNREFUSED:
            return ConnectRefused(text, errno=number)
        if number in RESET_ERRNOS:
            return ConnectReset(text, errno=number)
        if isinstance(error, httpx.ConnectTimeout):
            return ConnectTimeout(f"no connection within {self._timeouts.connect:g} s")
        if number in UNREACHABLE_ERRNOS and self.reused is None:
            return ConnectTimeout(text, errno=number)
        if isinstance(error, httpx.ConnectError):
            return TlsError("closed by the peer in the TLS handshake")
        return NoResponse(text, errno=number)


def check_url(base_url: str) -> str:
    """The base URL without its last slash. Raises UserError where it is none."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise UserError(f"{base_url!r} is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError(f"{base_url!r} is not an http:// or https:// URL with a host")
    return base_url.rstrip("/")


def tls_context(ca: str | None, insecure: bool) -> ssl.SSLContext:
    """Certificates are checked against the system's authorities, or `ca` (PEM file); `insecure` checks nothing."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"cannot read the CA file {ca}: {error}") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _after_headers(error: httpx.TransportError) -> TransportError:
    failure = _Failure.of(error)
    number, text = failure.errno, failure.text
    if number in LOCAL_ERRNOS:
        return LocalFault(text, errno=number, after_headers=True)
    if not isinstance(error, httpx.RemoteProtocolError):
        return StreamCut("reset", text, errno=number)
    # h11 tells the ways of a broken body apart by its text only.
    if "incomplete chunked read" in text:
        return StreamCut("missing_last_chunk", text)
    if "peer closed connection" in text:
        return StreamCut("short_body", text)
    return StreamCut("bad_chunk", text)


def _has_an_end(response: httpx.Response, method: str) -> bool:
    """Whether the end of the body can be told from a cut (RFC 9112, section 6.3)."""
    headers = response.headers
    return (
        method == "HEAD"
        or response.status_code in (204, 304)
        or "content-length" in headers
        or "chunked" in headers.get("transfer-encoding", "").lower()
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, and the members of groups among those."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        pending += [cause.__context__, cause.__cause__]
        if isinstance(cause, BaseExceptionGroup):
            pending += cause.exceptions


class _Failure(NamedTuple):
    """What the system said beneath an error of the library."""

    errno: int | None
    text: str
    tls: bool = False
    resolving: bool = False

    @classmethod
    def of(cls, error: BaseException) -> _Failure:
        system: OSError | None = None
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLWantReadError | ssl.SSLWantWriteError):
                continue
            # Its numbers are not those of errno.h.
            if isinstance(cause, ssl.SSLError):
                return cls(None, str(cause), tls=True)
            if isinstance(cause, ResolveError):
                return cls(None, str(cause), resolving=True)
            # Of several addresses tried, one that failed out there tells more than one that we could not try.
            if isinstance(cause, OSError) and cause.errno and (system is None or system.errno in LOCAL_ERRNOS):
                system = cause
        if system is None or system.errno is None:
            return cls(None, str(error) or type(error).__name__)
        return cls(system.errno, f"{errno.errorcode.get(system.errno, system.errno)}: {os.strerror(system.errno)}")


def _address(address: object) -> str | None:
    if not isinstance(address, tuple):
        return None
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
