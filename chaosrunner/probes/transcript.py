"""Adds up what arrives of one answer: bytes in, instants and terminal facts out. No clock, no network."""

from __future__ import annotations

from chaosrunner.http import Headers
from chaosrunner.probes.dialects import ANSWER, THOUGHT, Dialect, Frame, StreamError
from chaosrunner.probes.finish import BAD_FINISH
from chaosrunner.probes.framing import Event, TooLong
from chaosrunner.timeline.rows import Usage

HEAD = 2048
"""Bytes of an error body that are kept as error text."""
WHOLE = 16 << 20
"""Bytes of an answer that is no stream that are kept, to be decoded at its end."""
AT_ONCE = 0.001
"""Seconds between two chunks below which the second did not wait for its token: no model writes one stream so fast."""


class Transcript:
    """One answer, fed with reads (seconds, bytes) cut anywhere.

    mode: "events" for a stream, "whole" for one body that is decoded at its end, "raw" for an error body, of which
    only the head is kept.
    """

    size = 0
    events = 0
    first_byte: float | None = None
    last_byte: float | None = None
    first_token: float | None = None
    first_answer: float | None = None
    last_token: float | None = None
    largest_gap: float | None = None
    content_chunks = 0
    """Events with content."""
    content_reads = 0
    """Reads that held some. Where a read held several, only the last one's time is exact, the others' are upper
    bounds."""
    at_once = 0
    """Chunks with content that came within `AT_ONCE` of the one before."""
    first_token_exact = False
    """Whether the first token's time is: the kernel's, and no other token came in the same read."""
    content = False
    finish_reason: str | None = None
    usage: Usage | None = None
    done = False
    terminal = False
    error: StreamError | None = None
    settled: float | None = None
    """When all was said that can be: the mark that closes the stream, the terminal event or an error."""
    malformed = 0
    """Events that the dialect does not know."""
    too_long: str | None = None
    _exact = False
    """Whether the last read's time is the kernel's."""

    def __init__(self, dialect: Dialect, mode: str, *, record_chunks: bool = True) -> None:
        self._read = dialect.event
        self._dialect = dialect
        self._mode = mode
        self._framing = dialect.framing()
        self._body = bytearray()
        self.chunks: list[float] | None = [] if record_chunks and mode == "events" else None
        self._begun: set[int] = set()
        self._finished: set[int] = set()

    @property
    def comments(self) -> int:
        return self._framing.comments

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Choices that began and have no finish_reason (yet)."""
        return () if self._begun <= self._finished else tuple(sorted(self._begun - self._finished))

    def unreadable(self, headers: Headers) -> str | None:
        """Why what came is no stream of events; None where it is one, or may have become one."""
        if self.too_long is not None or self._mode != "events":
            return self.too_long
        framing = self._framing
        if self.events - self.malformed if framing.any_text else self.events + self.comments:
            return None
        content_type = headers.get("content-type", "")
        content_coding = headers.get("content-encoding", "identity")
        if content_type.lower().startswith(framing.content_types):
            if not self.events and framing.may_become(bytes(self._body)):
                return None
            if content_coding != "identity":
                return f"content-encoding {content_coding}"
        return f"content-type {content_type or 'absent'}, no event in the body"

    @property
    def head(self) -> str:
        """The start of a body that was not, or not yet, a stream; empty where it is no text."""
        text = bytes(self._body[:HEAD]).decode("utf-8", "replace").strip()
        return "" if "\0" in text or "\ufffd" in text[:64] else text

    def feed(self, at: float, data: bytes, exact: bool = False) -> bool:
        """Take one read. False if there is no use in reading on.

        exact: `at` is the kernel's instant of the last byte, not the event loop's of noticing it.
        """
        if self.first_byte is None:
            self.first_byte = at
        self.last_byte = at
        self.size += len(data)
        self._exact = exact
        if self._mode != "events":
            return self._keep(data)
        if not self.events:
            self._body += data[: HEAD - len(self._body)]
        try:
            events = self._framing.feed(data)
        except TooLong as error:
            self.too_long = str(error)
            return False
        if events:
            self._take(at, events, exact)
        return True

    def end(self) -> None:
        """The body has ended; a whole answer is read now. It has no token times: its tokens came all at once.

        Where a stream was asked for and no event came, the body may be an error object.
        """
        if self._mode == "whole":
            self._note(self._dialect.body(bytes(self._body)))
        elif self._mode == "events":
            if self.last_byte is not None and (events := self._framing.end()):
                self._take(self.last_byte, events, self._exact)
            if self.events == 0:
                self.error = self._dialect.body(bytes(self._body)).error

    def _keep(self, data: bytes) -> bool:
        room = (WHOLE if self._mode == "whole" else HEAD) - len(self._body)
        self._body += data[:room]
        return self._mode == "whole" or self.size < 32 * HEAD

    def _take(self, at: float, events: list[Event], exact: bool) -> None:
        """The events of one read."""
        if not self.events:
            self._body.clear()
        self.events += len(events)
        read = self._read
        content = plain = 0
        for event in events:
            frame = read(event)
            if (self.done or self.terminal) and frame.error is None:
                continue  # no client reads on
            if frame is ANSWER:
                plain += 1
                if self.first_answer is None:
                    self.first_answer = at
            elif frame is THOUGHT:
                plain += 1
            else:
                self._note(frame)
                content += frame.content
                if frame.answer and self.first_answer is None:
                    self.first_answer = at
                if self.settled is None and (self.done or self.terminal or self.error is not None):
                    self.settled = at
        if plain:
            content += plain
            self.content = True
            self._begun.add(0)
        if content:
            self._count(at, content, exact)

    def _count(self, at: float, chunks: int, exact: bool) -> None:
        """So many chunks with content came in one read."""
        last = self.last_token
        if last is None:
            self.first_token = at
            self.first_token_exact = exact and chunks == 1
            if chunks > 1:
                self.largest_gap = 0.0
        else:
            gap = at - last
            if self.largest_gap is None or gap > self.largest_gap:
                self.largest_gap = gap
            if gap < AT_ONCE:
                self.at_once += 1
        self.last_token = at
        self.content_reads += 1
        self.content_chunks += chunks
        if chunks == 1:
            if self.chunks is not None:
                self.chunks.append(at)
            return
        self.at_once += chunks - 1
        if self.chunks is not None:
            self.chunks += [at] * chunks

    def _note(self, frame: Frame) -> None:
        if frame.content:
            self.content = True
        if frame.finish is not None and (self.finish_reason or "").lower() not in BAD_FINISH:
            self.finish_reason = frame.finish
        for index, finish in frame.choices or (((0, frame.finish),) if frame.content or frame.finish else ()):
            (self._begun if finish is None else self._finished).add(index)
        if frame.usage is not None:
            self._add_usage(frame.usage)
        if frame.error is not None and self.error is None:
            self.error = frame.error
        self.done = self.done or frame.done
        self.terminal = self.terminal or frame.terminal
        self.malformed += frame.malformed

    def _add_usage(self, usage: Usage) -> None:
        """The last one wins; what it leaves out stays (Anthropic gives the prompt's tokens with the first event)."""
        before = self.usage
        if before is not None and usage.prompt_tokens is None:
            usage = Usage(prompt_tokens=before.prompt_tokens, completion_tokens=usage.completion_tokens)
        self.usage = usage
