"""What all framings of a stream have in common: events, lines kept over reads, and a bound on both."""

from __future__ import annotations

from typing import Protocol

import msgspec

LONGEST = 4 << 20
"""Bytes that one line, or the data of one event, may have."""


class TooLong(Exception):
    """A line or an event longer than the limit: this is no event stream that anybody could use."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event. `data` is UTF-8 as received; the lines of a multi-line event are joined by LF."""

    data: bytes
    name: str = "message"


class Framing(Protocol):
    """Cuts a stream of bytes into events."""

    content_types: tuple[str, ...]
    """Media types under which such streams are sent."""
    any_text: bool
    """Whether every text has events in it, so that only their meaning shows that it is a stream."""
    comments: int
    """Signs of life between the events so far."""

    def feed(self, data: bytes) -> list[Event]:
        """Events completed by a read. Raises TooLong."""

    def end(self) -> list[Event]:
        """Events completed by the end of the stream."""

    def may_become(self, body: bytes) -> bool:
        """Whether a body without a single event could yet have become a stream of them."""


class Rest:
    """The unfinished line between two reads."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._kept = bytearray()

    def lines(self, data: bytes) -> list[bytes]:
        """The lines, ended by LF, that `data` completes; keeps what follows. Raises TooLong."""
        if self._kept:
            if 0x0A not in data:
                self.put(data)
                return []
            data = self.take() + data
        lines = data.split(b"\n")
        if rest := lines.pop():
            self.put(rest)
        if len(data) > self._longest and any(len(line) > self._longest for line in lines):
            self._refuse()
        return lines

    def put(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > self._longest:
            self._refuse()

    def take(self) -> bytes:
        data = bytes(self._kept)
        self._kept.clear()
        return data

    def _refuse(self) -> None:
        raise TooLong(f"a line of the stream is longer than {self._longest} bytes")
