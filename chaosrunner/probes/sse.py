"""Server-sent events from bytes, as they arrive.

Source: WHATWG HTML, section "Server-sent events", parsing an event stream and interpreting it.
https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

from typing import NamedTuple

BOM = b"\xef\xbb\xbf"
LONGEST = 4 << 20
"""Bytes that one line, or the data of one event, may have."""


class EventTooLong(Exception):
    """A line or an event longer than the limit: this is no event stream that anybody could use."""


class Event(NamedTuple):
    """A dispatched event. `data` is UTF-8 as received; the lines of a multi-line event are joined by LF."""

    data: bytes
    name: str = "message"
    id: str = ""


class SseParser:
    """Feed it reads, cut anywhere; it returns the events that each read completes.

    A line ends with LF, CR or CRLF; a CR ends it at once, and an LF that follows, even in the next read, belongs to
    it. An event without the blank line that dispatches it is dropped at the end of the stream, as the standard says.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self.comments = 0
        self.retry: int | None = None
        """Reconnection time that the server asked for, milliseconds."""
        self._longest = longest
        self._rest = bytearray()
        self._started = False
        self._after_cr = False
        self._data: list[bytes] = []
        self._size = 0
        self._name = ""
        self._id = ""

    def feed(self, data: bytes) -> list[Event]:
        """Events completed by `data`. Raises EventTooLong."""
        if not self._started:
            data = self._without_bom(data)
        if self._after_cr and data:
            self._after_cr = False
            if data.startswith(b"\n"):
                data = data[1:]
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        if len(lines) > 1 and self._rest:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += lines.pop()
        if len(self._rest) > self._longest:
            raise EventTooLong(f"a line of the event stream is longer than {self._longest} bytes")
        events: list[Event] = []
        for line in lines:
            if line.startswith(b"data: "):
                self._append(line[6:])
            elif line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                events.append(event)
        return events

    def _without_bom(self, data: bytes) -> bytes:
        """The first bytes without a byte order mark; keeps them back while they may yet become one."""
        start = bytes(self._rest) + data
        if BOM.startswith(start):
            self._rest[:] = start
            if start != BOM:
                return b""
        self._rest.clear()
        self._started = True
        return start.removeprefix(BOM)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._append(value)
        elif not name:
            self.comments += 1
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            self.retry = int(value)

    def _append(self, value: bytes) -> None:
        self._data.append(value)
        self._size += len(value) + 1
        if self._size > self._longest:
            raise EventTooLong(f"an event of the stream is longer than {self._longest} bytes")

    def _dispatch(self) -> Event | None:
        name, self._name = self._name, ""
        if not self._data:
            return None
        event = Event(b"\n".join(self._data), name or "message", self._id)
        self._data.clear()
        self._size = 0
        return event
