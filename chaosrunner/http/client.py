"""Clients of one target."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from copy import copy
from typing import Literal, Self

from chaosrunner.http.dial import Dialer
from chaosrunner.http.exchange import Carrier, Exchange, Timeouts
from chaosrunner.http.pool import Http1Carrier, Pool
from chaosrunner.http.stamps import Stamps
from chaosrunner.http.target import Target, tls_context
from chaosrunner.timeline.clock import Clock

HEADERS = {"accept": "*/*", "accept-encoding": "identity", "connection": "keep-alive", "user-agent": "chaosrunner"}


class StreamClient:
    """A client of one target, for any number of exchanges at a time.

    connection: "new" opens one for each exchange; "reused" keeps them for the next, whosever it is, which takes the one
    that became idle last; "fixed" keeps them too, but each `lane` has its own.
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
        connection: Literal["new", "reused", "fixed"] = "new",
        timeouts: Timeouts | None = None,
    ) -> None:
        self._target = Target(base_url, {**HEADERS, **(headers or {})})
        self._clock = clock
        self._stamps = Stamps(clock)
        self._shared = connection != "fixed"
        self._keeps = connection != "new"
        self._dialer = Dialer(
            self._target.host,
            self._target.port,
            tls=tls_context(ca, insecure) if self._target.secure else None,
            stamps=self._stamps,
        )
        self.timeouts = timeouts if timeouts is not None else Timeouts()
        self._pool = Pool(self._dialer, self._stamps, keeps=self._keeps)

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[StreamClient]:
        """The client as one user has it: this one, or, where connections are fixed, one with connections of its own."""
        if self._shared:
            yield self
            return
        lane = copy(self)
        lane._pool = Pool(self._dialer, self._stamps, keeps=self._keeps)
        try:
            yield lane
        finally:
            lane._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.close()
        self._stamps.close()

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

    def _carrier(self, method: str, path: str, content: bytes | None, headers: Mapping[str, str] | None) -> Carrier:
        request = self._target.request(method, path, headers, content)
        return Http1Carrier(self._pool, request, bodiless=method == "HEAD")
