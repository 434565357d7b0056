"""Server-sent events from bytes, as they arrive.

Source: WHATWG HTML, section "Server-sent events", parsing an event stream and interpreting it.
https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

import re

from chaosrunner.probes.framing import LONGEST, Event, Rest, TooLong

BOM = b"\xef\xbb\xbf"
CR = 0x0D
FIELD = re.compile(rb"^(?:data|event|id|retry)?:", re.MULTILINE)
"""A line of an event stream."""


class SseParser:
    """Feed it reads, cut anywhere; it returns the events that each read completes.

    A line ends with LF, CR or CRLF; a CR ends it at once, and an LF that follows, even in the next read, belongs to
    it. An event without the blank line that dispatches it is dropped at the end of the stream, as the standard says.
    `id` and `retry` are for clients that reconnect; a probe does not.
    """

    content_types: tuple[str, ...] = ("text/event-stream",)
    any_text: bool = False

    def __init__(self, longest: int = LONGEST) -> None:
        self.comments = 0
        self._longest = longest
        self._rest = Rest(longest)
        self._started = False
        self._after_cr = False
        self._data: list[bytes] = []
        self._size = 0
        self._name = ""

    def feed(self, data: bytes) -> list[Event]:
        """Events completed by `data`. Raises TooLong."""
        if not self._started:
            data = self._without_bom(data)
        # A byte is looked up in bytes by its number far faster than by a text of length one.
        if self._after_cr or CR in data:
            data = self._with_lf(data)
        events: list[Event] = []
        pending = self._data
        for line in self._rest.lines(data):
            if line[:6] == b"data: ":
                if pending:
                    self._append(line[6:])
                else:
                    pending.append(line[6:])
            elif line:
                self._field(line)
            elif not pending:
                self._name = ""
            elif len(pending) == 1 and not self._name:
                events.append(Event(pending.pop()))
                self._size = 0
            else:
                events.append(self._dispatch())
        return events

    def end(self) -> list[Event]:
        """The stream has ended."""
        return []

    def may_become(self, body: bytes) -> bool:
        return not body or FIELD.search(body) is not None

    def _without_bom(self, data: bytes) -> bytes:
        """The first bytes without a byte order mark; keeps them back while they may yet become one."""
        start = self._rest.take() + data
        if BOM.startswith(start) and start != BOM:
            self._rest.put(start)
            return b""
        self._started = True
        return start.removeprefix(BOM)

    def _with_lf(self, data: bytes) -> bytes:
        """With LF as the only end of a line."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if CR in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"data":
            self._append(value)
        elif not name:
            self.comments += 1

    def _append(self, value: bytes) -> None:
        """A line of data; a single one is bounded as a line, several are bounded here."""
        self._data.append(value)
        self._size += len(value) + 1
        if self._size > self._longest:
            raise TooLong(f"an event of the stream is longer than {self._longest} bytes")

    def _dispatch(self) -> Event:
        event = Event(b"\n".join(self._data), self._name or "message")
        self._data.clear()
        self._size = 0
        self._name = ""
        return event
