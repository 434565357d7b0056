"""What the events of a stream mean: OpenAI completions, OpenAI chat, plain server-sent events, plain HTTP.

A dialect turns one event, or one whole body, into a `Frame`. It keeps no state: `transcript` adds the frames up.
Fields are those of the OpenAI API (platform.openai.com/docs/api-reference) with what vLLM and others add:
`reasoning_content` (older) and `reasoning` (newer) deltas, usage in every chunk, an error object inside the stream.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

from chaosrunner.probes.finish import BAD_FINISH
from chaosrunner.probes.sse import Event
from chaosrunner.timeline.rows import Usage

T = TypeVar("T")

DONE = b"[DONE]"
KEEP_ALIVES = frozenset({"ping", "heartbeat", "keepalive", "keep-alive"})
"""Names of events that only show that the connection lives."""


class StreamError(msgspec.Struct, frozen=True):
    """An error object or error event inside a stream."""

    text: str
    code: int | None = None


class Frame(msgspec.Struct, frozen=True):
    """What one event says."""

    content: bool = False
    """Some token: answer text, reasoning or a tool call."""
    answer: bool = False
    """Answer text."""
    finish: str | None = None
    """finish_reason of its choice; of several choices the one that ended worst."""
    usage: Usage | None = None
    done: bool = False
    error: StreamError | None = None
    malformed: bool = False
    """Not what the dialect speaks; neither token nor error."""
    terminal: bool = False
    """The stream's last event by the rule of a plain stream."""
    choices: tuple[tuple[int, str | None], ...] = ()
    """Index and finish_reason of each choice; empty where there is none but choice 0."""


NOTHING = Frame()
MALFORMED = Frame(malformed=True)
LAST = Frame(done=True)


class Dialect(Protocol):
    """How to read one kind of answer."""

    has_done: bool
    """Whether `[DONE]` ends the stream."""
    has_finish: bool
    """Whether a finish_reason is the terminal frame."""
    has_terminal: bool
    """Whether a terminal rule of its own is given."""

    def event(self, event: Event) -> Frame:
        """The meaning of one event of a stream."""

    def body(self, body: bytes) -> Frame:
        """The meaning of a whole answer that was not to be a stream."""


class _Message(msgspec.Struct):
    content: object = None
    refusal: object = None
    audio: object = None
    reasoning: object = None
    reasoning_content: object = None
    tool_calls: object = None
    function_call: object = None


class _Choice(msgspec.Struct):
    index: int | None = None
    text: object = None
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: object = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: object = None
    kind: object = msgspec.field(default=None, name="object")


_decode = msgspec.json.Decoder(_Answer).decode


class OpenAI:
    """Completions and chat, streamed or whole.

    One class for both, since a gateway may answer either way: text in `text`, `delta` or `message`.
    """

    has_done = True
    has_finish = True
    has_terminal = False

    def event(self, event: Event) -> Frame:
        data = event.data
        if data == DONE or data.strip() == DONE:
            return LAST
        if event.name == "error":
            return Frame(error=read_error(data))
        if not data:
            return NOTHING
        return _read(data)

    def body(self, body: bytes) -> Frame:
        return _read(body)


class PlainSse:
    """Server-sent events of any make; every event with data is content, but for the terminal one.

    `terminal_event` or `terminal_data` names the event that ends the stream as meant; with neither, the proper end of
    the body is all that can be asked for. `event: error` is an error, and an event named as a keep-alive is nothing.
    """

    has_done = False
    has_finish = False

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
        return Frame(content=True, answer=True)

    def body(self, body: bytes) -> Frame:
        return Frame(content=True, answer=True) if body else NOTHING


class PlainHttp(PlainSse):
    """Any answer; its bytes are not looked into, and there may be none."""

    def body(self, body: bytes) -> Frame:
        return Frame(content=True, answer=True)


def read_error(data: bytes) -> StreamError:
    """Text and code of an error event, whose data may be JSON or plain text."""
    try:
        return _error(msgspec.json.decode(data))
    except msgspec.DecodeError:
        return StreamError(data.decode("utf-8", "replace"))


def _read(data: bytes) -> Frame:
    try:
        answer = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _read_odd(data)
    # vLLM wrote errors as {"object": "error", ...} before it wrote {"error": {...}}.
    if answer.kind == "error" or answer.error or (answer.error is not None and not answer.choices):
        return Frame(error=read_error(data))
    return _frame(answer)


def _frame(answer: _Answer) -> Frame:
    content = said = False
    finish: str | None = None
    choices = answer.choices or ()
    for choice in choices:
        if choice.text:
            content = said = True
        message = choice.delta if choice.delta is not None else choice.message
        if message is not None:
            if message.content or message.refusal or message.audio:
                content = said = True
            elif message.reasoning or message.reasoning_content or message.tool_calls or message.function_call:
                content = True
        reason = _finish(choice.finish_reason)
        if finish is None or finish.lower() not in BAD_FINISH:
            finish = reason or finish
    several = len(choices) > 1 or (len(choices) == 1 and choices[0].index)
    each = tuple((choice.index or 0, _finish(choice.finish_reason)) for choice in choices) if several else ()
    return Frame(content=content, answer=said, finish=finish, usage=answer.usage, choices=each)


def _finish(value: object) -> str | None:
    """A finish_reason; SGLang's own API has objects with a `type`, and an empty text is none."""
    if isinstance(value, dict):
        value = value.get("type")
    return str(value) if value else None


def _read_odd(data: bytes) -> Frame:
    """An event that is no proper chunk: an error in a shape of its own, a chunk of which some fields are not what
    the API says (the others count), or nothing that we know."""
    try:
        decoded: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return MALFORMED
    if not isinstance(decoded, dict):
        return MALFORMED
    if decoded.get("error"):
        return Frame(error=_error(decoded))
    choices = decoded.get("choices")
    found = [_part(item, _Choice) for item in choices] if isinstance(choices, list) else []
    frame = _frame(_Answer([choice for choice in found if choice is not None], _part(decoded.get("usage"), Usage)))
    return MALFORMED if frame == NOTHING else frame


def _part(value: object, kind: type[T]) -> T | None:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        return None


def _error(decoded: Any) -> StreamError:
    """Of `{"error": {"message", "code"}}`, `{"error": "text"}`, `{"message", "code"}` or anything else."""
    outer = decoded if isinstance(decoded, dict) else {}
    inner = outer.get("error")
    fields = inner if isinstance(inner, dict) else outer
    if isinstance(inner, str):
        text = inner
    else:
        said = fields.get("message")
        text = said if isinstance(said, str) else msgspec.json.encode(decoded).decode()
    codes = (_code(part.get(name)) for part in (fields, outer) for name in ("code", "status_code", "status"))
    return StreamError(text, next((code for code in codes if code is not None), None))


def _code(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return None
