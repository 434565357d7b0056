"""Makes connections: name, TCP, TLS, each with its own limit."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any, Protocol

from chaosrunner.http.connection import Connection, Tls, address_text
from chaosrunner.http.errors import ConnectTimeout, LocalFault, TlsError, TransportError
from chaosrunner.http.failures import LOCAL_ERRNOS, before_headers
from chaosrunner.http.stamps import Stamps
from chaosrunner.http.wait import Wait


class Trail(Protocol):
    """What is learned of a connection on the way to it, kept although it fails."""

    connection: str | None
    remote: str | None
    reused: bool | None


class Dialer:
    """Opens connections to one host and port.

    Raises LocalFault (also for a name that does not resolve), ConnectRefused, ConnectTimeout, ConnectReset, TlsError,
    NoResponse.
    """

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, stamps: Stamps) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._stamps = stamps
        self._numeric = _numeric(host, port)

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
            raise self._why(failures, limit, deadline)
        connection = Connection(raw, self._stamps, wait.loop)
        trail.connection, trail.remote, trail.reused = connection.local, connection.remote, False
        if self._tls is not None:
            await self._handshake(wait, connection, self._tls, limit)
        connection.opened = self._stamps.now()
        return connection

    async def _resolve(self, wait: Wait, limit: float | None) -> list[Any]:
        lookup = wait.loop.run_in_executor(None, _look_up, self._host, self._port)
        lookup.add_done_callback(lambda _: wait.wake())
        try:
            await wait.until_woken(None if limit is None else wait.loop.time() + limit)
            return lookup.result()
        except (OSError, UnicodeError) as error:
            late = isinstance(error, TimeoutError) and not error.errno
            raise LocalFault(
                f"cannot resolve {self._host}: {'no answer from the resolver' if late else error}"
            ) from error
        finally:
            lookup.cancel()

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

    def _why(self, failures: list[OSError], limit: float | None, deadline: float | None) -> TransportError:
        # An address that answered, if only to refuse, says more than one that did not; of those that failed, one that
        # did so out there says more than one that we could not try.
        answered = [failure for failure in failures if failure.errno]
        if not answered:
            assert deadline is not None
            return self._late(limit, deadline, failures[-1])
        out_there = [failure for failure in answered if failure.errno not in LOCAL_ERRNOS]
        return before_headers((out_there or answered)[-1], connected=False)

    async def _handshake(
        self, wait: Wait, connection: Connection, context: ssl.SSLContext, limit: float | None
    ) -> None:
        handshake = _Handshake(wait)
        connection.owner = handshake
        connection.start_tls(Tls(context, self._host))
        deadline = None if limit is None else wait.loop.time() + limit
        try:
            while not connection.step_handshake():
                await wait.until_woken(deadline)
                if connection.closed:
                    raise handshake.error or TlsError("closed by the peer in the TLS handshake")
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError) and not error.errno:
                assert deadline is not None
                raise self._late(limit, deadline, error) from error
            if isinstance(error, OSError):
                raise before_headers(error, connected=True) from error
            raise
        connection.owner = None

    def _late(self, limit: float | None, deadline: float, cause: OSError) -> ConnectTimeout:
        late = ConnectTimeout(f"no connection within {limit:g} s")
        late.at = self._stamps.from_loop(deadline)
        late.__cause__ = cause
        return late


class _Handshake:
    """Owner of a connection in its TLS handshake."""

    def __init__(self, wait: Wait) -> None:
        self._wait = wait
        self.error: OSError | None = None

    def received(self, at: float, data: bytes, exact: bool) -> None:
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
