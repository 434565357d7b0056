"""What a probe sends: requests to APIs of language models, streams of other makes, plain HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic.json_schema import WithJsonSchema

from chaosrunner.playbook.base import FilePath, Model, Name, Text, exactly_one, mistake, reader
from chaosrunner.playbook.loads import CancelAfter
from chaosrunner.timeline.redact import is_sensitive


def _read_content(value: Any) -> str | list[dict[str, Any]]:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, dict) for part in value)):
        return value
    raise ValueError("expected text, or a list of content parts as the API takes them")


class Message(Model):
    role: Text
    """system, user, assistant, ..."""
    content: Annotated[str | list[dict[str, Any]], reader(_read_content)]
    """Text, or content parts as the API takes them."""


def _one_text(of: TextRequest | Shape) -> bool:
    """Whether it says what is sent; raises a mistake where it says so twice."""
    given = [name for name in ("prompt", "messages", "prompts") if getattr(of, name) is not None]
    if len(given) > 1:
        raise mistake(f"{' and '.join(given)} exclude each other")
    return bool(given)


class TextRequest(Model):
    """What requests to all APIs of language models have in common."""

    model: Text | None = None
    """Model asked for; the drill's `endpoint.model` where absent."""
    max_tokens: int = Field(default=128, ge=1)
    """Longest answer, tokens."""
    prompt: str | None = None
    """The prompt (in chat: the one user message). `{{ nonce }}` differs in each request and defeats prefix caches."""
    messages: list[Message] | None = Field(default=None, min_length=1)
    """The messages of a chat, instead of `prompt`."""
    prompts: FilePath | None = None
    """File of prompts, instead of `prompt`: one a line, or (`.jsonl`) JSON lines with prompt or messages, and
    max_tokens. They are taken in turn; relative to the file that names it."""
    unique: bool = True
    """Whether a prompt that does not name `{{ nonce }}` gets it in front. Without, prefix caches may help."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; the server's default where absent."""
    body: dict[str, Any] = Field(default_factory=dict)
    """More fields for the body of the request."""

    @model_validator(mode="after")
    def _text_once(self) -> Self:
        _one_text(self)
        return self

    @property
    def has_text(self) -> bool:
        """Whether it says itself what is sent."""
        return _one_text(self)

    @property
    def is_chat(self) -> bool:
        """Whether it takes messages."""
        return True


class OpenAI(TextRequest):
    """Streaming requests to an OpenAI-compatible server."""

    api: Literal["completions", "chat", "responses"] = "completions"
    """Which endpoint: /v1/completions, /v1/chat/completions or /v1/responses."""
    ignore_eos: bool | None = None
    """Generate to `max_tokens` whatever the model says (vLLM's extension)."""
    min_tokens: int | None = Field(default=None, ge=0)
    """Least answer, tokens (vLLM's extension)."""

    @model_validator(mode="after")
    def _consistent(self) -> OpenAI:
        if self.messages is not None and not self.is_chat:
            raise mistake("messages belong to a chat", "set api: chat, or use prompt")
        if self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise mistake(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")
        return self

    @property
    def is_chat(self) -> bool:
        return self.api != "completions"


class Anthropic(TextRequest):
    """Streaming requests to /v1/messages of a server with Anthropic's API, as vLLM also has it."""


class Terminal(Model):
    """How a stream ends that was ended on purpose: exactly one of `data`, `event`, `eof`."""

    data: str | None = None
    """An event with exactly this data."""
    event: str | None = None
    """An event of this type."""
    eof: Literal[True] | None = None
    """The proper end of the body is enough: a cut between two events is then not seen as such."""

    @model_validator(mode="after")
    def _one(self) -> Terminal:
        exactly_one(self, ("data", "event", "eof"), "terminal")
        return self


def _read_body(value: Any) -> dict[str, Any] | list[Any] | str | None:
    if value is None or isinstance(value, dict | list | str):
        return value
    raise ValueError("expected a mapping or list (sent as JSON) or text")


Body = Annotated[dict[str, Any] | list[Any] | str | None, reader(_read_body)]
"""Body of a request: JSON (mapping or list) or text."""

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]

UrlPath = Annotated[str, Field(pattern=r"^/\S*$")]


class ServerSentEvents(Model):
    """A stream of server-sent events of any other make."""

    method: Method = "GET"
    """HTTP method."""
    path: UrlPath
    """Path below the drill's endpoint URL."""
    body: Body = None
    """JSON (mapping or list) or text."""
    terminal: Terminal = Terminal(data="[DONE]")
    """How a complete stream ends."""


class LineTerminal(Model):
    """How a stream of lines ends that was ended on purpose: exactly one of `fields`, `data`, `eof`."""

    fields: dict[str, Any] | None = Field(default=None, min_length=1)
    """A line whose JSON has these fields with these values."""
    data: str | None = None
    """A line with exactly this text."""
    eof: Literal[True] | None = None
    """The proper end of the body is enough: a cut between two lines is then not seen as such."""

    @model_validator(mode="after")
    def _one(self) -> LineTerminal:
        exactly_one(self, ("fields", "data", "eof"), "terminal")
        return self


class JsonLines(Model):
    """A stream of JSON documents, one a line, as Ollama sends them."""

    method: Method = "POST"
    """HTTP method."""
    path: UrlPath
    """Path below the drill's endpoint URL."""
    body: Body = None
    """JSON (mapping or list) or text."""
    terminal: LineTerminal = LineTerminal(fields={"done": True})
    """How a complete stream ends."""


def _read_statuses(value: Any) -> list[int]:
    statuses = value if isinstance(value, list) else [value]
    if not statuses or not all(type(status) is int and 100 <= status <= 599 for status in statuses):
        raise ValueError("expected an HTTP status like 200, or a list of them")
    return statuses


Statuses = Annotated[
    list[int],
    reader(_read_statuses),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 100, "maximum": 599},
                {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 100, "maximum": 599}},
            ]
        }
    ),
]
"""HTTP statuses; in YAML one or a list."""


class HttpExpect(Model):
    status: Statuses = Field(default_factory=lambda: [200])
    """Status, or one of several, that is a success."""


class Http(Model):
    """Plain requests; a success is a proper end of the body with the expected status."""

    method: Method = "GET"
    """HTTP method."""
    path: UrlPath
    """Path below the drill's endpoint URL."""
    body: Body = None
    """JSON (mapping or list) or text."""
    expect: HttpExpect = HttpExpect()


HeaderName = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]


def _text_headers(headers: dict[str, str]) -> dict[str, str]:
    for name in headers:
        if is_sensitive(name):
            raise mistake(f"{name} is a credential, which no playbook holds", "give it in the drill's endpoint.headers")
    return headers


TextHeaders = Annotated[dict[HeaderName, str], AfterValidator(_text_headers)]
"""Header name to text, in which `{{ nonce }}` and the like are filled in for each request."""


class Shape(Model):
    """One class of requests in a mix; what it leaves out is taken from the probe."""

    name: Name
    """Class of the request in reports."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the requests, relative to the other shapes."""
    prompt: str | None = None
    """Instead of the probe's prompt."""
    messages: list[Message] | None = Field(default=None, min_length=1)
    """Instead of the probe's messages."""
    prompts: FilePath | None = None
    """File of prompts, instead of the probe's."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Instead of the probe's."""
    min_tokens: int | None = Field(default=None, ge=0)
    """Instead of the probe's."""
    body: dict[str, Any] = Field(default_factory=dict)
    """More fields for the body; they replace the probe's."""
    headers: TextHeaders = Field(default_factory=dict)
    """More request headers; they replace the probe's."""
    cancel_after: CancelAfter | None = None
    """Instead of the probe's."""

    @property
    def has_text(self) -> bool:
        """Whether it says itself what is sent."""
        return _one_text(self)

    @model_validator(mode="after")
    def _consistent(self) -> Shape:
        _one_text(self)
        return self
