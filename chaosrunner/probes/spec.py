"""What a probe sends, and how much: plain data that can cross to another process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from chaosrunner.errors import UserError
from chaosrunner.http import StreamClient, Timeouts
from chaosrunner.probes.dialects import Anthropic, Dialect, JsonLines, OpenAI, PlainHttp, PlainSse, Responses
from chaosrunner.probes.replicas import Replica
from chaosrunner.timeline.clock import Clock

DialectName = Literal["completions", "chat", "responses", "messages", "sse", "json_lines", "http"]
"""completions, chat and responses are OpenAI's, messages is Anthropic's."""

PATHS: dict[DialectName, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "sse": "/",
    "json_lines": "/",
    "http": "/",
}

PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
NAME = re.compile(r"[\w.-]+")
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
class CancelAfter:
    """That some requests are cancelled in mid-stream, as a user does who closes the page: exactly one of both."""

    chunks: int | None = None
    """With the so-manieth chunk that has content. (A chunk may hold several tokens; only usage counts those.)"""
    time: float | None = None
    """So many seconds after sending."""
    share: float = 1.0
    """Share of the requests, 0 to 1, drawn by the request's number."""


@dataclass(frozen=True)
class Prompt:
    """One entry of a file of prompts; exactly one of `prompt` and `messages`."""

    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    max_tokens: int | None = None
    """The shape's where absent."""


@dataclass(frozen=True)
class Shape:
    """One class of request in a probe's mix.

    Strings in `prompt`, `messages`, `prompts`, `body` and `headers` may hold `{{ nonce }}`, `{{ request }}`,
    `{{ probe }}`, `{{ worker }}`. `body` is merged over the fields of a language model's API; for the other dialects it
    is the whole body (JSON, or text as it is).
    """

    name: str = ""
    weight: float = 1.0
    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    prompts: tuple[Prompt, ...] = field(default=(), repr=False)
    """Instead of `prompt` and `messages`: request number n takes the n-th, and begins again after the last."""
    max_tokens: int | None = None
    body: Mapping[str, Any] | list[Any] | str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of each request, over the probe's own."""
    cancel_after: CancelAfter | None = None


@dataclass(frozen=True)
class Overrides:
    """What a single request changes of its probe's first shape; None leaves it."""

    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    max_tokens: int | None = None
    body: Mapping[str, Any] | list[Any] | str | None = None


@dataclass(frozen=True)
class Stage:
    """A stretch of an open loop: the rate goes from `rps` evenly to `to`."""

    rps: float
    """Requests a second."""
    seconds: float
    to: float | None = None
    """`rps` all along where absent."""

    @property
    def end(self) -> float:
        """Requests a second at its end."""
        return self.rps if self.to is None else self.to


@dataclass(frozen=True)
class OpenLoop:
    """Requests are sent by a schedule, whatever has become of those before. The last stage's last rate goes on."""

    stages: tuple[Stage, ...]
    arrivals: Literal["poisson", "constant"] = "poisson"
    """Independent users, or equal distances."""
    max_in_flight: int = 256
    """What would be more is not sent, and recorded as `not_sent`."""


@dataclass(frozen=True)
class ProbeSpec:
    """A traffic source against one URL, or against each replica of a workload.

    Raises UserError where the parts do not fit. Secrets are not shown in its text form.
    """

    name: str
    url: str
    """Where `replicas` is set, its scheme and host are all that counts: for TLS, and the Host header."""
    dialect: DialectName = "completions"
    shapes: tuple[Shape, ...] = (Shape(prompt="Count from {{ nonce }}.", max_tokens=128),)
    model: str | None = None
    method: str | None = None
    """POST where there is a body, else GET."""
    path: str | None = None
    """Below `url`; the dialect's own where absent."""
    stream: bool = True
    open: OpenLoop | None = None
    """Open-loop load; where absent the load is a closed loop, which the next four are about."""
    concurrency: int = 1
    """Requests in flight."""
    pause: float = 0.0
    """Seconds between an answer and the user's next request."""
    jitter: float = 0.0
    """Seconds by which a pause is shorter or longer at most, drawn by the request's number."""
    ramp: float = 0.0
    """Seconds over which the users begin, at equal distances."""
    workers: int = 1
    """Processes that share the load, each with an event loop of its own; see `part` for who sends what."""
    connection: Literal["new", "reused", "fixed"] = "new"
    limits: Limits = Limits()
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_key: str | None = field(default=None, repr=False)
    ca: str | None = None
    insecure: bool = False
    http2: bool = False
    proxy: str | None = field(default=None, repr=False)
    replicas: bool = False
    """Whether each replica gets this load by its own address, instead of the URL."""
    replica: Replica | None = None
    """The one that this spec is about, see `towards`."""
    pod_header: str | None = None
    """Response header that names the serving Pod."""
    unique: bool = True
    """Whether a prompt that does not name the nonce gets it in front: no prefix cache helps then."""
    fixed_length: bool = False
    """Ask for exactly `max_tokens` (vLLM's `ignore_eos` and `min_tokens`), and judge another length as wrong."""
    include_usage: bool = True
    record_chunks: bool = True
    seed: str = ""
    """Of the nonces; another one for each run, or prefix caches of the run before help."""
    terminal_event: str | None = None
    terminal_data: str | None = None
    terminal_fields: Mapping[str, Any] | None = None
    """What the last of JSON lines has among its fields."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UserError(f"probe {self.name!r}: a name has letters, digits, -, _ and . only")
        if "@" in self.url.partition("://")[2].partition("/")[0]:
            raise UserError(
                f"probe {self.name}: credentials in a URL are recorded with it; give them as an `authorization` header"
            )
        if self.concurrency < 1:
            raise UserError(f"probe {self.name}: concurrency must be 1 or more")
        if self.open is not None:
            self._check_open(self.open)
        # Of several replicas with one user each, each worker can have some.
        most = self.most_in_flight if self.open is not None or not self.replicas else self.workers
        if not 1 <= self.workers <= most:
            raise UserError(f"probe {self.name}: workers must be 1 to {self.most_in_flight}, the most in flight")
        if not self.shapes or any(shape.weight <= 0 for shape in self.shapes):
            raise UserError(f"probe {self.name}: needs at least one request shape, each with a weight above 0")
        for shape in self.shapes:
            self._check(shape)

    def _check_open(self, load: OpenLoop) -> None:
        if any(stage.seconds <= 0 or stage.rps < 0 or stage.end < 0 for stage in load.stages):
            raise UserError(f"probe {self.name}: a stage takes a rate of 0 or more and a duration above 0")
        if not any(stage.rps or stage.end for stage in load.stages):
            raise UserError(f"probe {self.name}: an open loop needs a stage with a rate above 0")
        if load.max_in_flight < 1:
            raise UserError(f"probe {self.name}: max_in_flight must be 1 or more")

    def _check(self, shape: Shape) -> None:
        for text in strings([shape.prompt, shape.messages, shape.body, shape.headers]):
            for name in PLACEHOLDER.findall(text):
                if name not in PLACEHOLDERS:
                    known = ", ".join(PLACEHOLDERS)
                    raise UserError(f"probe {self.name}: {{{{ {name} }}}} is unknown; known are {known}")
        if self.fixed_length and self.dialect not in ("completions", "chat"):
            raise UserError(f"probe {self.name}: only completions and chat can be asked for a fixed length")
        if self.fixed_length and shape.max_tokens is None:
            raise UserError(f"probe {self.name}: a fixed length needs max_tokens")
        if self.asks_model and isinstance(shape.body, str):
            raise UserError(f"probe {self.name}: the body of a request to a language model is a mapping")

    def towards(self, replica: Replica) -> ProbeSpec:
        """The same load for one replica."""
        return replace(self, replica=replica)

    @cached_property
    def label(self) -> str:
        """What the ids of its requests begin with; no name of a probe has an @ in it."""
        return self.name if self.replica is None else f"{self.name}@{self.replica.number}"

    @cached_property
    def asks_model(self) -> bool:
        """Whether requests are made of prompts or messages, for an API of language models."""
        return self.dialect not in ("sse", "json_lines", "http")

    @cached_property
    def expects_usage(self) -> bool:
        """Whether a complete stream tells how many tokens it had: asked for, or always there in the newer APIs."""
        if self.dialect in ("completions", "chat"):
            return self.streams and self.include_usage
        return self.streams and self.asks_model

    @cached_property
    def streams(self) -> bool:
        """Whether the answer is to be an event stream."""
        return self.stream and self.dialect != "http"

    @property
    def most_in_flight(self) -> int:
        """Most requests, and so connections, at the same time."""
        return self.concurrency if self.open is None else self.open.max_in_flight

    def with_overrides(self, overrides: Overrides) -> ProbeSpec:
        """The same probe with one shape, the first of its own with the overrides put in."""
        first = self.shapes[0]
        own_text = overrides.prompt is not None or overrides.messages is not None
        shape = replace(
            first,
            prompts=() if own_text else first.prompts,
            cancel_after=None,
            prompt=first.prompt if overrides.prompt is None else overrides.prompt,
            messages=first.messages if overrides.messages is None else overrides.messages,
            max_tokens=first.max_tokens if overrides.max_tokens is None else overrides.max_tokens,
            body=first.body if overrides.body is None else overrides.body,
        )
        return replace(self, shapes=(shape,))

    def make_dialect(self) -> Dialect:
        match self.dialect:
            case "completions" | "chat":
                return OpenAI()
            case "responses":
                return Responses()
            case "messages":
                return Anthropic()
            case "sse":
                return PlainSse(self.terminal_event, self.terminal_data)
            case "json_lines":
                return JsonLines(self.terminal_fields, self.terminal_data)
            case "http":
                return PlainHttp()

    def make_client(self, clock: Clock) -> StreamClient:
        """A client for all requests of a process. Raises UserError for a bad URL or CA file.

        For replicas it is the one that `StreamClient.towards` makes each one's of.
        """
        headers = dict(self.headers)
        server_name = None
        if self.replicas:
            authority = urlsplit(self.url)
            headers = {"host": authority.netloc} | {name.lower(): value for name, value in headers.items()}
            server_name = authority.hostname
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
            if self.dialect == "messages":
                headers["x-api-key"] = self.api_key
        return StreamClient(
            self.url,
            clock=clock,
            headers=headers,
            ca=self.ca,
            insecure=self.insecure,
            http2=self.http2,
            proxy=self.proxy,
            server_name=server_name,
            connection=self.connection,
            timeouts=Timeouts(self.limits.connect, self.limits.first_byte if self.streams else None),
        )


class Planned(NamedTuple):
    """One request, ready to be sent."""

    id: str
    shape: Shape
    method: str
    path: str
    content: bytes | None
    headers: Mapping[str, str]
    """Not to be changed: requests of one shape share it."""
    expected_tokens: int | None
    scheduled: float | None = None
    """When it is to be sent, on the recording's clock, in open-loop load."""
    cancel_after: CancelAfter | None = None
    """Where this very request is to be cancelled."""
    pause: float = 0.0
    """Seconds to the next request of its user, in closed-loop load."""


def strings(value: Any) -> list[str]:
    """All texts in a value, keys apart."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for item in value for text in strings(item)]
    return []
