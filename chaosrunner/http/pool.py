"""HTTP/1.1 over connections that are new for each exchange, or kept for the next."""

from __future__ import annotations

from chaosrunner.http.connection import Connection
from chaosrunner.http.dial import Dialer
from chaosrunner.http.errors import ConnectReset, NoResponse, TransportError
from chaosrunner.http.exchange import Exchange
from chaosrunner.http.failures import after_headers, before_headers
from chaosrunner.http.http1 import Http1Response
from chaosrunner.http.stamps import Stamps


class Pool:
    """Connections to one target. Those that are kept are taken last in, first out, at a cost that does not grow."""

    def __init__(self, dialer: Dialer, stamps: Stamps, *, keeps: bool) -> None:
        """`keeps`: connections serve several exchanges, one after the other."""
        self._dialer = dialer
        self._keeps = keeps
        self.now = stamps.now
        """Seconds on the recording's clock."""
        self._idle: list[Connection] = []
        self._closed = False

    def take(self, exchange: Exchange) -> Connection | None:
        """An idle connection that is alive, where there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive():
                exchange.connection, exchange.remote, exchange.reused = connection.local, connection.remote, True
                exchange.opened = connection.opened
                return connection
        return None

    async def open(self, exchange: Exchange) -> Connection:
        """A new connection. Raises TransportError."""
        connection = await self._dialer.open(exchange.wait, exchange, exchange.timeouts.connect)
        if not exchange.over:
            exchange.timings.connected = connection.opened
        exchange.opened = connection.opened
        return connection

    def give_back(self, connection: Connection) -> None:
        if self._keeps and not self._closed:
            connection.owner = None
            connection.resume()
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class Http1Carrier:
    """Takes one exchange over one connection."""

    __slots__ = ("_bodiless", "_connection", "_exchange", "_pool", "_request", "_response")

    def __init__(self, pool: Pool, request: bytes, *, bodiless: bool) -> None:
        """`request`: all of it, as it goes over the wire; `bodiless`: it is a HEAD."""
        self._pool = pool
        self._request = request
        self._bodiless = bodiless
        self._connection: Connection | None = None
        self._exchange: Exchange
        self._response: Http1Response

    async def start(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._response = Http1Response(exchange.came, bodiless=self._bodiless)
        connection = self._pool.take(exchange) or await self._pool.open(exchange)
        if exchange.over:  # stopped while the connection was on its way to us
            self._pool.give_back(connection)
            return
        self._connection = connection
        exchange.timings.requested = self._pool.now() if exchange.reused else exchange.opened
        connection.owner = self
        connection.write(self._request)

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        response = self._response
        if response.has_headers:
            self._exchange.exact = response.exact
        if connection.closed:
            return
        if response.complete and response.keep_alive and not connection.has_unsent:
            self._pool.give_back(connection)
        else:
            connection.close()

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    # --- called by the connection ---

    def received(self, at: float, data: bytes, exact: bool) -> None:
        response = self._response
        try:
            complete = response.feed(at, data, exact)
        except Exception as error:  # the peer's, or a receiver's: either is raised where the exchange is awaited
            self._exchange.fail(at, error)
            return
        if complete:
            self._exchange.complete(at, properly=True)
        elif response.stopped:
            self._exchange.complete(at, properly=False)

    def lost(self, at: float, error: OSError | None) -> None:
        failure: TransportError
        if error is None:
            try:
                self._response.end()
            except TransportError as ending:
                failure = ending
            else:
                self._exchange.complete(at, properly=self._response.ended_properly)
                return
        elif self._response.has_headers:
            failure = after_headers(error)
        else:
            failure = before_headers(error, connected=True)
        if self._exchange.reused and not self._response.begun and isinstance(failure, ConnectReset | NoResponse):
            failure.stale = True
        self._exchange.fail(at, failure)
