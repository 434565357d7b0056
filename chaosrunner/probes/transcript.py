"""Adds up what arrives of one answer: bytes in, instants and terminal facts out. No clock, no network."""

from __future__ import annotations

import re

from chaosrunner.probes.dialects import Dialect, Frame, StreamError
from chaosrunner.probes.finish import BAD_FINISH
from chaosrunner.probes.sse import EventTooLong, SseParser
from chaosrunner.timeline.rows import Usage

FIELD = re.compile(rb"^(?:data|event|id|retry)?:", re.MULTILINE)
"""A line of an event stream."""
HEAD = 2048
"""Bytes of an error body that are kept as error text."""
WHOLE = 16 << 20
"""Bytes of an answer that is no stream that are kept, to be decoded at its end."""


class Transcript:
    """One answer, fed with reads (seconds, bytes) cut anywhere.

    mode: "events" for a stream, "whole" for one body that is decoded at its end, "raw" for an error body, of which
    only the head is kept.
    """

    def __init__(self, dialect: Dialect, mode: str, *, record_chunks: bool = True) -> None:
        self._dialect = dialect
        self._mode = mode
        self._parser = SseParser()
        self._body = bytearray()
        self.size = 0
        self.events = 0
        self.first_byte: float | None = None
        self.first_token: float | None = None
        self.first_answer: float | None = None
        self.last_token: float | None = None
        self.largest_gap: float | None = None
        self.chunks: list[float] | None = [] if record_chunks and mode == "events" else None
        self.content_chunks = 0
        self.content = False
        self.finish_reason: str | None = None
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self.usage: Usage | None = None
        self.done = False
        self.terminal = False
        self.error: StreamError | None = None
        self.settled: float | None = None
        """When all was said that can be: `[DONE]`, the terminal event or an error."""
        self.malformed = 0
        """Events that the dialect does not know."""
        self.too_long: str | None = None

    @property
    def comments(self) -> int:
        return self._parser.comments

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Choices that began and have no finish_reason (yet)."""
        return tuple(sorted(self._begun - self._finished))

    @property
    def looks_like_events(self) -> bool:
        """Whether a body without a single event could have become a stream of them."""
        return self.events > 0 or self.comments > 0 or not self._body or bool(FIELD.search(self._body))

    @property
    def head(self) -> str:
        """The start of a body that was not, or not yet, a stream; empty where it is no text."""
        text = bytes(self._body[:HEAD]).decode("utf-8", "replace").strip()
        return "" if "\0" in text or "\ufffd" in text[:64] else text

    def feed(self, at: float, data: bytes) -> bool:
        """Take one read. False if there is no use in reading on."""
        if self.first_byte is None:
            self.first_byte = at
        self.size += len(data)
        if self._mode != "events":
            room = (WHOLE if self._mode == "whole" else HEAD) - len(self._body)
            self._body += data[:room]
            return self._mode == "whole" or self.size < 32 * HEAD
        if self.events == 0:
            self._body += data[: HEAD - len(self._body)]
        try:
            events = self._parser.feed(data)
        except EventTooLong as error:
            self.too_long = str(error)
            return False
        if events:
            self._body.clear()
        for event in events:
            self.events += 1
            self._take(at, self._dialect.event(event))
        return True

    def end(self) -> None:
        """The body has ended; a whole answer is read now. It has no token times: its tokens came all at once.

        Where a stream was asked for and no event came, the body may be an error object.
        """
        if self._mode == "whole":
            self._note(self._dialect.body(bytes(self._body)))
        elif self._mode == "events" and self.events == 0:
            self.error = self._dialect.body(bytes(self._body)).error

    def _take(self, at: float, frame: Frame) -> None:
        if (self.done or self.terminal) and frame.error is None:
            return  # no client reads on
        self._note(frame)
        if frame.content:
            if self.first_token is None:
                self.first_token = at
            elif self.last_token is not None:
                self.largest_gap = max(self.largest_gap or 0.0, at - self.last_token)
            self.content_chunks += 1
            if frame.answer and self.first_answer is None:
                self.first_answer = at
            self.last_token = at
            if self.chunks is not None:
                self.chunks.append(at)
        if self.settled is None and (self.done or self.terminal or self.error is not None):
            self.settled = at

    def _note(self, frame: Frame) -> None:
        if frame.content:
            self.content = True
        if frame.finish is not None and (self.finish_reason or "").lower() not in BAD_FINISH:
            self.finish_reason = frame.finish
        for index, finish in frame.choices or (((0, frame.finish),) if frame.content or frame.finish else ()):
            (self._begun if finish is None else self._finished).add(index)
        if frame.usage is not None:
            self.usage = frame.usage
        if frame.error is not None and self.error is None:
            self.error = frame.error
        self.done = self.done or frame.done
        self.terminal = self.terminal or frame.terminal
        self.malformed += frame.malformed
