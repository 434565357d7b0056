"""Playbooks and drills as data.

Plain times are seconds (float). Field names are the keys of the YAML; where a key is a Python keyword or has a
hyphen, the attribute is `for_`, `from_`, `delete_pod`, `probe_once`. Every docstring below a field is also its
description in the JSON Schema that editors show.
"""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic.json_schema import WithJsonSchema

from chaosrunner.playbook.base import (
    Duration,
    FilePath,
    Model,
    Name,
    Percent,
    PositiveDuration,
    Quantity,
    Selector,
    Text,
    WholeSeconds,
    mistake,
    reader,
)
from chaosrunner.playbook.expressions import ANSWERS, OUTCOMES, Expression, parse, suggest
from chaosrunner.playbook.loads import CancelAfter, Closed, Load
from chaosrunner.playbook.secret import Secret
from chaosrunner.timeline.redact import is_sensitive

API_VERSION = "chaosrunner.dev/v1"

ParameterName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def exactly_one(model: Model, names: tuple[str, ...], what: str) -> str:
    """The one of the fields `names` that is given; raises a mistake where it is not exactly one."""
    given = [name for name in names if getattr(model, name) is not None]
    if len(given) == 1:
        return given[0]
    keys = [type(model).model_fields[name].alias or name for name in names]
    found = " and ".join(type(model).model_fields[name].alias or name for name in given) or "none"
    raise mistake(f"{what} has exactly one of {', '.join(keys)}; found {found}")


class Metadata(Model):
    name: Name
    """Name by which the file is found and reported."""
    tags: list[Name] = Field(default_factory=list)
    """Words to choose drills by."""


# --- parameters -------------------------------------------------------------------------------------------


class Parameter(Model):
    """A value that a drill (or `-p name=value`) gives, written `${name}` where it is used."""

    type: Literal["string", "integer", "number", "boolean", "duration", "percent"]
    """What the value is: text, whole number, number, true/false, a duration (30s) or a percentage (50%)."""
    default: Any = None
    """Value where none is given; without a default a value must be given."""
    minimum: Any = None
    """Least value allowed (integer, number, duration, percent)."""
    maximum: Any = None
    """Largest value allowed (integer, number, duration, percent)."""
    enum: list[Any] | None = Field(default=None, min_length=1)
    """The only values allowed."""
    description: str = ""
    """What the value is for, shown by `plan` and by editors."""


# --- probes -----------------------------------------------------------------------------------------------


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


# --- steps ------------------------------------------------------------------------------------------------


def _read_answer(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
        return value
    if isinstance(value, str):
        if value in ANSWERS:
            return value
        raise ValueError(f'unknown answer "{value}"; {suggest(value, ANSWERS) or "one of: " + ", ".join(ANSWERS)}')
    raise ValueError("expected an HTTP status like 429 or a class of answers like blocked_by_budget")


Answer = Annotated[
    int | str,
    reader(_read_answer),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 100, "maximum": 599}, {"enum": list(ANSWERS)}]}),
]
"""HTTP status, or class of the answer."""

Pick = Literal["most_in_flight", "least_in_flight", "random", "oldest", "newest"]


def _read_rate(value: Any) -> float:
    match = (
        re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)bit", value.strip().lower()) if isinstance(value, str) else None
    )
    if match is None or float(match[1]) <= 0:
        raise ValueError("expected bits a second, like 500kbit, 10mbit or 1gbit")
    return float(match[1]) * {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}[match[2]]


BitRate = Annotated[
    float,
    reader(_read_rate),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\s*[kmg]?bit$"}),
]
"""Bits a second; in YAML `500kbit`, `10mbit`, `1gbit`."""


def _network(value: str) -> str:
    try:
        return str(ip_network(value, strict=False))
    except ValueError:
        raise mistake(f'"{value}" is no network', "like 10.0.0.0/8, or one address") from None


Cidr = Annotated[str, AfterValidator(_network)]
Port = Annotated[int, Field(ge=1, le=65535)]
LABEL = r"^([a-z0-9A-Z]([-a-z0-9A-Z.]*[a-z0-9A-Z])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
"""A qualified name, as keys of labels and taints are."""


class PodSource(Model):
    """Narrows the candidates to exactly one of `selector`, `node`, `expression`."""

    selector: Selector | None = None
    """Pods of the workload that also carry these labels."""
    node: Text | None = None
    """Pods of the workload on this node."""
    expression: Expression | None = None
    """Pods for which this holds when the step fires, like `in_flight(target) >= 2`."""

    @model_validator(mode="after")
    def _one(self) -> PodSource:
        exactly_one(self, ("selector", "node", "expression"), "from")
        return self


class Trigger(Model):
    """When a fault fires."""

    when: Expression | None = None
    """Fire when this holds; `target` is each candidate in turn. At once where absent."""
    within: PositiveDuration = 60.0
    """Longest wait for `when`; then the run is inconclusive, and nothing was changed."""


class PodTarget(Trigger):
    """Which Pods a fault is aimed at."""

    pods: Quantity = Quantity("one")
    """How many: one, all, a number, or a percentage of the candidates (rounded down, at least one).
    Candidates are the workload's Running Pods that are not terminating, frozen before the run."""
    from_: PodSource | None = Field(default=None, alias="from")
    """Narrows the candidates."""
    pick: Pick = "most_in_flight"
    """Which of the candidates come first."""
    including: Literal["replacements"] | None = None
    """`replacements`: Pods created by earlier faults of this run are candidates too."""


class PodFault(PodTarget):
    """Pods that are taken away."""

    grace_period: WholeSeconds | None = None
    """Termination grace period asked for, whole seconds; the Pod's own where absent."""
    expect: Answer = "accepted"
    """Answer that the step expects; any other fails it."""


class Evict(PodFault):
    """Ask the Eviction API to evict Pods, as a drain does; budgets are honoured."""

    dry_run: bool = False
    """Only ask (`dryRun=All`): the server answers as it would, and nothing is taken away."""
    retry_for: Duration = 0.0
    """How long an eviction that a budget refuses, or of which nobody says what became, is tried again."""


class DeletePod(PodFault):
    """Delete Pods directly, past every budget."""

    force: bool = False
    """Remove the object at once (grace period 0), without waiting for the kubelet: the process may live on."""

    @model_validator(mode="after")
    def _consistent(self) -> DeletePod:
        if self.force and self.grace_period:
            raise mistake("force means a grace period of 0", "leave grace_period out")
        return self


class PodSet(Model):
    """Pods by their labels."""

    selector: Selector
    """Labels of the Pods."""
    namespace: Name | None = None
    """Their namespace; the workload's where absent."""


class Networks(Model):
    """Addresses as networks."""

    cidr: list[Cidr] = Field(min_length=1)
    """Networks like 10.0.0.0/8, or single addresses."""


def _peer_kind(value: Any) -> str:
    if isinstance(value, Networks) or (isinstance(value, dict) and "cidr" in value):
        return "networks"
    return "pods" if isinstance(value, dict | PodSet) else "name"


Peer = Annotated[
    Annotated[Literal["gateway", "everywhere"], Tag("name")]
    | Annotated[PodSet, Tag("pods")]
    | Annotated[Networks, Tag("networks")],
    Discriminator(_peer_kind),
]
"""The other end of a network fault."""

EFFECTS = ("partition", "reject", "loss", "latency", "rate")
"""What a network fault does; exactly one of these is given."""


class Network(PodTarget):
    """Disturb the network between Pods of the workload and a peer. It ends by itself after `for`, in the Pod's own
    network where the driver can do that, also if chaosrunner and the API server are gone by then."""

    partition: Literal[True] | None = None
    """Drop every packet; connections that exist fall silent."""
    reject: Literal[True] | None = None
    """Answer with a reset; connections that exist break at their next packet."""
    loss: Percent | None = None
    """Drop this share of the packets."""
    latency: PositiveDuration | None = None
    """Delay what is sent."""
    jitter: Duration = 0.0
    """By how much the delay differs from packet to packet, more or less."""
    rate: BitRate | None = None
    """Let no more through, like 500kbit or 10mbit (a second)."""
    peer: Peer = "gateway"
    """The other end: `gateway` (the Pods of `workload.gateway` in the drill), `everywhere`, Pods by their labels, or
    networks."""
    direction: Literal["both", "in", "out"] = "both"
    """Which packets, as the Pod sees it."""
    ports: list[Port] | None = Field(default=None, min_length=1)
    """Only connections to these ports of the Pod; all where absent."""
    ready: Literal["kept", "lost"] = "kept"
    """`kept`: the kubelet's probes pass, so that the Pod stays Ready while its callers cannot reach it. `lost`: they
    are hit as well, where the peer is everywhere."""
    for_: PositiveDuration = Field(default=60.0, alias="for")
    """How long."""

    @property
    def effect(self) -> Literal["partition", "reject", "loss", "latency", "rate"]:
        """What it does."""
        given: Literal["partition", "reject", "loss", "latency", "rate"] = exactly_one(self, EFFECTS, "network")  # type: ignore[assignment]
        return given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.jitter and self.effect != "latency":
            raise mistake("jitter belongs to latency")
        if self.latency is not None and self.jitter > self.latency:
            raise mistake("jitter is above latency: a packet cannot come before it was sent")
        if self.ready == "lost" and self.peer != "everywhere":
            raise mistake("ready: lost needs peer: everywhere", "the kubelet is no part of any other peer")
        return self


class ProcessFault(PodTarget):
    """Which process of which Pods."""

    container: Name | None = None
    """Container whose process it is; the Pod's first where absent."""
    process: Text | None = None
    """A process by its name, like `VLLM::EngineCore`; the container's main process where absent."""


class Freeze(ProcessFault):
    """Stop a process without ending it. It goes on by itself after `for`."""

    for_: PositiveDuration = Field(default=30.0, alias="for")
    """How long."""


class Kill(ProcessFault):
    """Send a signal to a process."""

    signal: Literal["KILL", "TERM", "INT", "QUIT", "ABRT", "SEGV"] = "KILL"
    """Which. Others than KILL may be ignored by the process."""


class NodeTarget(Model):
    """Which nodes: one by name, or some of those that host the workload."""

    node: Text | None = None
    """This node."""
    nodes: Quantity | None = None
    """How many of the candidates; one where neither `node` nor `nodes` is given."""
    of: Literal["workload", "cordoned"] | None = None
    """Candidates: nodes that run Pods of the workload, or those that this run cordoned."""
    selector: Selector | None = None
    """Only nodes with these labels."""
    pick: Pick = "most_in_flight"
    """Which of the candidates come first; in-flight requests and ages are those of their Pods."""

    @model_validator(mode="after")
    def _consistent(self) -> NodeTarget:
        if self.node is not None and (self.nodes is not None or self.of is not None or self.selector is not None):
            raise mistake("node names the node; nodes, of and selector choose one", "keep one of the two")
        return self


class Cordon(NodeTarget):
    """Mark nodes unschedulable; undone at the end of the run."""

    of: Literal["workload"] | None = None
    """Candidates: nodes that run Pods of the workload."""


class Uncordon(NodeTarget):
    """Put nodes back that this run cordoned, before its end; all of them where nothing is named."""


class Drain(NodeTarget, Trigger):
    """Cordon nodes and evict their Pods, by the rules of `kubectl drain`; the cordon is undone at the end."""

    timeout: PositiveDuration = 600.0
    """Longest drain of one node; then the step failed."""
    ignore_daemonsets: bool = True
    """Leave Pods of DaemonSets alone; false refuses a node that has some."""
    delete_emptydir_data: bool = False
    """Evict Pods with emptyDir volumes too (their data is lost); false refuses a node that has some."""
    force: bool = False
    """Evict Pods without a controller too (they do not come back); false refuses a node that has some."""
    grace_period: WholeSeconds | None = None
    """Termination grace period asked for, whole seconds; each Pod's own where absent."""
    retry_every: PositiveDuration = 5.0
    """Time between tries of an eviction that a budget refuses."""


class Taint(NodeTarget):
    """Put a taint on nodes; taken away after `for`, or at the end of the run."""

    of: Literal["workload"] | None = None
    """Candidates: nodes that run Pods of the workload."""
    key: Annotated[str, Field(pattern=LABEL)] = "chaosrunner.dev/drill"
    """Key of the taint."""
    value: str = ""
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"
    """Keep Pods away, or (`NoExecute`) throw out those that do not tolerate it as well."""
    for_: PositiveDuration | None = Field(default=None, alias="for")
    """How long; until the end of the run where absent."""


class Scale(Trigger):
    """Change the replicas of the workload's controller; put back after `for`, or at the end of the run."""

    replicas: int | None = Field(default=None, ge=0)
    """How many."""
    by: int | None = None
    """How many more, or (negative) fewer."""
    for_: PositiveDuration | None = Field(default=None, alias="for")
    """How long; until the end of the run where absent."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        exactly_one(self, ("replicas", "by"), "scale")
        return self


class RolloutRestart(Trigger):
    """Replace all Pods of the workload by its controller's rules, as `kubectl rollout restart` does. Not undone."""


Argv = Annotated[list[str], Field(min_length=1)]


class Command(PodTarget):
    """Run commands of your own: a cloud's CLI, ssh, IPMI. They are run for each chosen Pod: `{{ pod }}`, `{{ node }}`,
    `{{ ip }}`, `{{ namespace }}`, `{{ context }}` and `{{ kubeconfig }}` are filled in; no shell is between. Exit
    code 0 means that it worked."""

    apply: Argv
    """Makes the change."""
    verify: Argv | None = None
    """Tells whether it bit; taken for granted where absent."""
    undo: Argv | None = None
    """Takes it back; must work twice, and where nothing was changed. Nothing is undone where absent."""
    verify_undone: Argv | None = None
    """Tells whether nothing of it is left."""
    timeout: PositiveDuration = 30.0
    """Longest run of each; then it is killed, and counts as failed."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables beside those of chaosrunner itself; no secrets."""
    for_: PositiveDuration | None = Field(default=None, alias="for")
    """How long; until the end of the run where absent."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.undo is None and (self.verify_undone is not None or self.for_ is not None):
            raise mistake("nothing is undone without undo", "give undo, or leave verify_undone and for out")
        return self


class Heal(Model):
    """End the fault of an earlier step before its time."""

    step: Name
    """Name of that step."""


class Baseline(Model):
    """Watch the service at rest; no fault is sent before it was healthy."""

    for_: PositiveDuration = Field(default=30.0, alias="for")
    """Least length of the baseline."""
    until: Expression = parse("success_rate >= 0.99")
    """What must hold at its end."""
    timeout: PositiveDuration = 120.0
    """Longest wait for `until` after `for`; then the run is inconclusive."""


class Wait(Model):
    """Wait for something to become true."""

    until: Expression
    """What must become true, like `replacement.warm` or `endpoints_back and pods_ready >= 2`."""
    timeout: PositiveDuration = 600.0
    """Longest wait; then the step failed and the rest is skipped."""


class Hold(Model):
    """Keep the load running and watch."""

    for_: PositiveDuration = Field(alias="for")
    """How long."""


def _read_outcomes(value: Any) -> list[str]:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if name not in OUTCOMES:
            raise ValueError(
                f'unknown outcome "{name}"; {suggest(str(name), OUTCOMES) or "one of: " + ", ".join(OUTCOMES)}'
            )
    if not names:
        raise ValueError("expected an outcome, or a list of them")
    return names


class OnceExpect(Model):
    status: int | None = Field(default=None, ge=100, le=599)
    """HTTP status."""
    outcome: (
        Annotated[
            list[str],
            reader(_read_outcomes),
            WithJsonSchema({"anyOf": [{"enum": list(OUTCOMES)}, {"type": "array", "items": {"enum": list(OUTCOMES)}}]}),
        ]
        | None
    ) = None
    """Outcome, or one of several."""

    @model_validator(mode="after")
    def _any(self) -> OnceExpect:
        if self.status is None and self.outcome is None:
            raise mistake("expect names a status, an outcome, or both")
        return self


class ProbeOnce(Model):
    """Send one request outside the success rate, and check its answer."""

    probe: Text
    """Name of the probe that sends it."""
    prompt: str | None = None
    """Instead of the probe's prompt."""
    messages: list[Message] | None = Field(default=None, min_length=1)
    """Instead of the probe's messages."""
    max_tokens: int | None = None
    """Instead of the probe's."""
    body: dict[str, Any] = Field(default_factory=dict)
    """More fields for the body; they replace the probe's."""
    expect: OnceExpect = OnceExpect(outcome=["complete", "complete_missing_done"])
    """Answer expected; a success where absent."""


LASTING = (Network, Freeze, Taint, Scale, Command)
"""Faults that are there until something ends them."""

StepBody = (
    Baseline | Evict | DeletePod | Cordon | Uncordon | Drain | Network | Freeze | Kill | Taint | Scale | RolloutRestart
    | Command | Heal | Wait | Hold | ProbeOnce
)  # fmt: skip

STEPS = (
    "baseline", "evict", "delete_pod", "cordon", "uncordon", "drain", "network", "freeze", "kill", "taint", "scale",
    "rollout_restart", "command", "heal", "wait", "hold", "probe_once",
)  # fmt: skip


class Step(Model):
    """One step: exactly one of the keys below, and an optional name."""

    name: Name | None = None
    """Name in reports; the kind of the step where absent."""
    baseline: Baseline | None = None
    """Watch the service at rest; gate of every fault."""
    evict: Evict | None = None
    """Evict Pods through the Eviction API."""
    delete_pod: DeletePod | None = Field(default=None, alias="delete-pod")
    """Delete Pods directly."""
    cordon: Cordon | None = None
    """Mark nodes unschedulable."""
    uncordon: Uncordon | None = None
    """Take cordons of this run back."""
    drain: Drain | None = None
    """Cordon nodes and evict their Pods."""
    network: Network | None = None
    """Disturb the network of Pods."""
    freeze: Freeze | None = None
    """Stop a process for a while."""
    kill: Kill | None = None
    """Send a signal to a process."""
    taint: Taint | None = None
    """Put a taint on nodes."""
    scale: Scale | None = None
    """Change the number of replicas."""
    rollout_restart: RolloutRestart | None = Field(default=None, alias="rollout-restart")
    """Replace all Pods by a rollout."""
    command: Command | None = None
    """Run commands of your own."""
    heal: Heal | None = None
    """End the fault of an earlier step."""
    wait: Wait | None = None
    """Wait until something holds."""
    hold: Hold | None = None
    """Keep the load running and watch."""
    probe_once: ProbeOnce | None = Field(default=None, alias="probe-once")
    """One request outside the success rate, with an expected answer."""

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, data: Any) -> Any:
        """`- baseline` and `- uncordon:` mean the step with all its defaults."""
        if isinstance(data, str):
            return {data: {}}
        if isinstance(data, dict):
            return {key: {} if value is None and key != "name" else value for key, value in data.items()}
        return data

    @model_validator(mode="after")
    def _one(self) -> Step:
        exactly_one(self, STEPS, "a step")
        return self

    @property
    def kind(self) -> str:
        """The key as YAML writes it: baseline, evict, delete-pod, ..."""
        return self._field.replace("_", "-")

    @property
    def body(self) -> StepBody:
        body: StepBody = getattr(self, self._field)
        return body

    @property
    def title(self) -> str:
        """Its name, or what it is."""
        return self.name or self.kind

    @property
    def _field(self) -> str:
        return next(name for name in STEPS if getattr(self, name) is not None)


class Check(Model):
    """A pass criterion, judged when the run is over."""

    check: Expression
    """What must hold."""
    name: Text | None = None
    """Name in reports; the expression where absent."""
    confidence: Percent | None = None
    """Compare the bound of the confidence interval at this level instead of the estimate (success_rate only)."""
    probe: Text | None = None
    """Count only requests of this probe; those of all probes of the endpoint where absent, and none that went to the
    replicas directly."""

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, data: Any) -> Any:
        return {"check": data} if isinstance(data, str) else data

    @property
    def title(self) -> str:
        return self.name or str(self.check)


class Playbook(Model):
    """A reusable procedure: probes, steps and checks, with parameters."""

    apiVersion: Literal["chaosrunner.dev/v1"]
    """Version of the format."""
    kind: Literal["Playbook"]
    """Playbook."""
    metadata: Metadata
    """Name and tags."""
    description: str = ""
    """What question the playbook answers, and how."""
    parameters: dict[ParameterName, Parameter] = Field(default_factory=dict)
    """Values that a drill gives."""
    probes: list[Probe] = Field(min_length=1)
    """Traffic that runs from the first step to the last."""
    steps: list[Step] = Field(min_length=1)
    """What happens, in this order."""
    abort: Expression | None = None
    """When this holds at any time after the baseline, the run is aborted and everything put back."""
    checks: list[Check] = Field(default_factory=list)
    """What must hold in the end."""
    warm_streams: int = Field(default=3, ge=1, le=100)
    """How many consecutive good streams make a replacement warm."""


# --- drills -----------------------------------------------------------------------------------------------


def _header_kind(value: Any) -> str:
    return "secret" if isinstance(value, dict | Secret) else "text"


HeaderValue = Annotated[Annotated[str, Tag("text")] | Annotated[Secret, Tag("secret")], Discriminator(_header_kind)]


def _hide(headers: Any) -> Any:
    if not isinstance(headers, dict):
        return headers
    return {
        name: {"value": value} if isinstance(value, str) and is_sensitive(str(name)) else value
        for name, value in headers.items()
    }


Headers = Annotated[
    dict[HeaderName, HeaderValue],
    reader(_hide),
]
"""Header name to text, or to a credential; text under a name like Authorization counts as a credential."""


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise mistake(f'"{value}" is no URL', "like https://gateway.example.com")
    if parts.username is not None or parts.password is not None:
        raise mistake("a URL with credentials ends up in logs", "use api_key or headers with {env: NAME}")
    if parts.query or parts.fragment:
        raise mistake("the URL is a base to which paths are added; it has no query and no fragment")
    return value.rstrip("/")


Url = Annotated[str, AfterValidator(_url)]


def resolve_headers(headers: dict[str, str | Secret]) -> dict[str, str]:
    """Headers with their credentials, read now. Raises `UserError` where one cannot be had."""
    return {name: value.resolve() if isinstance(value, Secret) else value for name, value in headers.items()}


class Gateway(Model):
    """The Pods through which the probes' requests come."""

    selector: Selector
    """Labels of its Pods."""
    namespace: Name | None = None
    """Their namespace; the workload's where absent."""


class Workload(Model):
    """What the drill is about."""

    selector: Selector
    """Labels of its Pods."""
    controller: str | None = Field(default=None, pattern=r"^[A-Za-z][A-Za-z0-9.]*/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    """What creates them, like `deployment/chat`; looked up from the Pods' owners where absent."""
    service: Name | None = None
    """Service whose endpoints they are; without it endpoint metrics are unknown."""
    gateway: Gateway | None = None
    """The Pods through which requests come: what network faults call `gateway`. A rehearsal uses the lab's."""


def _read_port(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535:
        return value
    if isinstance(value, str) and re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value):
        return int(value) if value.isdigit() and 1 <= int(value) <= 65535 else value
    raise ValueError("expected a port number from 1 to 65535, or the name of a port of the Service, like http")


class Replicas(Model):
    """How probes with `target: replicas` reach each replica by its own address. Headers, `api_key` and what a request
    asks for are the endpoint's; there is no path before that of the API, and no proxy but the one given here."""

    port: (
        Annotated[
            int | str,
            reader(_read_port),
            WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "string"}]}),
        ]
        | None
    ) = None
    """Number of the port at the Pods, or the name that the workload's Service gives it; the Service's only port where
    absent."""
    scheme: Literal["http", "https"] = "http"
    """Whether the replicas speak TLS themselves."""
    host: Text | None = None
    """Host header of the requests and, with `https`, the name that the certificate must have, and not the Pod's
    address; the host of `endpoint.url` where absent, as a gateway passes it on."""
    family: Literal["IPv4", "IPv6"] | None = None
    """Which address of a Pod with two; its first (`status.podIP`) where absent."""
    credentials: bool = True
    """Whether `api_key` and other credentials among the endpoint's headers are sent to the replicas too."""
    ca: FilePath | None = None
    """File of CA certificates instead of the endpoint's `ca`; relative to the drill's file."""
    insecure: bool | None = None
    """Do not verify the replicas' certificates; as for the endpoint where absent."""
    http2: bool = False
    """Speak HTTP/2 to the replicas."""
    proxy: Url | None = None
    """HTTP proxy that reaches the Pods, where this machine does not."""

    @model_validator(mode="after")
    def _consistent(self) -> Replicas:
        if self.ca is not None and self.insecure:
            raise mistake("ca and insecure exclude each other")
        return self


class Endpoint(Model):
    """Where the probes send their requests."""

    url: Url | None = None
    """Base URL of the gateway or Service; a rehearsal uses the lab's."""
    pod_header: Text | None = None
    """Response header that names the serving Pod (its name or address); without it losses cannot be placed."""
    api_key: Secret | None = None
    """Sent as `Authorization: Bearer ...`."""
    headers: Headers = Field(default_factory=dict)
    """More request headers."""
    ca: FilePath | None = None
    """File of CA certificates to trust instead of the system's; relative to the drill's file."""
    insecure: bool = False
    """Do not verify the server's certificate."""
    http2: bool = False
    """Speak HTTP/2, over TLS or, by prior knowledge, without. Needs the package `h2` (`chaosrunner[http2]`)."""
    proxy: Url | None = None
    """HTTP proxy between, `http://host:port`; none is taken from the environment."""
    model: Text | None = None
    """Model asked for where a probe names none."""
    replicas: Replicas = Replicas()
    """For probes with `target: replicas`: how each replica is reached by its own address."""

    @model_validator(mode="after")
    def _consistent(self) -> Endpoint:
        if self.ca is not None and self.insecure:
            raise mistake("ca and insecure exclude each other")
        return self


class Prometheus(Model):
    """Where alert states are asked."""

    url: Url | None = None
    """Base URL; a rehearsal uses the lab's alert source."""
    interval: PositiveDuration = 5.0
    """Time between two polls."""
    headers: Headers = Field(default_factory=dict)
    """Request headers."""
    rules: bool = True
    """Ask /api/v1/rules too, which tells rules that could not be evaluated from alerts that are not firing."""
    ca: FilePath | None = None
    """File of CA certificates to trust instead of the system's; relative to the drill's file."""
    insecure: bool = False
    """Do not verify the server's certificate."""


StaysUntilUndone = Literal["cordon", "uncordon", "drain", "taint", "scale", "command", "network-policy", "toxiproxy"]


class Limits(Model):
    """What the drill may touch at most; a plan above it is refused."""

    max_pods: int = Field(default=1, ge=1)
    """Pods of the workload that are taken away at once, and all Pods that a drain evicts, whosever they are."""
    max_nodes: int = Field(default=1, ge=1)
    """Nodes that are cordoned or drained at once."""
    max_percent: Percent = 100.0
    """Share of the workload's Pods that are taken away at once."""
    namespaces: list[Name] | None = Field(default=None, min_length=1)
    """The only namespaces in which anything may be changed; the drill's own where absent."""
    labels: Selector | None = None
    """Labels that every Pod must carry that is taken away."""
    deadline: PositiveDuration = 3600.0
    """Longest run; then it is aborted and everything put back."""
    allow_until_undone: list[StaysUntilUndone] = Field(default_factory=list)
    """Steps and drivers that a production drill may use though what they change does not end by itself, should the
    runner and its host be gone."""


class AgentImage(Model):
    """The container that sets faults inside a Pod: see `chaosrunner agent --help`."""

    image: Text | None = None
    """Image; the one of this version where absent."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When nodes pull it."""


class ToxiproxyDriver(Model):
    """A Toxiproxy between callers and replicas."""

    url: Url | None = None
    """Base URL of its HTTP API; a rehearsal uses the lab's."""
    proxy: Text = "{{ pod }}"
    """Name of the proxy that leads to a Pod; `{{ pod }}` and `{{ ip }}` are filled in."""


DRIVERS = ("ephemeral-container", "network-policy", "toxiproxy")

Driver = Literal["ephemeral-container", "network-policy", "toxiproxy"]


def _read_drivers(value: Any) -> list[Any]:
    drivers = value if isinstance(value, list) else [value]
    for driver in drivers:
        if driver not in DRIVERS:
            raise ValueError(
                f'unknown driver "{driver}"; {suggest(str(driver), DRIVERS) or "one of: " + ", ".join(DRIVERS)}'
            )
    if not drivers:
        raise ValueError("expected a driver, or a list of them in the order of preference")
    return drivers


Preference = Annotated[
    list[Driver],
    reader(_read_drivers),
    WithJsonSchema(
        {"anyOf": [{"enum": list(DRIVERS)}, {"type": "array", "minItems": 1, "items": {"enum": list(DRIVERS)}}]}
    ),
]
"""Drivers; in YAML one, or a list."""


class Drivers(Model):
    """By what faults are made where there is more than one way."""

    network: Preference = ["ephemeral-container"]  # noqa: RUF012
    """`ephemeral-container`: rules in the Pod's own network, which end by themselves. `network-policy`: a
    NetworkPolicy. `toxiproxy`: a proxy in between. Of a list the first that works here."""
    agent: AgentImage = AgentImage()
    """The container of `ephemeral-container`, of freeze and of kill."""
    toxiproxy: ToxiproxyDriver = ToxiproxyDriver()
    """Where the proxy is."""


Share = Annotated[float, Field(ge=0, le=1)]


class LabWarmup(Model):
    """A fresh replica is slow at first."""

    first_token: Duration | None = None
    """Delay of the very first request's first token."""
    standstill: Duration | None = None
    """Silence in mid-stream of the first requests, while the engine compiles."""
    requests: int | None = Field(default=None, ge=1)
    """How many requests stand still."""
    classes: list[int] | None = None
    """Borders in prompt tokens between the length classes that are compiled separately."""
    class_share: Share | None = None
    """Share of both that the first request of a new length class costs."""


class LabModel(Model):
    """The model server; the keys are its options."""

    model: Text | None = None
    """Name of the served model."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Longest prompt plus answer, tokens; longer requests get HTTP 400."""
    tokens_per_second: float | None = Field(default=None, gt=0)
    """Speed of one sequence running alone."""
    batch_slowdown: Share | None = None
    """By how much each further running sequence lengthens a step."""
    prefill_tokens_per_second: float | None = Field(default=None, gt=0)
    """Prompt tokens read a second."""
    max_sequences: int | None = Field(default=None, ge=1)
    """Sequences generated at the same time; more wait."""
    queue: int | None = Field(default=None, ge=0)
    """Requests that may wait; more are answered 503."""
    merge: Share | None = None
    """Share of tokens that share a chunk with the next, at full load."""
    eos: Share | None = None
    """Chance of each token to end the answer."""
    seed: int | None = None
    """Seed of texts and of the spread of chunks."""
    sigterm: Literal["abort", "error", "hang", "drain", "ignore"] | None = None
    """At SIGTERM: end streams politely but unfinished; with an error object; fall silent; finish them; go on."""
    drain_timeout: Duration | None = None
    """Longest drain."""
    exit_delay: Duration | None = None
    """Time the port stays open after the last stream ended."""
    keep_alive: Duration | None = None
    """How long an idle connection is kept open."""
    pod_header: str | None = None
    """Response header that names the Pod; empty sends none."""
    control: bool | None = None
    """Serve POST /control/..., by which a test crashes or stalls the engine."""
    engine_process: bool | None = None
    """Run the engine core as a process of its own, `VLLM::EngineCore`, which a fault can freeze or kill alone."""
    engine_death: Literal["exit", "stay"] | None = None
    """When that was killed: end, as vLLM does, or answer 503 on /health until the container is restarted."""


def _read_int_or_percent(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,3}%", value):
        return value
    raise ValueError('expected a whole number or a percentage, like 1 or "50%"')


IntOrPercent = Annotated[int | str, reader(_read_int_or_percent)]
"""As Kubernetes' IntOrString."""


class LabPdb(Model):
    """PodDisruptionBudget of the workload: exactly one of both."""

    min_available: IntOrPercent | None = None
    """minAvailable."""
    max_unavailable: IntOrPercent | None = None
    """maxUnavailable."""

    @model_validator(mode="after")
    def _one(self) -> LabPdb:
        exactly_one(self, ("min_available", "max_unavailable"), "pdb")
        return self


class LabGateway(Model):
    """The gateway before the replicas; the keys are its options."""

    policy: Literal["least_request", "round_robin", "random"] | None = None
    """How a request picks an endpoint."""
    propagation_delay: Duration | None = None
    """Time between a change of the endpoints and the gateway acting on it."""
    panic: Literal["all", "serving", "off"] | None = None
    """With no ready endpoint: try all that are known, those serving while terminating, or none."""
    pod_header: str | None = None
    """Response header that names the serving Pod; empty sends none."""
    retries: int | None = Field(default=None, ge=0)
    """Further endpoints tried when a connect fails."""
    connect_timeout: Duration | None = None
    """Longest connect to a Pod."""
    request_timeout: Duration | None = None
    """Longest request; 0 is none."""
    idle_timeout: Duration | None = None
    """How long an idle upstream connection is kept."""
    death_delay: Duration | None = None
    """Time between an upstream's death in mid-stream and the end of the client's connection."""
    new_connections: bool | None = None
    """A new upstream connection for each request."""
    max_connections: int | None = Field(default=None, ge=1)
    """Most client connections at once."""
    seed: int | None = None
    """Seed of random choices."""


class LabRule(Model):
    """An alerting rule of the lab's alert source."""

    name: Text
    """Name of the alert."""
    expr: Text
    """One figure compared with a number, like `ready_endpoints < 2`."""
    for_: Duration = Field(default=0.0, alias="for")
    """How long it must hold before the alert fires."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the alert."""


class LabAlerts(Model):
    interval: PositiveDuration | None = None
    """Time between evaluations."""
    rules: list[LabRule] = Field(default_factory=list)
    """Alerting rules."""


class LabKubelet(Model):
    """Times of the node agents and of the node controller."""

    relist: PositiveDuration | None = None
    """Time between two looks at the processes."""
    backoff: Duration | None = None
    """First wait before a crashed container is started again."""
    backoff_most: Duration | None = None
    """Longest such wait."""
    heartbeat: PositiveDuration | None = None
    """Time between two heartbeats of a node."""
    reconcile: PositiveDuration | None = None
    """Time between two looks at a Pod."""
    teardown: Duration | None = None
    """Time from the end of the last process to the end of the Pod."""
    node_grace: PositiveDuration | None = None
    """Silence after which a node counts as lost."""
    node_period: PositiveDuration | None = None
    """How often that is looked at."""


class LabSpec(Model):
    """What stands in for the environment in a rehearsal. What is left out is the lab's own default."""

    nodes: int | None = Field(default=None, ge=1, le=50)
    """Nodes of the lab."""
    replicas: int | None = Field(default=None, ge=1, le=200)
    """Replicas of the model server."""
    startup: Duration | None = None
    """Time from start to ready of a replica."""
    warmup: LabWarmup | None = None
    """How slow a fresh replica is at first."""
    model: LabModel | None = None
    """The model server."""
    pre_stop: Duration | None = None
    """Sleep of the preStop hook; no hook where absent."""
    grace: WholeSeconds | None = None
    """terminationGracePeriodSeconds."""
    liveness: int | None = Field(default=None, ge=0)
    """Failed liveness probes in a row, a second apart, that restart a replica; no such probe where 0."""
    pdb: LabPdb | None = None
    """Budget of the workload; none where absent."""
    gateway: LabGateway | None = None
    """The gateway before the replicas."""
    alerts: LabAlerts | None = None
    """The alert source."""
    anti_affinity: bool | None = None
    """Whether replicas refuse to share a node."""
    sleepers: int | None = Field(default=None, ge=0, le=1000)
    """Idle Pods beside the workload."""
    kubelet: LabKubelet | None = None
    """Times of the node agents."""
    addresses: Literal["per_pod", "shared"] | None = None
    """An address 127.x.y.z per Pod, or a port per Pod on 127.0.0.1; what the machine can where absent."""
    manifests: list[dict[str, Any]] | None = None
    """Further Kubernetes objects to begin with."""

    def spec(self) -> dict[str, Any]:
        """The JSON that the lab process reads: keys as in YAML, durations in seconds, nothing that was left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Drill(Model):
    """A playbook bound to an environment."""

    apiVersion: Literal["chaosrunner.dev/v1"]
    """Version of the format."""
    kind: Literal["Drill"]
    """Drill."""
    metadata: Metadata
    """Name and tags."""
    description: str = ""
    """What the drill is for."""
    playbook: Text
    """The playbook: its name, or the path of its file relative to this one."""
    context: Text | None = None
    """Context of the kubeconfig, or `in-cluster`. A rehearsal uses the lab's."""
    production: bool = False
    """A run needs the cluster's name, typed or by --cluster, and what stays until undone must be allowed by name."""
    namespace: Name | None = None
    """Namespace of the workload; the context's where absent."""
    workload: Workload
    """What the drill is about."""
    endpoint: Endpoint = Endpoint()
    """Where the probes send their requests."""
    prometheus: Prometheus | None = None
    """Where alert states are asked; without it alerts are unknown."""
    parameters: dict[ParameterName, Any] = Field(default_factory=dict)
    """Values for the playbook's parameters; `-p name=value` goes before them."""
    limits: Limits = Limits()
    """What the drill may touch at most."""
    drivers: Drivers = Drivers()
    """By what faults are made."""
    lab: LabSpec | None = None
    """What a rehearsal runs on."""
