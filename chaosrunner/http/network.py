"""Sockets beneath the HTTP library: bytes are stamped when the event loop hands them over.

The library's own sockets go through several layers that a stream pays for at every chunk, and stamp nothing.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

import anyio
import httpcore

from chaosrunner.timeline.clock import Clock

HIGH_WATER = 1 << 20
"""Bytes that wait to be read before the socket is told to hold."""


class ResolveError(httpcore.ConnectError):
    """The name could not be resolved: our side's doing, not the target's."""


class LimitPassed(httpcore.ConnectTimeout):
    """No connection within the limit, which passed at `at` (seconds on the recording's clock)."""

    def __init__(self, text: str, at: float) -> None:
        super().__init__(text)
        self.at = at


class Network(httpcore.AsyncNetworkBackend):
    """Opens connections. Raises httpcore's ConnectError, with the cause attached, and LimitPassed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tried: Any = None
        """Socket address of the latest attempt; None where the name could not be resolved."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Stream:
        """Try the addresses of `host` one after the other, each for its share of `timeout` (seconds)."""
        self.tried = None
        addresses = await self._resolve(host, port, timeout)
        failures: list[Exception] = []
        for family, kind, protocol, _, address in addresses:
            self.tried = address
            try:
                with anyio.fail_after(None if timeout is None else timeout / len(addresses)) as scope:
                    return await self._open(socket.socket(family, kind, protocol), address)
            except (OSError, TimeoutError) as error:
                failures.append(error)
        text = f"cannot connect to {host}"
        # An address that answered, if only to refuse, says more than one that did not.
        if all(isinstance(failure, TimeoutError) and not failure.errno for failure in failures):
            raise LimitPassed(text, self._clock.from_monotonic(scope.deadline))
        raise _with_context(httpcore.ConnectError(text), ExceptionGroup(host, failures))

    async def _resolve(self, host: str, port: int, timeout: float | None) -> list[Any]:
        try:
            with anyio.fail_after(timeout):
                return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError as error:
            raise ResolveError("no answer from the resolver") from error
        except (OSError, UnicodeError) as error:
            raise ResolveError(str(error)) from error

    async def _open(self, raw: socket.socket, address: Any) -> Stream:
        loop = asyncio.get_running_loop()
        try:
            raw.setblocking(False)
            await loop.sock_connect(raw, address)
            _, stream = await loop.create_connection(lambda: Stream(self._clock), sock=raw)
        except BaseException:
            raw.close()
            raise
        return stream


class Stream(asyncio.Protocol, httpcore.AsyncNetworkStream):
    """One connection. Times are seconds on the recording's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now = clock.now
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._held = False
        self._ended = False
        self._ended_at = 0.0
        self._lost: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self.opened = 0.0
        """When it was ready for a request: after the TLS handshake, where there is one."""
        self.read_at = 0.0
        """When what the latest read returned came: bytes, the end, the failure."""

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.opened = self._now()

    def data_received(self, data: bytes) -> None:
        self._waiting.append((self._now(), data))
        self._size += len(data)
        if self._size > HIGH_WATER and not self._held and self._transport is not None:
            self._transport.pause_reading()
            self._held = True
        _wake(self._reader)

    def eof_received(self) -> None:
        self._end()
        _wake(self._reader)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._lost = exc
        _wake(self._reader)
        _wake(self._writer)

    def _end(self) -> None:
        if not self._ended:
            self._ended, self._ended_at = True, self._now()

    def pause_writing(self) -> None:
        self._writer = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._writer)
        self._writer = None

    # --- called by the library ---

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The bytes of one receive; empty at the end. No limit of time: the caller has its own."""
        while not self._waiting:
            if self._ended:
                self.read_at = self._ended_at
                if self._lost is not None:
                    raise _with_context(httpcore.ReadError(str(self._lost)), self._lost)
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        self.read_at, data = self._waiting.popleft()
        self._size -= len(data)
        if self._held and self._size < HIGH_WATER // 2 and self._transport is not None:
            self._transport.resume_reading()
            self._held = False
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._transport is None or self._transport.is_closing():
            raise httpcore.WriteError("the connection is closed")
        self._transport.write(buffer)
        if self._writer is not None:
            await self._writer

    async def aclose(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Stream:
        assert self._transport is not None
        try:
            with anyio.fail_after(timeout) as scope:
                self._transport = await asyncio.get_running_loop().start_tls(
                    self._transport, self, ssl_context, server_hostname=server_hostname
                )
        except OSError as error:
            await self.aclose()
            if isinstance(error, TimeoutError) and not error.errno:
                raise LimitPassed("no TLS handshake", self._clock.from_monotonic(scope.deadline)) from error
            raise httpcore.ConnectError(str(error)) from error
        self.opened = self._now()
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return self._ended or bool(self._waiting)
        name = {"client_addr": "sockname", "server_addr": "peername"}.get(info, info)
        return None if self._transport is None else self._transport.get_extra_info(name)


def _with_context(error: Exception, beneath: Exception) -> Exception:
    """`beneath` as the context, not as the cause: the pool raises what it gets `from None`."""
    error.__context__ = beneath
    return error


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
