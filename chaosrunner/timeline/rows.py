"""The raw rows of a recording: what was seen, sent or sampled, and nothing that follows from it.

Every row has an `id` (1, 2, 3 ... in the order in which the runner wrote them; folds run in this order) and
an `at`. All plain times are **seconds on the recording's clock**: monotonic, zero when the recording began.
Times that somebody else reported (Kubernetes, Prometheus) are kept as reported, as RFC 3339 strings in fields
that end in `_time`; who owns them and how finely they tick is in `OWNERS`.

Rows are msgspec structs with the tag field `kind`, so that one line of JSON decodes straight into its type.
Absent optional fields mean "not known"; a field is never filled with a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

FORMAT = 1
"""Version of the recording format; raised when a reader of the old one would be misled by the new."""


class Base(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What every row has. `id` is set by the writer."""

    at: float
    id: int = 0


# --- the run itself ---------------------------------------------------------------------------------------


class Run(Base, tag_field="kind", tag="run"):
    """The run began, a phase of it changed, or it ended."""

    event: Literal["started", "baseline_accepted", "aborting", "draining", "ended"]
    reason: str | None = None


class Step(Base, tag_field="kind", tag="step"):
    """One step of the playbook started or ended. `index` counts from 0."""

    index: int
    step: str
    name: str
    event: Literal["started", "ended"]
    result: Literal["ok", "failed", "inconclusive", "skipped", "aborted"] | None = None
    reason: str | None = None


class Target(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an action is aimed at."""

    kind: str
    name: str
    namespace: str | None = None
    uid: str | None = None
    node: str | None = None
    ip: str | None = None


class Action(Base, tag_field="kind", tag="action"):
    """A call of ours that changes the cluster (or, as a dry run, would): one row when sent, one when answered.

    A fault is *sent* at the `at` of its row `event="sent"`. The answer may arrive after the watch events that
    it caused. `answer` is the class of the answer, see `chaosrunner.cluster.eviction`.
    """

    event: Literal["sent", "answered"]
    call: int
    """Number of the call; joins the two rows."""
    action: str
    """evict, delete_pod, cordon, uncordon, ..."""
    target: Target
    step: int | None = None
    dry_run: bool = False
    undo: bool = False
    """True if the call puts something back."""
    answer: str | None = None
    status: int | None = None
    reason: str | None = None
    message: str | None = None
    causes: list[dict[str, str]] | None = None
    retry_after: float | None = None
    pdbs: list[str] | None = None
    """Budgets that match the target, where the answer is about a budget."""
    ok: bool | None = None
    """Whether the cluster accepted the call."""
    expected: bool | None = None
    """Whether the answer is the one that the step expected."""


class Journal(Base, tag_field="kind", tag="journal"):
    """An entry of the undo journal changed its state."""

    entry: str
    event: Literal[
        "intent", "applied", "not_applied", "undone", "already_undone", "changed_by_others", "undo_failed", "forgotten"
    ]
    target: Target
    fault: str
    detail: str | None = None


class Effect(Base, tag_field="kind", tag="effect"):
    """What was seen of a fault, looked at from outside: whether it bit, and later whether it is gone."""

    event: Literal["bitten", "not_bitten", "healed", "not_healed", "unknown"]
    fault: str
    target: Target
    by: str
    """How it was looked at, in words."""
    step: int | None = None
    entry: str | None = None
    """Of the journal."""
    detail: str | None = None
    """What was seen."""


class Clock(Base, tag_field="kind", tag="clock"):
    """Wall time at `at`; sampled every second, so that a slewed wall clock does not move the rows."""

    wall: float
    """Unix seconds."""


class Skew(Base, tag_field="kind", tag="skew"):
    """Somebody else's clock beside ours: their reported instant lies in [sent, received] on our clock."""

    owner: str
    reported: float
    """Unix seconds on their clock."""
    resolution: float
    """Seconds; the reported value may be up to this much too early (truncation)."""
    sent: float
    received: float


class Prober(Base, tag_field="kind", tag="prober"):
    """The health of one of the runner's own processes over the last second."""

    loop_lag: float
    """Largest lateness of the event loop, seconds."""
    send_lag: float | None = None
    """Largest lateness of a send against its schedule, seconds; absent where none was scheduled."""
    in_flight: int | None = None
    """Requests sent and not ended, now."""
    requests: int | None = None
    """Requests that ended since the process began to count."""
    chunks: int | None = None
    """Events of streams read by those that ended."""
    queue: int = 0
    """Rows waiting to be written."""
    open_files: int | None = None
    file_limit: int | None = None
    """How many descriptors the process may have."""
    cpu: float | None = None
    """CPU seconds used by this process since it started."""
    probe: str | None = None
    """Whose worker the process is; absent for the runner's main process."""
    worker: int | None = None
    """Which of that probe's workers, from 1."""


class Worker(Base, tag_field="kind", tag="worker"):
    """A probe that has several processes: the life of one of them.

    The requests that were in flight in a worker that died have final rows all the same, as `prober_fault`; of what it
    sent in its last milliseconds nothing is known.
    """

    probe: str
    worker: int
    """From 1."""
    of: int
    event: Literal["began", "ended", "died"]
    pid: int
    reason: str | None = None
    """`died`: how."""


class Replica(Base, tag_field="kind", tag="replica"):
    """A probe that sends to replicas by their own addresses took one up, found it listening, or let go of it."""

    probe: str
    replica: str
    """UID of the Pod."""
    name: str
    address: str
    """`address:port`."""
    number: int
    """From 1, a new one for each replica and address; requests to it are `<probe>@<number>-<n>`."""
    event: Literal["joined", "listens", "left"]
    """listens: its load begins, as it takes connections, or is Ready and so must."""


# --- requests ---------------------------------------------------------------------------------------------


class RequestSent(Base, tag_field="kind", tag="request_sent"):
    """A probe began an attempt (before connecting). `at` is the time of sending."""

    request: str
    """Id, unique in the run: `<probe>-<number>`; of those sent to a replica `<probe>@<its number>-<number>`."""
    probe: str
    shape: str = ""
    """Class of the request within the probe's mix; empty where there is one class only."""
    scheduled: float | None = None
    once: bool = False
    """True for probe-once: outside the success rate."""
    replica: str | None = None
    """UID of the Pod to whose own address it goes; absent where it goes to the drill's endpoint."""


class RequestHeaders(Base, tag_field="kind", tag="request_headers"):
    """Status line and headers arrived; from here on the serving Pod may be known."""

    request: str
    status: int
    pod: str | None = None
    """The serving Pod as the response header names it (a Pod's name or address), or to which it was sent directly."""
    remote: str | None = None
    """The other end of the connection, `address:port`."""


class Usage(msgspec.Struct, kw_only=True, omit_defaults=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Request(Base, tag_field="kind", tag="request"):
    """The one final row of an attempt; `at` is when it ended (its last byte, its failure, its time limit)."""

    request: str
    probe: str
    outcome: str
    """One of `chaosrunner.timeline.outcomes.Outcome`."""
    sent: float
    shape: str = ""
    once: bool = False
    replica: str | None = None
    """UID of the Pod to whose own address it was sent; absent where it went to the drill's endpoint."""
    scheduled: float | None = None
    """When it was to be sent, in open-loop load; latencies count from here."""
    cancel_planned: bool = False
    """The plan has it cancelled by us in mid-stream; whether it came to that, the outcome says."""
    connected: float | None = None
    headers: float | None = None
    first_byte: float | None = None
    """First byte of the body."""
    last_byte: float | None = None
    """Last byte of the body, whatever it was: what came after it is silence."""
    first_token: float | None = None
    """First non-empty content, reasoning or tool call."""
    first_token_exact: bool = False
    """That time is the kernel's, and no other token came in the same read; else it is an upper bound."""
    first_answer: float | None = None
    """First non-empty content."""
    last_token: float | None = None
    tokens: int | None = None
    """Completion tokens by usage, never a count of chunks."""
    usage: Usage | None = None
    finish_reason: str | None = None
    done: bool = False
    """The mark that closes a stream was seen: `[DONE]`, Anthropic's message_stop."""
    ended_properly: bool = False
    """The body ended as HTTP says it must (last chunk, full length)."""
    status: int | None = None
    pod: str | None = None
    remote: str | None = None
    """The other end of the connection, `address:port`; where none came about, the address that was tried last."""
    connection: str | None = None
    """Our end of it, `address:port`; what tells connections apart."""
    opened: float | None = None
    """When the connection was opened."""
    reused: bool | None = None
    stale: bool = False
    """The connection was kept from an earlier request and ended before any byte of an answer: the peer may have closed
    it before it saw the request."""
    size: int = 0
    """Bytes of the body."""
    events: int = 0
    """Events dispatched by the stream parser, comments apart."""
    comments: int = 0
    chunks: list[float] | None = None
    """Receive times of the chunks with content; dropped by option."""
    content_chunks: int = 0
    """How many those are; known also where `chunks` is dropped."""
    content_reads: int = 0
    """Reads that held some. Where one held several, only the last one's time is exact; the others' are upper bounds."""
    at_once: int = 0
    """Chunks with content that came less than 1 ms after the one before, or with it."""
    largest_gap: float | None = None
    """Largest time between two chunks with content, seconds; kept although `chunks` may be dropped."""
    exact: bool = False
    """True where all receive times of headers and body are the kernel's, which do not age while the prober is busy;
    else some are the event loop's. (The end of a connection has no kernel time.)"""
    expected_tokens: int | None = None
    limit: str | None = None
    """Our own time limit that ended it, where one did: first_byte, byte_idle, token_idle, total, linger."""
    error: str | None = None
    """Error text: of the transport, of the error object, or the start of an error body; secrets redacted."""
    error_code: int | None = None
    """Code inside an error object of the stream."""
    expected: bool | None = None
    """Probe-once: whether the answer was the expected one."""


# --- what observers saw -----------------------------------------------------------------------------------

Seen = Literal["LISTED", "ADDED", "MODIFIED", "DELETED", "RELISTED", "VANISHED"]
"""LISTED: in the first list. ADDED/MODIFIED/DELETED: watch events. RELISTED: found changed or new by a list
after a gap. VANISHED: missing from a list after a gap. The last two happened at an unknown instant in the gap."""


class Observed(Base):
    """What every row about an object has."""

    seen: Seen
    name: str
    uid: str
    version: str
    """resourceVersion; opaque but for equality."""
    namespace: str | None = None
    gap: int | None = None
    """Id of the `watch` row that opened the gap in which this may have happened: with RELISTED and VANISHED, and with
    watch events that the server had kept back and delivered when the watch was resumed."""


class Condition(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    transition_time: str | None = None


class ContainerState(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    ready: bool = False
    started: bool | None = None
    restarts: int = 0
    state: Literal["waiting", "running", "terminated"] | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    started_time: str | None = None
    finished_time: str | None = None
    container_id: str | None = None
    last_exit_code: int | None = None
    last_reason: str | None = None
    last_finished_time: str | None = None
    init: bool = False


class Owner(msgspec.Struct, kw_only=True, omit_defaults=True):
    kind: str
    name: str
    uid: str


class Pod(Observed, tag_field="kind", tag="pod"):
    phase: str | None = None
    reason: str | None = None
    """status.reason, as in Evicted or Terminated."""
    node: str | None = None
    ip: str | None = None
    addresses: list[str] = []
    """All its addresses: one of each family."""
    labels: dict[str, str] = {}
    owner: Owner | None = None
    """The controlling owner."""
    root: Owner | None = None
    """The root controller (the Deployment above the ReplicaSet), where it was looked up."""
    created_time: str | None = None
    deletion_time: str | None = None
    """deletionTimestamp: a deadline, not a request time."""
    deletion_grace: float | None = None
    conditions: list[Condition] = []
    containers: list[ContainerState] = []
    finalizers: list[str] = []


class Endpoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One endpoint; absent conditions already read as the API says (ready, serving: true; terminating: false)."""

    ready: bool
    serving: bool
    terminating: bool
    addresses: list[str] = []
    pod: str | None = None
    uid: str | None = None
    node: str | None = None


class EndpointSlice(Observed, tag_field="kind", tag="endpoints"):
    service: str | None = None
    endpoints: list[Endpoint] = []
    ports: list[int] = []
    named_ports: dict[str, int] = {}
    """The same by their names; the name of an unnamed one is empty."""


class Taint(msgspec.Struct, kw_only=True, omit_defaults=True):
    key: str
    effect: str
    value: str | None = None


class Node(Observed, tag_field="kind", tag="node"):
    unschedulable: bool = False
    ready: str | None = None
    """Status of the Ready condition."""
    heartbeat_time: str | None = None
    """Where Ready is Unknown: when its kubelet last gave a sign of life by its status, by the kubelet's clock."""
    conditions: list[Condition] = []
    taints: list[Taint] = []


class Pdb(Observed, tag_field="kind", tag="pdb"):
    allowed: int | None = None
    current: int | None = None
    desired: int | None = None
    expected: int | None = None
    generation: int | None = None
    observed_generation: int | None = None
    min_available: str | None = None
    max_unavailable: str | None = None
    unhealthy_policy: str | None = None
    selector: dict[str, object] | None = None
    disrupted_times: dict[str, str] = {}
    conditions: list[Condition] = []


class Event(Observed, tag_field="kind", tag="event"):
    """A Kubernetes Event: an interval with a count where it is a series."""

    reason: str | None = None
    message: str | None = None
    type: str | None = None
    count: int = 1
    object_kind: str | None = None
    object_name: str | None = None
    object_uid: str | None = None
    component: str | None = None
    host: str | None = None
    first_time: str | None = None
    last_time: str | None = None
    """By the fixed order series.lastObservedTime, lastTimestamp, eventTime, firstTimestamp, creationTimestamp."""
    resolution: float = 1.0
    """Seconds: 1 for metav1.Time, 1e-6 for MicroTime."""


class Alert(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    state: Literal["pending", "firing"]
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    active_time: str | None = None
    """activeAt: when *pending* began."""
    value: str | None = None


class Rule(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    state: str
    health: str
    hold: float = 0.0
    """`for`, seconds."""
    error: str | None = None
    query: str | None = None
    group: str | None = None
    interval: float | None = None
    """Evaluation interval of the rule's group, seconds."""
    evaluated_time: str | None = None


class Alerts(Base, tag_field="kind", tag="alerts"):
    """One poll of a Prometheus: everything that is pending or firing, or why it could not be asked."""

    ok: bool
    alerts: list[Alert] = []
    rules: list[Rule] = []
    error: str | None = None
    sent: float | None = None
    down: list[str] = []
    """Instances whose `up` is 0 in this poll, where asked for."""


class Watch(Base, tag_field="kind", tag="watch"):
    """Life of a list+watch. `gap_opened` says since when nothing is known; `gap_closed` ends it.

    `last_alive` is the last proof of life (an event, a bookmark, the list) before the row.
    """

    resource: str
    event: Literal["listed", "gap_opened", "gap_closed", "forbidden", "stopped"]
    reason: str | None = None
    """expired (410), silent, closed, error, unauthorized, ..."""
    version: str | None = None
    last_alive: float | None = None
    items: int | None = None
    gap: int | None = None
    """`gap_closed`: id of the row that opened it."""


Row = (
    Run | Step | Action | Journal | Effect | Clock | Skew | Prober | Worker | Replica | RequestSent | RequestHeaders
    | Request | Pod | EndpointSlice | Node | Pdb | Event | Alerts | Watch
)  # fmt: skip
"""Any row. Decode a line with `msgspec.json.Decoder(Row)`."""

Emit = Callable[[Row], None]
"""How rooms put rows on the timeline: cheap, synchronous, never blocks on anything but the disk's write buffer."""

OWNERS: dict[tuple[str, str], str] = {
    ("pod", "created_time"): "apiserver",
    ("pod", "deletion_time"): "apiserver",
    ("pod", "transition_time"): "kubelet",
    ("pod", "started_time"): "kubelet",
    ("pod", "finished_time"): "kubelet",
    ("pod", "last_finished_time"): "kubelet",
    ("node", "heartbeat_time"): "kubelet",
    ("pdb", "disrupted_times"): "apiserver",
    ("event", "first_time"): "component",
    ("event", "last_time"): "component",
    ("alerts", "active_time"): "prometheus",
    ("alerts", "evaluated_time"): "prometheus",
}
"""Whose clock a reported time is. Kubernetes' metav1.Time ticks in seconds (truncated), MicroTime in microseconds;
Prometheus reports nanoseconds. The kubelet and the event's component run on the row's node."""
