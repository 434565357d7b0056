"""Anthropic's Messages API.

Events and their order: platform.claude.com/docs/en/build-with-claude/streaming; stop reasons:
platform.claude.com/docs/en/build-with-claude/handling-stop-reasons. Unknown events are to be passed over, and an
`error` event may come after HTTP 200. vLLM (vllm/entrypoints/anthropic/serving.py) sends `data: [DONE]` after
`message_stop` and after an error event; a generation that was aborted ends with a stop_reason of null there.
"""

from __future__ import annotations

import msgspec

from chaosrunner.probes.dialects.base import (
    ANSWER,
    LAST,
    MALFORMED,
    NOTHING,
    THOUGHT,
    UNREADABLE,
    Dialect,
    Frame,
    count,
    read_error,
    unreadable,
)
from chaosrunner.probes.framing import Event
from chaosrunner.timeline.rows import Usage


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Part(msgspec.Struct, gc=False):
    """A content block, or a delta of one or of the message."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Message(msgspec.Struct, gc=False):
    content: list[_Part] | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Event(_Message, gc=False):
    type: str | None = None
    delta: _Part | None = None
    content_block: _Part | None = None
    message: _Message | str | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Event).decode


class Anthropic(Dialect):
    """Messages, streamed or whole."""

    done_mark = "message_stop"
    has_finish = True

    def event(self, event: Event) -> Frame:
        data = event.data
        try:
            said = _decode(data)
        except UNREADABLE:
            return unreadable(event)
        match said.type or event.name:
            case "content_block_delta" if said.delta is not None:
                return _part(said.delta)
            case "content_block_start" if said.content_block is not None:
                return _part(said.content_block)
            case "message_delta":
                finish = said.delta.stop_reason if said.delta is not None else None
                return Frame(finish=finish, usage=_usage(said.usage))
            case "message_start" if isinstance(said.message, _Message):
                # Its output_tokens are those of the envelope, not yet of the answer.
                usage = _usage(said.message.usage)
                return Frame(usage=Usage(prompt_tokens=usage.prompt_tokens)) if usage is not None else NOTHING
            case "message_stop":
                return LAST
            case "error":
                return Frame(error=read_error(data))
        return Frame(error=read_error(data)) if said.error or event.name == "error" else NOTHING

    def body(self, body: bytes) -> Frame:
        try:
            said = _decode(body)
        except UNREADABLE:
            return MALFORMED
        if said.type == "error" or said.error:
            return Frame(error=read_error(body))
        if said.content is None and said.stop_reason is None:
            return MALFORMED
        parts = [_part(part) for part in said.content or ()]
        return Frame(
            content=any(part.content for part in parts),
            answer=any(part.answer for part in parts),
            finish=said.stop_reason,
            usage=_usage(said.usage),
        )


def _part(part: _Part) -> Frame:
    if part.text:
        return ANSWER
    if part.thinking or part.partial_json or part.type in ("tool_use", "server_tool_use", "redacted_thinking"):
        return THOUGHT
    return NOTHING


def _usage(usage: _Usage | None) -> Usage | None:
    """The prompt's tokens are those that were read from a cache, written to it, and neither."""
    if usage is None:
        return None
    inputs = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens)
    known = [tokens for tokens in inputs if tokens is not None]
    return Usage(prompt_tokens=count(sum(known)) if known else None, completion_tokens=count(usage.output_tokens))
