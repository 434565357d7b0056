"""OpenAI completions and chat.

Fields are those of the OpenAI API (platform.openai.com/docs/api-reference) with what vLLM and others add:
`reasoning_content` (older) and `reasoning` (newer) deltas, usage in every chunk, an error object inside the stream.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from chaosrunner.probes.dialects.base import (
    ANSWER,
    DONE,
    LAST,
    MALFORMED,
    NOTHING,
    THOUGHT,
    UNREADABLE,
    Dialect,
    Frame,
    count,
    error_of,
    read_error,
)
from chaosrunner.probes.finish import BAD_FINISH
from chaosrunner.probes.framing import Event
from chaosrunner.timeline.rows import Usage

T = TypeVar("T")


class _Message(msgspec.Struct, gc=False):
    content: object = None
    refusal: object = None
    audio: object = None
    reasoning: object = None
    reasoning_content: object = None
    tool_calls: object = None
    function_call: object = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    text: object = None
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: object = None


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: object = None
    kind: object = msgspec.field(default=None, name="object")


_decode = msgspec.json.Decoder(_Answer).decode


class OpenAI(Dialect):
    """Completions and chat, streamed or whole.

    One class for both, since a gateway may answer either way: text in `text`, `delta` or `message`.
    """

    done_mark = "[DONE]"
    has_finish = True

    def event(self, event: Event) -> Frame:
        data = event.data
        if data == DONE:  # no JSON, which would cost an exception to find out
            return LAST
        if event.name == "error" and data.strip() != DONE:
            return Frame(error=read_error(data))
        return _read(data) if data else NOTHING

    def body(self, body: bytes) -> Frame:
        return _read(body)


def _read(data: bytes) -> Frame:
    try:
        answer = _decode(data)
    except UNREADABLE:
        return LAST if data.strip() == DONE else _read_odd(data)
    choices = answer.choices
    plain = answer.usage is None and answer.error is None and answer.kind != "error"
    if plain and choices is not None and len(choices) == 1:
        choice = choices[0]
        if choice.finish_reason is None and not choice.index:
            # Nearly every event of a stream ends here.
            if choice.text:
                return ANSWER
            delta = choice.delta
            if delta is not None:
                if delta.content:
                    return ANSWER
                if delta.reasoning_content or delta.reasoning:
                    return ANSWER if delta.refusal or delta.audio else THOUGHT
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
    usage = answer.usage
    if usage is not None:
        usage = Usage(prompt_tokens=count(usage.prompt_tokens), completion_tokens=count(usage.completion_tokens))
    return Frame(content=content, answer=said, finish=finish, usage=usage, choices=each)


def _finish(value: object) -> str | None:
    """A finish_reason; SGLang's own API has objects with a `type`, and an empty text is none."""
    if isinstance(value, dict):
        value = value.get("type")
    return str(value) if value and isinstance(value, str | int | float) else None


def _read_odd(data: bytes) -> Frame:
    """An event that is no proper chunk: an error in a shape of its own, a chunk of which some fields are not what
    the API says (the others count), or nothing that we know."""
    try:
        decoded: Any = msgspec.json.decode(data)
    except UNREADABLE:
        return MALFORMED
    if not isinstance(decoded, dict):
        return MALFORMED
    if decoded.get("error"):
        return Frame(error=error_of(decoded))
    choices = decoded.get("choices")
    found = [_part(item, _Choice) for item in choices] if isinstance(choices, list) else []
    frame = _frame(_Answer([choice for choice in found if choice is not None], _part(decoded.get("usage"), Usage)))
    return MALFORMED if frame == NOTHING else frame


def _part(value: object, kind: type[T]) -> T | None:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        return None
