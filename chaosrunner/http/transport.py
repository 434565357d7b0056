"""Our connections beneath `httpx.AsyncClient`, for whatever is asked with the whole comfort of httpx."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import httpx

from chaosrunner.http.dial import Dialer
from chaosrunner.http.errors import ConnectTimeout, FirstByteTimeout, TransportError
from chaosrunner.http.exchange import Exchange, Timeouts
from chaosrunner.http.pool import Http1Carrier, Pool
from chaosrunner.http.stamps import Stamps
from chaosrunner.http.target import Target, tls_context
from chaosrunner.timeline.clock import Clock


class WireTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 over kept connections. Errors are httpx' own, with the system's as their cause.

    The `exchange` among a response's extensions has its times and facts. Of httpx' timeouts, `connect` is as in
    `Timeouts`, `read` is the longest silence before the headers and between reads; there is nothing to wait for that
    `pool` and `write` could be about.
    """

    def __init__(self, clock: Clock, *, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: instead of the system's authorities."""
        self._clock = clock
        self._stamps = Stamps(clock)
        self._tls = tls
        self._pools: dict[tuple[bytes, bytes, int | None], Pool] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        timeout: dict[str, float | None] = request.extensions.get("timeout", {})
        limits = Timeouts(connect=timeout.get("connect"), first_byte=timeout.get("read"))
        carrier = Http1Carrier(self._pool(request.url), await _wire(request), bodiless=request.method == "HEAD")
        exchange = Exchange(carrier, self._clock, limits, decodes=False)
        try:
            await exchange.__aenter__()
        except TransportError as error:
            raise _as_httpx(error, request, exchange) from _system_error(error)
        assert exchange.status is not None
        return httpx.Response(
            exchange.status,
            headers=exchange.headers.raw,
            stream=_Body(exchange, request, timeout.get("read")),
            extensions={"http_version": b"HTTP/1.1", "exchange": exchange},
        )

    async def aclose(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _pool(self, url: httpx.URL) -> Pool:
        key = (url.raw_scheme, url.raw_host, url.port)
        pool = self._pools.get(key)
        if pool is None:
            target = Target(f"{url.scheme}://{url.netloc.decode('ascii')}", {})
            if target.secure and self._tls is None:
                self._tls = tls_context(None, insecure=False)
            dialer = Dialer(target, tls=self._tls if target.secure else None, stamps=self._stamps)
            pool = self._pools[key] = Pool(dialer, self._stamps, keeps=True)
        return pool


class _Body(httpx.AsyncByteStream):
    def __init__(self, exchange: Exchange, request: httpx.Request, limit: float | None) -> None:
        self._exchange = exchange
        self._request = request
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while (read := await self._exchange.read(self._limit)) is not None:
                yield read.data
        except TransportError as error:
            raise _as_httpx(error, self._request, self._exchange) from _system_error(error)
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no byte within {self._limit:g} s", request=self._request) from error

    async def aclose(self) -> None:
        await self._exchange.__aexit__()


async def _wire(request: httpx.Request) -> bytes:
    """The whole request; a body of unknown length is gathered, so that it has one."""
    body = b"".join([part async for part in request.stream])  # type: ignore[union-attr]
    fields = [(name, value) for name, value in request.headers.raw if name.lower() != b"transfer-encoding"]
    if len(fields) < len(request.headers.raw):
        fields.append((b"content-length", b"%d" % len(body)))
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    return b"\r\n".join([*lines, *(b"%s: %s" % field for field in fields), b"", body])


def _as_httpx(error: TransportError, request: httpx.Request, exchange: Exchange) -> httpx.TransportError:
    if isinstance(error, FirstByteTimeout):
        kind: type[httpx.TransportError] = httpx.ReadTimeout
    elif isinstance(error, ConnectTimeout) and error.errno is None:
        kind = httpx.ConnectTimeout
    elif exchange.timings.requested is None:
        kind = httpx.ConnectError
    else:
        # As httpx does: what the system reports is a ReadError, an answer that is none a RemoteProtocolError.
        kind = httpx.RemoteProtocolError if error.__cause__ is None else httpx.ReadError
    return kind(str(error), request=request)


def _system_error(error: TransportError) -> BaseException:
    return error.__cause__ or error
