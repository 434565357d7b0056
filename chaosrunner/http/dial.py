"""Makes connections: name, TCP, TLS, each with its own limit."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Any, Protocol

from chaosrunner.http.connection import Connection, Tls, address_text
from chaosrunner.http.errors import ConnectTimeout, LocalFault, NoResponse, TlsError, TransportError
from chaosrunner.http.failures import LOCAL_ERRNOS, before_headers
from chaosrunner.http.headers import Headers
from chaosrunner.http.http1 import Http1Response, OnData
from chaosrunner.http.stamps import Stamps
from chaosrunner.http.target import Proxy, Target
from chaosrunner.http.wait import Wait


class Trail(Protocol):
    """What is learned of a connection on the way to it, kept although it fails."""

    connection: str | None
    remote: str | None
    reused: bool | None


class Dialer:
    """Opens connections to one target, straight or by a proxy.

    Raises LocalFault (also for a name that does not resolve), ConnectRefused, ConnectTimeout, ConnectReset, TlsError,
    NoResponse.
    """

    def __init__(
        self,
        target: Target,
        *,
        tls: ssl.SSLContext | None,
        stamps: Stamps,
        proxy: Proxy | None = None,
        tunnel: bool = False,
        server_name: str | None = None,
    ) -> None:
        """`tunnel`: ask the proxy for a connection to the target; else it is to take the requests themselves.

        server_name: whose certificate is wanted, the target's host where None.
        """
        self._target = target
        self._server_name = server_name or target.host
        self._host, self._port = (proxy.host, proxy.port) if proxy is not None else (target.host, target.port)
        self._tls = tls
        self._stamps = stamps
        self._proxy = proxy if tunnel else None
        self._numeric = _numeric(self._host, self._port)
        self._lookup: asyncio.Future[list[Any]] | None = None

    @property
    def secure(self) -> bool:
        """Whether connections have TLS."""
        return self._tls is not None

    async def open(self, wait: Wait, trail: Trail, limit: float | None) -> Connection:
        """Try the addresses one after the other, each for its share of `limit` (seconds)."""
        addresses = self._numeric or await self._resolve(wait, limit)
        share = None if limit is None else limit / len(addresses)
        failures: list[OSError] = []
        for family, kind, protocol, _, address in addresses:
            trail.remote = address_text(address)
            deadline = None if share is None else wait.loop.time() + share
            try:
                raw = await self._connect(wait, socket.socket(family, kind, protocol), address, deadline)
                break
            except OSError as error:
                failures.append(error)
        else:
            raise self._why(failures, limit, deadline, connected=False)
        connection = Connection(raw, trail.remote, self._stamps, wait.loop)
        trail.connection, trail.reused = connection.local, False
        try:
            if self._proxy is not None:
                await self._tunnel(wait, connection, self._proxy, limit)
            if self._tls is not None:
                await self._handshake(wait, connection, self._tls, limit)
        except BaseException:
            connection.close()
            raise
        connection.owner = None
        connection.opened = self._stamps.now()
        return connection

    async def _resolve(self, wait: Wait, limit: float | None) -> list[Any]:
        # One look-up serves all who wait for it: the loop has few threads, and a queue for them would look like a slow
        # service.
        if self._lookup is None or self._lookup.done():
            self._lookup = wait.loop.run_in_executor(None, _look_up, self._host, self._port)
            self._lookup.add_done_callback(lambda done: done.exception())  # known, should all have left by then
        lookup = self._lookup

        def wake(_: object) -> None:
            wait.wake()

        lookup.add_done_callback(wake)
        try:
            await wait.until_woken(None if limit is None else wait.loop.time() + limit)
            return lookup.result()
        except (OSError, UnicodeError) as error:
            late = isinstance(error, TimeoutError) and not error.errno
            raise LocalFault(
                f"cannot resolve {self._host}: {'no answer from the resolver' if late else error}"
            ) from error
        finally:
            lookup.remove_done_callback(wake)

    async def _connect(self, wait: Wait, raw: socket.socket, address: Any, deadline: float | None) -> socket.socket:
        try:
            raw.setblocking(False)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._stamps.enable(raw)
            failure = raw.connect_ex(address)
            if failure == errno.EINPROGRESS:
                wait.loop.add_writer(raw.fileno(), wait.wake)
                try:
                    await wait.until_woken(deadline)
                finally:
                    wait.loop.remove_writer(raw.fileno())
                failure = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failure:
                raise OSError(failure, "connect")
        except BaseException:
            raw.close()
            raise
        return raw

    def _why(
        self, failures: list[OSError], limit: float | None, deadline: float | None, *, connected: bool = True
    ) -> TransportError:
        # An address that answered, if only to refuse, says more than one that did not; of those that failed, one that
        # did so out there says more than one that we could not try.
        answered = [failure for failure in failures if failure.errno or not isinstance(failure, TimeoutError)]
        if not answered:
            assert deadline is not None
            return self._late(limit, deadline, failures[-1])
        out_there = [failure for failure in answered if failure.errno not in LOCAL_ERRNOS]
        return before_headers((out_there or answered)[-1], connected=connected)

    async def _handshake(
        self, wait: Wait, connection: Connection, context: ssl.SSLContext, limit: float | None
    ) -> None:
        owner = connection.owner = _Making(wait)
        connection.start_tls(Tls(context, self._server_name))
        deadline = None if limit is None else wait.loop.time() + limit
        try:
            while not connection.step_handshake():
                await wait.until_woken(deadline)
                if connection.closed:
                    raise owner.error or TlsError("closed by the peer in the TLS handshake")
        except OSError as error:
            raise self._why([error], limit, deadline) from error

    async def _tunnel(self, wait: Wait, connection: Connection, proxy: Proxy, limit: float | None) -> None:
        """Have the proxy connect to the target (RFC 9110, section 9.3.6)."""
        owner = connection.owner = _Making(wait)
        host = self._target.host
        target = f"[{host}]:{self._target.port}" if ":" in host else f"{host}:{self._target.port}"
        login = f"proxy-authorization: {proxy.authorization}\r\n" if proxy.authorization is not None else ""
        connection.write(f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n{login}\r\n".encode())
        deadline = None if limit is None else wait.loop.time() + limit
        try:
            while not owner.answer.complete:
                await wait.until_woken(deadline)
                if owner.failure is not None:
                    raise owner.failure
                if connection.closed and not owner.answer.complete:
                    raise owner.error or NoResponse("the proxy closed the connection instead of connecting")
        except OSError as error:
            raise self._why([error], limit, deadline) from error
        if owner.status == 407:
            raise LocalFault("the proxy asks for credentials (HTTP 407)")
        if not 200 <= owner.status < 300:
            raise NoResponse(f"the proxy answers CONNECT with HTTP {owner.status}")

    def _late(self, limit: float | None, deadline: float, cause: OSError) -> ConnectTimeout:
        late = ConnectTimeout(f"no connection within {limit:g} s")
        late.at = self._stamps.from_loop(deadline)
        late.__cause__ = cause
        return late


class _Making:
    """Owner of a connection that is not ready for requests: in its TLS handshake, or as a proxy makes it."""

    def __init__(self, wait: Wait) -> None:
        self._wait = wait
        self.answer = Http1Response(self._came, bodiless=True)
        """Of a proxy."""
        self.status = 0
        self.failure: TransportError | None = None
        self.error: OSError | None = None

    def _came(self, at: float, status: int, headers: Headers) -> OnData:
        self.status = status
        return lambda *_: False

    def received(self, at: float, data: bytes, exact: bool) -> None:
        try:
            if data:
                self.answer.feed(at, data, exact)
        except TransportError as error:
            self.failure = error
        self._wait.wake()

    def lost(self, at: float, error: OSError | None) -> None:
        self.error = error
        self._wait.wake()


def _numeric(host: str, port: int) -> list[Any] | None:
    """The address, where the host is one and needs no resolver."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None


def _look_up(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
