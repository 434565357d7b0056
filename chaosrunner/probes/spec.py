"""What a probe sends: plain data that can cross to another process, and the requests made from it."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from chaosrunner.errors import UserError
from chaosrunner.http import StreamClient, Timeouts
from chaosrunner.probes.dialects import Dialect, OpenAI, PlainHttp, PlainSse
from chaosrunner.timeline.clock import Clock

DialectName = Literal["completions", "chat", "sse", "http"]

PATHS: dict[DialectName, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "sse": "/",
    "http": "/",
}

PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
PLACEHOLDERS = ("nonce", "request", "probe", "worker")


@dataclass(frozen=True)
class Limits:
    """Time limits of a request, seconds."""

    connect: float = 5.0
    first_byte: float = 60.0
    """From having a connection to having headers. Requests that do not stream have none: their headers come last."""
    byte_idle: float = 30.0
    """Longest silence of a stream; a comment breaks it."""
    token_idle: float = 60.0
    """Longest time without a token, from the headers on and until the terminal frame; a comment does not break it."""
    total: float = 600.0
    linger: float = 5.0
    """How long the body may take to end once `[DONE]`, the terminal event or an error has come."""


@dataclass(frozen=True)
class Shape:
    """One class of request in a probe's mix.

    Strings in `prompt`, `messages` and `body` may hold `{{ nonce }}`, `{{ request }}`, `{{ probe }}`, `{{ worker }}`.
    `body` is merged over the OpenAI fields; for the plain dialects it is the whole body (JSON, or text as it is).
    """

    name: str = ""
    weight: float = 1.0
    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    max_tokens: int | None = None
    body: Mapping[str, Any] | list[Any] | str | None = None


@dataclass(frozen=True)
class Overrides:
    """What a single request changes of its probe's first shape; None leaves it."""

    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    max_tokens: int | None = None
    body: Mapping[str, Any] | list[Any] | str | None = None


@dataclass(frozen=True)
class ProbeSpec:
    """A traffic source against one URL.

    Raises UserError where the parts do not fit. Secrets are not shown in its text form.
    """

    name: str
    url: str
    dialect: DialectName = "completions"
    shapes: tuple[Shape, ...] = (Shape(prompt="Count from {{ nonce }}.", max_tokens=128),)
    model: str | None = None
    method: str | None = None
    """POST where there is a body, else GET."""
    path: str | None = None
    """Below `url`; the dialect's own where absent."""
    stream: bool = True
    concurrency: int = 1
    """Requests in flight."""
    pause: float = 0.0
    """Seconds between an answer and the worker's next request."""
    ramp: float = 0.0
    """Seconds over which the workers begin, at equal distances."""
    connection: Literal["new", "reused"] = "new"
    limits: Limits = Limits()
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_key: str | None = field(default=None, repr=False)
    ca: str | None = None
    insecure: bool = False
    pod_header: str | None = None
    """Response header that names the serving Pod."""
    fixed_length: bool = False
    """Ask for exactly `max_tokens` (vLLM's `ignore_eos` and `min_tokens`), and judge another length as wrong."""
    include_usage: bool = True
    record_chunks: bool = True
    seed: str = ""
    """Of the nonces; another one for each run, or prefix caches of the run before help."""
    terminal_event: str | None = None
    terminal_data: str | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UserError(f"probe {self.name}: concurrency must be 1 or more")
        if not self.shapes or any(shape.weight <= 0 for shape in self.shapes):
            raise UserError(f"probe {self.name}: needs at least one request shape, each with a weight above 0")
        for shape in self.shapes:
            self._check(shape)

    def _check(self, shape: Shape) -> None:
        for text in _strings([shape.prompt, shape.messages, shape.body]):
            for name in PLACEHOLDER.findall(text):
                if name not in PLACEHOLDERS:
                    known = ", ".join(PLACEHOLDERS)
                    raise UserError(f"probe {self.name}: {{{{ {name} }}}} is unknown; known are {known}")
        if self.fixed_length and shape.max_tokens is None:
            raise UserError(f"probe {self.name}: a fixed length needs max_tokens")
        if self.is_openai and isinstance(shape.body, str):
            raise UserError(f"probe {self.name}: the body of an OpenAI request is a mapping")

    @property
    def is_openai(self) -> bool:
        return self.dialect in ("completions", "chat")

    @property
    def streams(self) -> bool:
        """Whether the answer is to be an event stream."""
        return self.stream and self.dialect != "http"

    def with_overrides(self, overrides: Overrides) -> ProbeSpec:
        """The same probe with one shape, the first of its own with the overrides put in."""
        first = self.shapes[0]
        shape = replace(
            first,
            prompt=first.prompt if overrides.prompt is None else overrides.prompt,
            messages=first.messages if overrides.messages is None else overrides.messages,
            max_tokens=first.max_tokens if overrides.max_tokens is None else overrides.max_tokens,
            body=first.body if overrides.body is None else overrides.body,
        )
        return replace(self, shapes=(shape,))

    def make_dialect(self) -> Dialect:
        if self.is_openai:
            return OpenAI()
        if self.dialect == "sse":
            return PlainSse(self.terminal_event, self.terminal_data)
        return PlainHttp()

    def make_client(self, clock: Clock) -> StreamClient:
        """A client for one worker. Raises UserError for a bad URL or CA file."""
        headers = dict(self.headers)
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        return StreamClient(
            self.url,
            clock=clock,
            headers=headers,
            ca=self.ca,
            insecure=self.insecure,
            connection=self.connection,
            timeouts=Timeouts(self.limits.connect, self.limits.first_byte if self.streams else None),
        )


@dataclass(frozen=True)
class Planned:
    """One request, ready to be sent."""

    id: str
    shape: Shape
    method: str
    path: str
    content: bytes | None
    headers: Mapping[str, str]
    expected_tokens: int | None


class RequestMaker:
    """Makes a probe's requests: draws the shape, fills in the placeholders, numbers them from 1.

    Each prompt of an OpenAI probe is unique, so that no prefix cache helps: where it does not name the nonce itself,
    the nonce is put in front. The same spec makes the same requests.
    """

    def __init__(self, spec: ProbeSpec) -> None:
        self._spec = spec
        self._random = random.Random(f"{spec.seed}/{spec.name}")
        self._weights = [shape.weight for shape in spec.shapes]
        self._number = 0

    def make(self, worker: int, request_id: str | None = None) -> Planned:
        spec = self._spec
        self._number += 1
        shape = self._random.choices(spec.shapes, self._weights)[0] if len(spec.shapes) > 1 else spec.shapes[0]
        name = request_id or f"{spec.name}-{self._number}"
        nonce = hashlib.blake2b(f"{spec.seed}/{name}".encode(), digest_size=6).hexdigest()
        values = {"nonce": nonce, "request": name, "probe": spec.name, "worker": str(worker)}
        content = self._content(shape, values)
        headers = {"accept": "text/event-stream" if spec.streams else "*/*"}
        if content is not None and not isinstance(shape.body, str):
            headers["content-type"] = "application/json"
        return Planned(
            id=name,
            shape=shape,
            method=spec.method or ("GET" if content is None else "POST"),
            path=spec.path or PATHS[spec.dialect],
            content=content,
            headers=headers,
            expected_tokens=self._expected(shape) if spec.fixed_length else None,
        )

    def _expected(self, shape: Shape) -> int | None:
        """Completion tokens of an answer of fixed length; each of `n` choices has so many."""
        body = shape.body if isinstance(shape.body, Mapping) else {}
        choices = body.get("n")
        return shape.max_tokens * choices if shape.max_tokens and isinstance(choices, int) else shape.max_tokens

    def _content(self, shape: Shape, values: Mapping[str, str]) -> bytes | None:
        if self._spec.is_openai:
            return msgspec.json.encode(self._openai(shape, values))
        if shape.body is None:
            return None
        filled = _fill(shape.body, values)
        return filled.encode() if isinstance(filled, str) else msgspec.json.encode(filled)

    def _openai(self, shape: Shape, values: Mapping[str, str]) -> dict[str, Any]:
        spec = self._spec
        body: dict[str, Any] = {} if spec.model is None else {"model": spec.model}
        if spec.dialect == "completions":
            body["prompt"] = _unique(shape.prompt or "", values)
        elif shape.messages is not None:
            body["messages"] = _unique_messages(shape.messages, values)
        else:
            body["messages"] = [{"role": "user", "content": _unique(shape.prompt or "", values)}]
        if shape.max_tokens is not None:
            body["max_tokens"] = shape.max_tokens
        body["stream"] = spec.stream
        if spec.stream and spec.include_usage:
            body["stream_options"] = {"include_usage": True}
        if spec.fixed_length:
            body |= {"ignore_eos": True, "min_tokens": shape.max_tokens}
        if shape.body is not None:
            body |= _fill(shape.body, values)
        return body


def _unique(text: str, values: Mapping[str, str]) -> str:
    filled: str = _fill(text, values)
    return filled if values["nonce"] in filled else f"{values['nonce']} {filled}"


def _unique_messages(messages: tuple[Mapping[str, Any], ...], values: Mapping[str, str]) -> list[Any]:
    filled: list[Any] = _fill(messages, values)
    if not any(values["nonce"] in text for text in _strings(filled)):
        for message in filled:
            if isinstance(message.get("content"), str):
                message["content"] = f"{values['nonce']} {message['content']}"
                break
    return filled


def _fill(value: Any, values: Mapping[str, str]) -> Any:
    """The value with the placeholders of all its strings filled in."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda match: values[match[1]], value)
    if isinstance(value, Mapping):
        return {key: _fill(item, values) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_fill(item, values) for item in value]
    return value


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for item in value for text in _strings(item)]
    return []
