"""The plan of a probe's requests: what number n is, is told by the spec and n alone.

So the plan is the same however many processes share it, and a request can be made again from its id. It is made
quickly, since a core that fills in templates reads no streams: bodies are encoded once, and only the placeholders are
put in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from itertools import accumulate
from operator import itemgetter
from typing import Any

import msgspec

from chaosrunner.probes.spec import PATHS, PLACEHOLDER, PLACEHOLDERS, Planned, ProbeSpec, Prompt, Shape, strings

_NONCE = 6
"""Bytes of a digest that make the nonce; each of the draws takes `_DRAW` more."""
_DRAW = 4
_DRAWS: float = 2 ** (8 * _DRAW)

ANTHROPIC_VERSION = "2023-06-01"
"""Value of the header that Anthropic's API requires (platform.claude.com/docs/en/api/versioning)."""

_SLOT = re.compile(rf"\{{\{{({'|'.join(PLACEHOLDERS)})\}}\}}")
"""A placeholder in its plain spelling, which JSON leaves as it is."""


class RequestMaker:
    """Makes a probe's requests, numbered from 1."""

    def __init__(self, spec: ProbeSpec) -> None:
        self._spec = spec
        self._digest = blake2b(f"{spec.seed}/".encode(), digest_size=_NONCE + 3 * _DRAW)
        total = sum(shape.weight for shape in spec.shapes)
        borders = accumulate(shape.weight / total for shape in spec.shapes)
        self._shapes = list(zip(borders, (_ShapeMaker(spec, shape) for shape in spec.shapes), strict=True))

    def make(
        self, number: int, worker: int = 0, *, request_id: str | None = None, scheduled: float | None = None
    ) -> Planned:
        """Request `number`, sent by user `worker` of a closed loop; `request_id` instead of `<label>-<number>`."""
        spec = self._spec
        name = request_id or f"{spec.label}-{number}"
        digest = self._digest.copy()
        digest.update(name.encode())
        drawn = digest.digest()
        maker = self._shapes[-1][1]
        if len(self._shapes) > 1:
            point = _share(drawn, 0)
            maker = next((maker for border, maker in self._shapes if point < border), maker)
        shape = maker.shape
        cancel = shape.cancel_after
        if cancel is not None and _share(drawn, 1) >= cancel.share:
            cancel = None
        pause = spec.pause if not spec.jitter else spec.pause + spec.jitter * (2 * _share(drawn, 2) - 1)
        values = (drawn[:_NONCE].hex(), name, spec.name, str(worker))
        entry = maker.entry(number)
        return Planned(
            name, shape, maker.method, maker.path, entry.content(values), maker.headers(values),
            entry.expected_tokens, scheduled, cancel, pause,
        )  # fmt: skip


def _share(drawn: bytes, position: int) -> float:
    """A number of 0 <= x < 1, another one for each position."""
    start = _NONCE + position * _DRAW
    return int.from_bytes(drawn[start : start + _DRAW]) / _DRAWS


Values = tuple[str, str, str, str]
"""What stands for each of `PLACEHOLDERS`, in their order."""


class _Entry:
    """One body, and how many tokens its answer must have."""

    __slots__ = ("content", "expected_tokens")

    def __init__(self, content: Callable[[Values], bytes | None], expected_tokens: int | None) -> None:
        self.content = content
        self.expected_tokens = expected_tokens


class _ShapeMaker:
    """All that requests of one shape have in common."""

    def __init__(self, spec: ProbeSpec, shape: Shape) -> None:
        self.shape = shape
        self.path = spec.path or PATHS[spec.dialect]
        self._spec = spec
        self._prompts = shape.prompts or (Prompt(shape.prompt, shape.messages),)
        self._entries: list[_Entry | None] = [None] * len(self._prompts)
        empty = shape.body is None and not spec.asks_model
        self.method = spec.method or ("GET" if empty else "POST")
        headers = {"accept": _accept(spec)}
        if spec.dialect == "messages":
            headers["anthropic-version"] = ANTHROPIC_VERSION
        if not empty and not isinstance(shape.body, str):
            headers["content-type"] = "application/json"
        headers |= {name.lower(): value for name, value in shape.headers.items()}
        self._fixed = {name: value for name, value in headers.items() if not PLACEHOLDER.search(value)}
        self._varying = [
            (name, _filler(_plain(value))) for name, value in headers.items() if name not in self._fixed
        ]  # fmt: skip

    def headers(self, values: Values) -> Mapping[str, str]:
        if not self._varying:
            return self._fixed
        return self._fixed | {name: fill(values) for name, fill in self._varying}

    def entry(self, number: int) -> _Entry:
        """The body of request `number`; made when it is first wanted, as a file may hold many."""
        index = (number - 1) % len(self._prompts)
        entry = self._entries[index]
        if entry is None:
            entry = self._entries[index] = self._make(self._prompts[index])
        return entry

    def _make(self, prompt: Prompt) -> _Entry:
        spec, shape = self._spec, self.shape
        if spec.asks_model:
            most = prompt.max_tokens or shape.max_tokens
            body = _body(spec, shape, prompt, most)
            return _Entry(_json(body), _expected(shape, most) if spec.fixed_length else None)
        if shape.body is None:
            return _Entry(lambda values: None, None)
        if isinstance(shape.body, str):
            fill = _filler(_plain(shape.body))
            return _Entry(lambda values: fill(values).encode(), None)
        return _Entry(_json(_plain(shape.body)), None)


def _expected(shape: Shape, max_tokens: int | None) -> int | None:
    """Completion tokens of an answer of fixed length; each of `n` choices has so many."""
    choices = shape.body.get("n") if isinstance(shape.body, Mapping) else None
    return max_tokens * choices if max_tokens and isinstance(choices, int) else max_tokens


def _accept(spec: ProbeSpec) -> str:
    if not spec.streams:
        return "*/*"
    return "application/x-ndjson" if spec.dialect == "json_lines" else "text/event-stream"


def _body(spec: ProbeSpec, shape: Shape, prompt: Prompt, max_tokens: int | None) -> dict[str, Any]:
    """Of a request to an API of language models; each has its own names for the same things."""
    body: dict[str, Any] = {} if spec.model is None else {"model": spec.model}
    text = "prompt" if spec.dialect == "completions" else "input" if spec.dialect == "responses" else "messages"
    if prompt.messages is not None and spec.dialect != "completions":
        body[text] = _unique_messages(spec, prompt.messages)
    elif text == "messages":
        body[text] = [{"role": "user", "content": _unique(spec, prompt.prompt or "")}]
    else:
        body[text] = _unique(spec, prompt.prompt or "")
    if max_tokens is not None:
        body["max_output_tokens" if spec.dialect == "responses" else "max_tokens"] = max_tokens
    body["stream"] = spec.stream
    if spec.dialect in ("completions", "chat"):
        if spec.stream and spec.include_usage:
            body["stream_options"] = {"include_usage": True}
        if spec.fixed_length:
            body |= {"ignore_eos": True, "min_tokens": max_tokens}
    if shape.body is not None:
        body |= _plain(shape.body)
    return body


def _unique(spec: ProbeSpec, text: str) -> str:
    plain: str = _plain(text)
    return plain if "{{nonce}}" in plain or not spec.unique else f"{{{{nonce}}}} {plain}"


def _unique_messages(spec: ProbeSpec, messages: tuple[Mapping[str, Any], ...]) -> list[Any]:
    plain: list[Any] = _plain(messages)
    if spec.unique and not any("{{nonce}}" in text for text in strings(plain)):
        for message in plain:
            if isinstance(message.get("content"), str):
                message["content"] = f"{{{{nonce}}}} {message['content']}"
                break
    return plain


def _plain(value: Any) -> Any:
    """The value with the placeholders of all its strings in the spelling of `_SLOT`; other braces stay."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda match: f"{{{{{match[1]}}}}}" if match[1] in PLACEHOLDERS else match[0], value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _json(body: Any) -> Callable[[Values], bytes]:
    """Encodes once; each call only puts in the values, of which none holds a character that JSON escapes."""
    fill = _filler(msgspec.json.encode(body).decode())
    return lambda values: fill(values).encode()


def _filler(text: str) -> Callable[[Values], str]:
    """A function that puts the values in."""
    parts = _SLOT.split(text)  # text, name, text, name, ..., text
    form = "%s".join(part.replace("%", "%%") for part in parts[::2])
    match [PLACEHOLDERS.index(name) for name in parts[1::2]]:
        case []:
            return lambda values: text
        case [slot]:
            return lambda values: form % values[slot]
        case slots:
            pick = itemgetter(*slots)
            return lambda values: form % pick(values)
