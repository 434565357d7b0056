"""Streams and answers of any make."""

from __future__ import annotations

from chaosrunner.probes.dialects.base import ANSWER, DONE, NOTHING, Dialect, Frame, read_error
from chaosrunner.probes.framing import Event

KEEP_ALIVES = frozenset({"ping", "heartbeat", "keepalive", "keep-alive"})
"""Names of events that only show that the connection lives."""


class PlainSse(Dialect):
    """Server-sent events of any make; every event with data is content, but for the terminal one.

    `terminal_event` or `terminal_data` names the event that ends the stream as meant; with neither, the proper end of
    the body is all that can be asked for. `event: error` is an error, and an event named as a keep-alive is nothing.
    """

    def __init__(self, terminal_event: str | None = None, terminal_data: str | None = None) -> None:
        self._event = terminal_event
        self._data = terminal_data.encode() if terminal_data is not None else None
        self.has_terminal = terminal_event is not None or terminal_data is not None

    def event(self, event: Event) -> Frame:
        if event.name == self._event or (self._data is not None and event.data == self._data):
            return Frame(terminal=True, done=event.data == DONE)
        if event.name == "error":
            return Frame(error=read_error(event.data))
        if not event.data or event.name in KEEP_ALIVES:
            return NOTHING
        return ANSWER

    def body(self, body: bytes) -> Frame:
        return ANSWER if body else NOTHING


class PlainHttp(PlainSse):
    """Any answer; its bytes are not looked into, and there may be none."""

    def body(self, body: bytes) -> Frame:
        return ANSWER
