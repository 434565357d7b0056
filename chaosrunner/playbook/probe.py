"""Probes: what they send, how much, and what is good."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from chaosrunner.playbook.base import Model, Name, PositiveDuration, exactly_one, mistake
from chaosrunner.playbook.loads import CancelAfter, Closed, Load
from chaosrunner.playbook.requests import (
    Anthropic,
    Http,
    JsonLines,
    OpenAI,
    ServerSentEvents,
    Shape,
    TextHeaders,
    TextRequest,
)


class Timeouts(Model):
    connect: PositiveDuration = 10.0
    """Longest TCP and TLS handshake."""
    first_byte: PositiveDuration = 60.0
    """Longest wait for the response headers."""
    idle: PositiveDuration = 30.0
    """Longest silence in a body: no byte at all."""
    token_idle: PositiveDuration = 60.0
    """Longest time without a token; comments and keep-alives do not count."""
    total: PositiveDuration = 600.0
    """Longest request."""


class Slo(Model):
    """What a good request is; see goodput, good_share and warm."""

    ttft: PositiveDuration | None = None
    """Time to the first token of any kind."""
    tpot: PositiveDuration | None = None
    """Time per output token after the first."""
    e2e: PositiveDuration | None = None
    """Sending to proper end."""
    chunk_gap: PositiveDuration | None = None
    """Largest time between two chunks with content."""

    @property
    def empty(self) -> bool:
        return all(value is None for value in (self.ttft, self.tpot, self.e2e, self.chunk_gap))


PROBE_KINDS = ("openai", "anthropic", "sse", "json_lines", "http")
"""What a probe sends; exactly one of these is given."""


class Probe(Model):
    """A traffic source: what it sends (exactly one of `openai`, `anthropic`, `sse`, `json_lines`, `http`), how much,
    and what is good."""

    name: Name
    """Name in checks, steps and reports."""
    target: Literal["endpoint", "replicas"] = "endpoint"
    """Where its requests go. `endpoint`: to the drill's URL, as users' do. `replicas`: to each replica by its own
    address, past the gateway, each with the whole `load`, to tell a late gateway from a late replica. Such requests are
    none of the service's: they are in no figure of it, and a check counts them only if its `probe` names this one; of
    those, the ones sent before their replica was first Ready are in no rate. They do warm up a fresh replica, and take
    from its capacity."""
    openai: OpenAI | None = None
    """Streams from an OpenAI-compatible server."""
    anthropic: Anthropic | None = None
    """Streams from a server with Anthropic's API."""
    sse: ServerSentEvents | None = None
    """Another stream of server-sent events."""
    json_lines: JsonLines | None = None
    """A stream of JSON lines."""
    http: Http | None = None
    """Plain requests without a stream."""
    load: Load = Load(closed=Closed(concurrency=1))
    """How many requests; one at a time where absent."""
    workers: int = Field(default=1, ge=1, le=256)
    """Processes that share the load, for more streams than one core can read (some hundreds at 50 chunks a second).
    They change nothing in what is sent: users, arrivals and `max_in_flight` are split among them."""
    timeouts: Timeouts = Timeouts()
    slo: Slo = Slo()
    connection: Literal["new", "reused", "fixed"] = "reused"
    """Whether each request opens a connection, takes the one that became idle last, or its user's own."""
    fixed_length: bool = False
    """Whether an answer must have exactly `max_tokens` tokens; others are `wrong_length`."""
    record_chunks: bool = True
    """Whether the receive time of every chunk is recorded; without them chunk_gap percentiles are absent."""
    headers: TextHeaders = Field(default_factory=dict)
    """Headers of each request, beside the endpoint's: a tenant, a routing strategy. `{{ worker }}` is the user's
    number in a closed loop."""
    cancel_after: CancelAfter | None = None
    """Cancels requests in mid-stream. They are in no rate: what is drilled is what the service does next."""
    mix: list[Shape] | None = Field(default=None, min_length=1)
    """Several classes of requests in one load (openai and anthropic only)."""

    @property
    def kind(self) -> str:
        """openai, anthropic, sse, json_lines or http."""
        return exactly_one(self, PROBE_KINDS, "a probe")

    @property
    def prompt_files(self) -> list[str]:
        """Files that what it sends is read from."""
        named = [self.text.prompts if self.text else None, *(shape.prompts for shape in self.mix or [])]
        return [path for path in named if path is not None]

    def describe(self) -> str:
        """What it sends, in words."""
        each = "each replica: " if self.target == "replicas" else ""
        cancels = [("", self.cancel_after), *((f" of {shape.name}", shape.cancel_after) for shape in self.mix or [])]
        told = [f"{cancel.text()}{whose}" for whose, cancel in cancels if cancel is not None]
        return "; ".join([each + self.load.text(), *told])

    @property
    def text(self) -> TextRequest | None:
        """What it asks a language model, where it does."""
        return self.openai or self.anthropic

    @model_validator(mode="after")
    def _consistent(self) -> Probe:
        # Users of several replicas are more than one load has; `max_in_flight` is split for each.
        alone = self.target == "endpoint" or self.load.open is not None
        if alone and self.workers > self.load.most_in_flight:
            message = f"{self.workers} workers, but at most {self.load.most_in_flight} in flight"
            raise mistake(message, "a worker has one request in flight or more: lower workers, or raise the load")
        if self.kind != "openai" and self.fixed_length:
            raise mistake("fixed_length belongs to openai probes")
        if self.openai is not None and self.openai.api == "responses" and self.fixed_length:
            raise mistake("fixed_length belongs to completions and chat")
        if self.http is not None and self.cancel_after is not None and self.cancel_after.chunks is not None:
            raise mistake("an answer that is no stream has no chunks", "write cancel_after: {time: ...}")
        if self.text is None:
            if self.mix is not None:
                raise mistake("mix belongs to openai and anthropic probes")
            return self
        shapes = self.mix or []
        texts = [shape.has_text for shape in shapes] or [False]
        if not self.text.has_text and not all(texts):
            raise mistake("nothing to send: prompt is missing", 'like prompt: "Count from {{ nonce }}."')
        if len({shape.name for shape in shapes}) < len(shapes):
            raise mistake("two shapes of the mix have the same name")
        if not self.text.is_chat and any(shape.messages for shape in shapes):
            raise mistake("messages belong to a chat", "set api: chat, or use prompt")
        return self
