"""For looking on while one answer comes."""

from __future__ import annotations

from typing import Protocol

from chaosrunner.http import Headers, Receiver, TransportError


class Tap(Protocol):
    """Hears of everything before the probe itself reads it. Instants: seconds on the recording's clock."""

    def headers(self, at: float, status: int, headers: Headers) -> None:
        """Status and header fields are there."""

    def data(self, at: float, data: bytes, exact: bool) -> None:
        """What one receive brought of the body; `exact`: `at` is the kernel's."""

    def ended(self, at: float, properly: bool | None, error: TransportError | None) -> None:
        """The exchange is over. `properly`: by the body's last chunk or full length; None: by a close, which proves
        nothing; False: in neither way, be it by the error or because the probe left."""


class Tapped:
    """A receiver with a tap before it."""

    def __init__(self, receiver: Receiver, tap: Tap) -> None:
        self._receiver = receiver
        self._tap = tap

    def headers(self, at: float, status: int, headers: Headers) -> None:
        self._tap.headers(at, status, headers)
        self._receiver.headers(at, status, headers)

    def data(self, at: float, data: bytes, exact: bool) -> bool:
        self._tap.data(at, data, exact)
        return self._receiver.data(at, data, exact)
