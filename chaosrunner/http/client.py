"""Clients of one target."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, Literal, Self

from chaosrunner.errors import UserError
from chaosrunner.http.dial import Dialer
from chaosrunner.http.exchange import Carrier, Exchange, Timeouts
from chaosrunner.http.pool import Http1Carrier, Pool
from chaosrunner.http.stamps import Stamps
from chaosrunner.http.target import Proxy, Target, tls_context
from chaosrunner.timeline.clock import Clock

if TYPE_CHECKING:
    from chaosrunner.http.http2_pool import Http2Pool

HEADERS = {"accept": "*/*", "accept-encoding": "identity", "connection": "keep-alive", "user-agent": "chaosrunner"}


class StreamClient:
    """A client of one target, for any number of exchanges at a time.

    connection: "new" opens one for each exchange; "reused" keeps them for the next, whosever it is, which takes the one
    that became idle last; "fixed" keeps them too, but each `lane` has its own.
    http2: speak HTTP/2, over TLS or without (by prior knowledge); needs the package h2.
    proxy: http://[user:password@]host[:port]; it is asked for a tunnel where the target has TLS or HTTP/2.
    No redirects are followed, nothing is retried, no proxy is taken from the environment, no content coding is
    asked for.

    Raises UserError where an address or the CA file is of no use.
    """

    def __init__(
        self,
        base_url: str,
        *,
        clock: Clock,
        headers: Mapping[str, str] | None = None,
        ca: str | None = None,
        insecure: bool = False,
        connection: Literal["new", "reused", "fixed"] = "new",
        http2: bool = False,
        proxy: str | None = None,
        server_name: str | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        """`server_name`: whose certificate is wanted, where that is not the URL's host."""
        self._proxy = Proxy.of(proxy) if proxy is not None else None
        self._headers = {**HEADERS, **(headers or {})}
        self._clock = clock
        self._stamps = Stamps(clock)
        self._shared = connection != "fixed"
        self._keeps = connection != "new"
        self._http2 = http2
        self._server_name = server_name
        self._target = Target(base_url, self._headers, self._proxy)
        self._tls = tls_context(ca, insecure, http2=http2) if self._target.secure else None
        self.timeouts = timeouts if timeouts is not None else Timeouts()
        self._dialer = self._make_dialer()
        self._pool = self._make_pool()

    def towards(self, base_url: str) -> StreamClient:
        """A client of another target with the same scheme, which shares nothing with this one but its settings.

        Raises UserError where the address is of no use.
        """
        other = copy(self)
        other._target = Target(base_url, self._headers, self._proxy)
        other._dialer = other._make_dialer()
        other._pool = other._make_pool()
        return other

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[StreamClient]:
        """The client as one user has it: this one, or, where connections are fixed, one with connections of its own."""
        if self._shared:
            yield self
            return
        lane = copy(self)
        lane._pool = self._make_pool()
        try:
            yield lane
        finally:
            lane._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.close()

    def stream(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        """An exchange, begun when it is pushed or entered: POST `content` (or GET ...) to `path` below the base URL.

        `headers` must not be changed afterwards. Raises UserError for a header of no use.
        """
        return Exchange(self._carrier(method, path, content, headers), self._clock, self.timeouts)

    def _make_dialer(self) -> Dialer:
        return Dialer(
            self._target,
            tls=self._tls,
            stamps=self._stamps,
            proxy=self._proxy,
            tunnel=self._target.secure or self._http2,
            server_name=self._server_name,
        )

    def _make_pool(self) -> Pool | Http2Pool:
        if not self._http2:
            return Pool(self._dialer, self._stamps, keeps=self._keeps)
        return _http2_pool()(self._dialer, self._stamps, keeps=self._keeps)

    def _carrier(self, method: str, path: str, content: bytes | None, headers: Mapping[str, str] | None) -> Carrier:
        if isinstance(self._pool, Pool):
            request = self._target.request(method, path, headers, content)
            return Http1Carrier(self._pool, request, bodiless=method == "HEAD")
        return self._pool.carrier(self._target.http2_fields(method, path, headers, content), content)


def _http2_pool() -> type[Http2Pool]:
    """HTTP/2 needs a package that few do."""
    try:
        from chaosrunner.http.http2_pool import Http2Pool
    except ImportError as error:
        raise UserError("HTTP/2 needs the package h2: pip install 'chaosrunner[http2]'") from error
    return Http2Pool
