"""JSON Lines: one JSON document a line, as Ollama streams them.

Ollama: docs.ollama.com/api/streaming and docs.ollama.com/api/errors. Text comes in `response` (generate) or
`message.content` (chat), reasoning in `thinking`; the last line has `"done": true`, mostly with a `done_reason` and
counts of tokens; an error in mid-stream is a line `{"error": "..."}`, and the status stays 200.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from chaosrunner.probes.dialects.base import (
    ANSWER,
    MALFORMED,
    NOTHING,
    THOUGHT,
    UNREADABLE,
    Dialect,
    Frame,
    count,
    error_of,
)
from chaosrunner.probes.framing import Event, Framing
from chaosrunner.probes.lines import LineParser
from chaosrunner.timeline.rows import Usage

OLLAMA: Mapping[str, Any] = {"done": True}
_decode = msgspec.json.Decoder().decode


class JsonLines(Dialect):
    """JSON documents, a line each.

    The last line is the one that has all of `terminal` among its fields, or the one with exactly the text
    `terminal_data`; with neither, the proper end of the body is all that can be asked for. A line with Ollama's fields
    is content where they hold some; of any other make, every line is content but for the last.
    """

    def __init__(self, terminal: Mapping[str, Any] | None = OLLAMA, terminal_data: str | None = None) -> None:
        self._terminal = dict(terminal) if terminal else None
        self._data = terminal_data.encode() if terminal_data is not None else None
        self.has_terminal = bool(terminal) or terminal_data is not None

    def framing(self) -> Framing:
        return LineParser()

    def event(self, event: Event) -> Frame:
        if event.data == self._data:
            return Frame(terminal=True)
        try:
            line: Any = _decode(event.data)
        except UNREADABLE:
            return MALFORMED
        if not isinstance(line, dict):
            return ANSWER
        if line.get("error"):
            return Frame(error=error_of(line))
        said = _ollama(line)
        if self._terminal is None or any(
            name not in line or line[name] != self._terminal[name] for name in self._terminal
        ):
            return ANSWER if said is None else said
        said = said or NOTHING
        return Frame(
            content=said.content,
            answer=said.answer,
            finish=_text(line.get("done_reason")),
            usage=_usage(line),
            terminal=True,
        )

    def body(self, body: bytes) -> Frame:
        text = body.strip()
        return self.event(Event(text)) if text else NOTHING


def _ollama(line: dict[str, Any]) -> Frame | None:
    """What an Ollama line holds; None where it is none."""
    message = line.get("message")
    parts = message if isinstance(message, dict) else line
    if parts is line and "response" not in line and "thinking" not in line:
        return None
    if parts.get("response") or parts.get("content"):
        return ANSWER
    return THOUGHT if parts.get("thinking") or parts.get("tool_calls") else NOTHING


def _usage(line: dict[str, Any]) -> Usage | None:
    prompt, completion = count(line.get("prompt_eval_count")), count(line.get("eval_count"))
    return None if completion is None else Usage(prompt_tokens=prompt, completion_tokens=completion)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
