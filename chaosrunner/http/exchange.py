"""One request and its answer, pushed to a receiver as it comes, or pulled."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from chaosrunner.http.coding import OnData, decoder
from chaosrunner.http.errors import FirstByteTimeout, TransportError
from chaosrunner.http.headers import Headers
from chaosrunner.http.wait import Wait
from chaosrunner.timeline.clock import Clock

_NONE = Headers()
HIGH_WATER = 1 << 20
"""Bytes that wait to be pulled before the peer is told to hold."""


class Receiver(Protocol):
    """Takes an answer as it comes, called from the event loop's reader. Instants: seconds on the recording's clock."""

    def headers(self, at: float, status: int, headers: Headers) -> None:
        """Status and header fields of the final answer are there."""

    def data(self, at: float, data: bytes, exact: bool) -> bool:
        """All that one receive brought of the body, transfer and content coding removed; `exact`: `at` is the kernel's.

        False: read no more. Looked up once, after `headers`.
        """


class Carrier(Protocol):
    """Takes one exchange to the wire and back, by one of the ways that there are."""

    async def start(self, exchange: Exchange) -> None:
        """Find a connection and send; what comes back goes to the exchange's `came`, `complete` and `fail`.

        Raises TransportError.
        """

    def release(self) -> None:
        """The exchange is over, by its end or before it; its connection serves the next, or is closed."""

    def pause(self) -> None:
        """Have the peer slow down: what came is not being taken."""

    def resume(self) -> None:
        """What came has been taken."""


@dataclass(frozen=True)
class Timeouts:
    """Limits of the transport, seconds. What may pass between reads of a body is the caller's to judge."""

    connect: float | None = 5.0
    """Name resolution, TCP and TLS handshake: each has this limit for itself."""
    first_byte: float | None = 60.0
    """From having a connection to having the headers; None for no limit. Exchanges that are pushed leave it to the
    caller."""


@dataclass(slots=True)
class Timings:
    """Instants of an exchange on the recording's clock, seconds; None where it did not get that far."""

    sent: float = math.nan
    """When the exchange began, before connecting."""
    connected: float | None = None
    """When the connection was ready for the request; None if it had been open already."""
    requested: float | None = None
    """When the request was written to the connection; the first-byte limit counts from here."""
    headers: float | None = None
    """When status and headers were there."""
    ended: float | None = None
    """When the exchange ended: its last bytes came, it failed, a limit of the transport passed. However late that was
    noticed; None while it goes on, and where the caller left it."""


class Read(NamedTuple):
    """Some bytes of the body, after the transfer coding is removed, and when they came (seconds)."""

    at: float
    data: bytes


class Exchange:
    """One request and its answer. Pushed, for those who have many:

        await exchange.push(receiver)

    returns when the answer has ended, was left by the receiver, or by `stop`. Pulled, for everybody else:

        async with exchange as response:
            async for read in response: ...

    Entering returns once headers are there; iterating yields reads as they arrive. All three raise a `TransportError`.
    The attributes hold whatever was learned, also after an error.
    """

    __slots__ = (
        "_carrier",
        "_clock",
        "_decodes",
        "_error",
        "_over",
        "_reads",
        "_receiver",
        "connection",
        "ended_properly",
        "exact",
        "headers",
        "opened",
        "remote",
        "reused",
        "status",
        "timeouts",
        "timings",
        "wait",
    )

    def __init__(self, carrier: Carrier, clock: Clock, timeouts: Timeouts, *, decodes: bool = True) -> None:
        self._carrier = carrier
        self._clock = clock
        self._decodes = decodes
        self._error: Exception | None = None
        self._over = False
        self._receiver: Receiver
        self._reads: _Reads | None = None
        self.timeouts = timeouts
        self.timings = Timings()
        self.wait: Wait
        self.status: int | None = None
        self.headers = _NONE
        self.connection: str | None = None
        """Our end of the connection, `address:port`: what the other side's logs call it, too."""
        self.remote: str | None = None
        """The other end, `address:port`; where no connection came about, the address that was tried last."""
        self.opened: float | None = None
        """When the connection was opened, seconds."""
        self.reused: bool | None = None
        """Whether the connection was open before, for an earlier exchange; None until there is one."""
        self.ended_properly: bool | None = False
        """The body ended by its last chunk or its full length. None: it ended by a close, which proves nothing."""
        self.exact: bool | None = None
        """Whether the times of headers and body are all the kernel's; None before headers."""

    @property
    def over(self) -> bool:
        """It has ended, failed, or was stopped or left: nothing that comes after counts."""
        return self._over

    # --- for callers ---

    async def push(self, receiver: Receiver) -> None:
        """Send, and give the receiver all that comes, until it ends.

        Once it is back, by whatever way, its connection is closed or another's to use.
        """
        self._receiver = receiver
        self._begin()
        try:
            await self._carrier.start(self)
            if not self._over:
                await self.wait.woken()
        except _Stopped:
            pass
        except TransportError as error:
            self._ended(error)
        finally:
            self._leave()
        if self._error is not None:
            raise self._error

    def stop(self, error: TransportError | None = None) -> None:
        """End a pushed exchange at once, whatever it is about; `push` raises the error, or returns without one."""
        if not self._over:
            self._error = error
            if error is not None:
                self.timings.ended = error.at
            stopped = _Stopped()
            try:
                self._leave()
            finally:
                if not self.wait.fail(stopped):
                    # What was waited for has just happened, and the task is about to go on: it may wait once more.
                    self.wait.loop.call_soon(self.wait.fail, stopped)

    async def __aenter__(self) -> Self:
        self._begin()
        self._reads = reads = _Reads(self._carrier, self.wait)
        self._receiver = reads
        limit, deadline = self.timeouts.first_byte, None
        try:
            await self._carrier.start(self)
            if limit is not None and self.timings.requested is not None:
                deadline = self.wait.loop.time() + limit
            if self.status is None and not self._over:
                await self.wait.until_woken(deadline)
        except TransportError as error:
            self._ended(error)
        except TimeoutError:
            assert deadline is not None
            late = FirstByteTimeout(f"no headers within {limit:g} s")
            late.at = self._clock.from_monotonic(deadline)
            self._ended(late)
        except BaseException:
            self._leave()
            raise
        if self._error is not None and self.status is None:
            self._leave()
            raise self._error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Read:
        read = await self.read()
        if read is None:
            raise StopAsyncIteration
        return read

    async def read(self, limit: float | None = None) -> Read | None:
        """The next read; None at the end. Raises TimeoutError where there is none within `limit` seconds."""
        assert self._reads is not None, "read inside `async with`"
        while (read := self._reads.take()) is None:
            if self._error is not None:
                raise self._error
            if self._over:
                return None
            await self.wait.until_woken(None if limit is None else self.wait.loop.time() + limit)
        return read

    # --- for carriers ---

    def came(self, at: float, status: int, headers: Headers) -> OnData:
        """Status and headers are there; returns where the body goes."""
        self.timings.headers = at
        self.status, self.headers = status, headers
        receiver = self._receiver
        receiver.headers(at, status, headers)
        if self._decodes and "content-encoding" in headers:
            # Nobody asked for a content coding, yet some servers and proxies compress all the same.
            return decoder(headers["content-encoding"], receiver.data)
        return receiver.data

    def complete(self, at: float, *, properly: bool | None) -> None:
        """The answer has ended; `properly` as in `ended_properly`."""
        if not self._over:
            self.ended_properly = properly
            self.timings.ended = at
            self._leave()
            self.wait.wake()

    def fail(self, at: float, error: Exception) -> None:
        """The exchange broke, or a receiver did."""
        if not self._over:
            self._error = error
            self.timings.ended = at
            self._leave()
            self.wait.wake()

    # ---

    def _begin(self) -> None:
        self.wait = Wait(asyncio.get_running_loop())
        self.timings.sent = self._clock.now()

    def _ended(self, error: TransportError) -> None:
        self._error = error
        self.timings.ended = self._clock.now() if error.at is None else error.at
        self._leave()

    def _leave(self) -> None:
        if not self._over:
            self._over = True
            self._carrier.release()
            # Nothing refers to itself any more, so that all goes at once and not with the next garbage collection.
            del self._carrier, self._receiver


class _Stopped(Exception):
    """Wakes a task whose exchange was stopped."""


class _Reads:
    """Receiver of a pulled exchange: keeps reads until they are taken."""

    __slots__ = ("_carrier", "_held", "_size", "_wait", "_waiting")

    def __init__(self, carrier: Carrier, wait: Wait) -> None:
        self._carrier = carrier
        self._wait = wait
        self._waiting: deque[Read] = deque()
        self._size = 0
        self._held = False

    def headers(self, at: float, status: int, headers: Headers) -> None:
        self._wait.wake()

    def data(self, at: float, data: bytes, exact: bool) -> bool:
        self._waiting.append(Read(at, data))
        self._size += len(data)
        if self._size > HIGH_WATER and not self._held:
            self._held = True
            self._carrier.pause()
        self._wait.wake()
        return True

    def take(self) -> Read | None:
        if not self._waiting:
            return None
        read = self._waiting.popleft()
        self._size -= len(read.data)
        if self._held and self._size < HIGH_WATER // 2:
            self._held = False
            self._carrier.resume()
        return read
