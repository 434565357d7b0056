"""What all dialects have in common: the meaning of an event, and errors in whatever shape they come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from chaosrunner.probes.framing import Event, Framing
from chaosrunner.probes.sse import SseParser
from chaosrunner.timeline.rows import Usage

DONE = b"[DONE]"
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises where data is no JSON, not the JSON that was asked for, or nested deeper than Python goes."""
CODES = range(100, 10_000)
"""Codes of errors: HTTP statuses and what looks like them."""
TOKENS = range(1 << 31)
"""Counts of tokens that a server may have meant."""


class StreamError(msgspec.Struct, frozen=True):
    """An error object or error event inside a stream."""

    text: str
    code: int | None = None


class Frame(msgspec.Struct, frozen=True, gc=False):
    """What one event says."""

    content: bool = False
    """Some token: answer text, reasoning or a tool call."""
    answer: bool = False
    """Answer text."""
    finish: str | None = None
    """finish_reason of its choice; of several choices the one that ended worst."""
    usage: Usage | None = None
    done: bool = False
    """The mark that closes a stream after all has been said; see `Dialect.done_mark`."""
    error: StreamError | None = None
    malformed: bool = False
    """Not what the dialect speaks; neither token nor error."""
    terminal: bool = False
    """The stream's last event, by the API or by the rule of a plain stream."""
    choices: tuple[tuple[int, str | None], ...] = ()
    """Index and finish_reason of each choice; empty where there is none but choice 0."""


NOTHING = Frame()
ANSWER = Frame(content=True, answer=True)
THOUGHT = Frame(content=True)
MALFORMED = Frame(malformed=True)
LAST = Frame(done=True)


class Dialect(ABC):
    """How to read one kind of answer. It keeps no state: `transcript` adds up what it says."""

    done_mark: str | None = None
    """What closes a stream after its finish_reason, as people call it; None where nothing does."""
    has_finish: bool = False
    """Whether a finish_reason is the terminal frame."""
    has_terminal: bool = False
    """Whether a terminal event is, in an API without finish_reason."""

    def framing(self) -> Framing:
        """A new reader of one stream."""
        return SseParser()

    @abstractmethod
    def event(self, event: Event) -> Frame:
        """The meaning of one event of a stream. Most events should be one of the constants, which cost nothing."""

    @abstractmethod
    def body(self, body: bytes) -> Frame:
        """The meaning of a whole answer that was not to be a stream."""


def unreadable(event: Event) -> Frame:
    """The meaning of an event whose data is no JSON of its API: the mark that closes, an error in words, or none."""
    if event.data.strip() == DONE:
        return LAST
    if event.name == "error":
        return Frame(error=read_error(event.data))
    return MALFORMED if event.data else NOTHING


def read_error(data: bytes) -> StreamError:
    """Text and code of an error event, whose data may be JSON or plain text."""
    try:
        return error_of(msgspec.json.decode(data))
    except UNREADABLE:
        return StreamError(data.decode("utf-8", "replace"))


def error_of(decoded: Any) -> StreamError:
    """Of `{"error": {"message", "code"}}`, `{"error": "text"}`, `{"message", "code"}` or anything else."""
    outer = decoded if isinstance(decoded, dict) else {}
    inner = outer.get("error")
    fields = inner if isinstance(inner, dict) else outer
    if isinstance(inner, str):
        text = inner
    else:
        said = fields.get("message")
        text = said if isinstance(said, str) else _text(decoded)
    codes = (_code(part.get(name)) for part in (fields, outer) for name in ("code", "status_code", "status"))
    return StreamError(text, next((code for code in codes if code is not None), None))


def count(value: object) -> int | None:
    """A count of tokens; None where it is none, or none that a row can hold."""
    return value if isinstance(value, int) and value in TOKENS else None


def _text(decoded: Any) -> str:
    try:
        return msgspec.json.encode(decoded).decode()
    except RecursionError:
        return "an error object nested too deeply to be shown"


def _code(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) <= 4:
        value = int(value)
    return value if isinstance(value, int) and value in CODES else None
