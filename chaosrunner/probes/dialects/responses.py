"""The OpenAI Responses API.

Events, their fields and the statuses of a response: developers.openai.com/api/reference/resources/responses/
streaming-events, and openai-python's src/openai/types/responses/response_stream_event.py. Every event is named as its
`type`; the stream ends with `response.completed`, `response.incomplete` or `response.failed`, without `[DONE]`.
vLLM (vllm/entrypoints/openai/responses/serving.py) always ends with `response.completed`, also where the response in
it has the status `incomplete` (the length was reached) or `cancelled` (aborted): the status tells.
"""

from __future__ import annotations

import msgspec

from chaosrunner.probes.dialects.base import (
    ANSWER,
    MALFORMED,
    NOTHING,
    THOUGHT,
    UNREADABLE,
    Dialect,
    Frame,
    StreamError,
    count,
    error_of,
    read_error,
    unreadable,
)
from chaosrunner.probes.framing import Event
from chaosrunner.timeline.rows import Usage

ANSWERS = frozenset(
    {
        "response.output_text.delta", "response.refusal.delta", "response.audio.delta",
        "response.audio.transcript.delta",
    }
)  # fmt: skip
"""Deltas that are the answer; those of any other name are reasoning, or arguments and code of tool calls."""
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    content: object = None


class _Response(msgspec.Struct, gc=False):
    kind: str = msgspec.field(default="", name="object")
    status: str | None = None
    error: object = None
    incomplete_details: _Incomplete | None = None
    usage: _Usage | None = None
    output: list[_Item] | None = None


class _Event(msgspec.Struct, gc=False):
    type: str | None = None
    delta: object = None
    error: object = None


class _End(msgspec.Struct, gc=False):
    response: _Response


_decode = msgspec.json.Decoder(_Event).decode
_decode_end = msgspec.json.Decoder(_End).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class Responses(Dialect):
    """Responses, streamed or whole.

    The finish_reason is the API's own word: `completed`, or why the response is incomplete (`max_output_tokens`,
    `content_filter`), or its status.
    """

    has_finish = True

    def event(self, event: Event) -> Frame:
        data = event.data
        try:
            said = _decode(data)
        except UNREADABLE:
            return unreadable(event)
        kind = said.type or event.name
        if kind.endswith(".delta"):
            if not said.delta:
                return NOTHING
            return ANSWER if kind in ANSWERS else THOUGHT
        if kind in ENDS:
            return _end(data, kind)
        if kind == "error" or event.name == "error" or said.error:
            return Frame(error=read_error(data))
        return NOTHING

    def body(self, body: bytes) -> Frame:
        try:
            response = _decode_response(body)
        except UNREADABLE:
            return MALFORMED
        if response.kind != "response" and response.status is None:
            return Frame(error=read_error(body)) if response.error else MALFORMED
        output = response.output or ()
        said = any(item.type == "message" and item.content for item in output)
        end = _frame(response, response.status or "completed")
        return msgspec.structs.replace(end, content=bool(output), answer=said)


def _end(data: bytes, kind: str) -> Frame:
    try:
        response = _decode_end(data).response
    except UNREADABLE:
        response = _Response()
    status = kind.removeprefix("response.")
    if status == "completed":
        status = response.status or status
    return _frame(response, status)


def _frame(response: _Response, status: str) -> Frame:
    error: StreamError | None = None
    if status == "failed" or response.error:
        error = error_of({"error": response.error} if response.error else {"message": "response.failed"})
    finish = None if status in ("in_progress", "queued", "failed") else status
    if status == "incomplete" and response.incomplete_details is not None and response.incomplete_details.reason:
        finish = response.incomplete_details.reason
    usage = response.usage
    return Frame(
        finish=finish,
        error=error,
        terminal=True,
        usage=Usage(prompt_tokens=count(usage.input_tokens), completion_tokens=count(usage.output_tokens))
        if usage
        else None,
    )
