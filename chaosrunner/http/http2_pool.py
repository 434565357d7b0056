"""HTTP/2 connections that are new for each exchange, or shared by as many as the peer allows."""

from __future__ import annotations

import re
from copy import copy

from chaosrunner.http.coding import OnData
from chaosrunner.http.dial import Dialer
from chaosrunner.http.errors import NoResponse, TlsError, TransportError
from chaosrunner.http.exchange import Exchange
from chaosrunner.http.headers import Headers
from chaosrunner.http.http2 import Fields, Session
from chaosrunner.http.stamps import Stamps
from chaosrunner.http.wait import Wait

_STATUS = re.compile(rb"[1-9][0-9]{2}")


class Http2Pool:
    """Connections to one target."""

    def __init__(self, dialer: Dialer, stamps: Stamps, *, keeps: bool) -> None:
        """`keeps`: a connection serves many exchanges, at the same time too."""
        self._dialer = dialer
        self._stamps = stamps
        self._keeps = keeps
        self._sessions: list[Session] = []
        self._dialing = False
        self._waiting: list[Wait] = []
        self._closed = False

    async def take(self, exchange: Exchange) -> Session:
        """A connection with room for one more stream. Who asks while one is being opened waits for it.

        Raises TransportError, the same for all who waited.
        """
        while self._keeps:
            self._sessions = [session for session in self._sessions if not session.connection.closed]
            for session in self._sessions:
                if session.connection.is_alive() and session.has_room:
                    connection = session.connection
                    # Who waited while it was opened may be its first, where the one who opened it has been stopped.
                    first = not session.used and connection.opened >= exchange.timings.sent
                    exchange.connection, exchange.remote = connection.local, connection.remote
                    exchange.opened, exchange.reused = connection.opened, not first
                    if first and not exchange.over:
                        exchange.timings.connected = connection.opened
                    return session
            if not self._dialing:
                break
            self._waiting.append(exchange.wait)
            await exchange.wait.until_woken()
        return await self._open(exchange)

    async def _open(self, exchange: Exchange) -> Session:
        self._dialing = True
        failure: TransportError | None = None
        try:
            connection = await self._dialer.open(exchange.wait, exchange, exchange.timeouts.connect)
            if self._dialer.secure and connection.protocol != "h2":
                connection.close()
                raise TlsError("the peer does not agree on HTTP/2 in the TLS handshake (ALPN)")
            session = Session(connection)
            if self._keeps:
                self._sessions.append(session)
        except TransportError as error:
            failure = error
            raise
        finally:
            self._dialing = False
            waiting, self._waiting = self._waiting, []
            for wait in waiting:
                if failure is None:
                    wait.wake()
                else:
                    wait.fail(copy(failure))
        exchange.opened = connection.opened
        if not exchange.over:
            exchange.timings.connected = connection.opened
        return session

    def carrier(self, fields: Fields, content: bytes | None) -> Http2Carrier:
        """For one exchange."""
        return Http2Carrier(self, fields, content)

    def give_back(self, session: Session) -> None:
        if session.idle and (self._closed or session.draining or not self._keeps):
            session.connection.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        self._closed = True
        for session in self._sessions:
            self.give_back(session)

    def now(self) -> float:
        return self._stamps.now()


class Http2Carrier:
    """Takes one exchange over one stream of a session."""

    __slots__ = ("_exact", "_exchange", "_number", "_on_data", "_pool", "_session", "fields", "has_headers", "unsent")

    def __init__(self, pool: Http2Pool, fields: Fields, content: bytes | None) -> None:
        self._pool = pool
        self._session: Session | None = None
        self._number = 0
        self._exact = True
        self._exchange: Exchange
        self._on_data: OnData
        self.fields = fields
        self.unsent = memoryview(content or b"")
        self.has_headers = False

    async def start(self, exchange: Exchange) -> None:
        self._exchange = exchange
        session = await self._pool.take(exchange)
        if exchange.over:  # stopped while the connection was on its way to us
            self._pool.give_back(session)
            return
        self._session = session
        exchange.timings.requested = self._pool.now() if exchange.reused else exchange.opened
        self._number = session.begin(self)

    def release(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            if self.has_headers:
                self._exchange.exact = self._exact
            session.leave(self._number)
            self._pool.give_back(session)

    def pause(self) -> None:
        if self._session is not None:
            self._session.hold(self._number)

    def resume(self) -> None:
        if self._session is not None:
            self._session.resume(self._number)

    # --- called by the session ---

    def came(self, at: float, fields: Fields, exact: bool) -> None:
        status = next(value for name, value in fields if name == b":status")
        if not _STATUS.fullmatch(status):
            self._exchange.fail(at, NoResponse(f"no HTTP/2: a :status of {status!r}"))
            return
        self._exact = exact
        self.has_headers = True
        headers = Headers((name, value) for name, value in fields if not name.startswith(b":"))
        try:
            self._on_data = self._exchange.came(at, int(status), headers)
        except Exception as error:  # a receiver's; it is raised where the exchange is awaited
            self._exchange.fail(at, error)

    def data(self, at: float, data: bytes, exact: bool) -> None:
        self._exact = self._exact and exact
        try:
            wanted = self._on_data(at, data, exact)
        except Exception as error:  # as above, or bytes that the content coding cannot be
            self._exchange.fail(at, error)
            return
        if not wanted:
            self._exchange.complete(at, properly=False)

    def complete(self, at: float) -> None:
        self._exchange.complete(at, properly=True)

    def fail(self, at: float, error: TransportError) -> None:
        error.stale = error.stale and self._exchange.reused is True
        self._exchange.fail(at, error)
