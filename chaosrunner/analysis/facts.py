"""What follows from a recording: figures, each with the ids of the rows that show it.

Everything here is plain data (msgspec structs) and becomes JSON by `msgspec.json.encode`. Instants are seconds on
the recording's clock, spans are seconds, rates and shares lie in 0..1. `None` means "not known", and where that
matters a text beside it says why. `evidence` holds row ids of the recording; long lists are cut to their first
`EVIDENCE_LIMIT` entries.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FORMAT = 1
"""Version of the layout below; raised when a reader of the old one would be misled by the new."""

EVIDENCE_LIMIT = 50
"""Most row ids given for one figure."""

LISTED_LIMIT = 10_000
"""Most requests listed one by one; `Facts.lost_omitted` counts the others."""

PhaseName = Literal["baseline", "during", "after"]
PHASES: tuple[PhaseName, ...] = ("baseline", "during", "after")
ALL = "all"
"""Key of the whole run beside the phases in tables that are keyed by phase."""

Severity = Literal["info", "warning", "failure", "inconclusive"]
"""`failure` fails the drill by itself, `inconclusive` makes the run inconclusive, the others only inform."""

Verdict = Literal["passed", "failed", "inconclusive", "aborted", "rollback_failed"]


class Fact(msgspec.Struct, kw_only=True):
    """Base: keyword-only; every field is written, so that a reader sees what is not known."""


class RunFacts(Fact):
    id: str
    drill: str
    state: Literal["ended", "aborted", "crashed"]
    """`crashed`: the recording has no end; the runner died (perhaps during an abort) or is still running."""
    reason: str | None
    """Why it was aborted, or why it ended."""
    started_time: str | None
    """Wall time of the recording's zero, RFC 3339, by the anchor."""
    begin: float
    end: float
    """`at` of the last row."""
    steps: list[StepFacts]


class StepFacts(Fact):
    index: int
    step: str
    name: str
    begin: float
    end: float | None
    result: str | None
    """ok, failed, inconclusive, skipped, aborted; None where the step never ended."""
    reason: str | None
    evidence: list[int]


class Phase(Fact):
    """`end` of the last phase is the end of the recording; a phase that never came is absent."""

    name: PhaseName
    begin: float
    end: float
    open: bool
    """True where the recording ended before the phase did (for `during`: the service never became whole)."""
    why: str | None
    """What ended the phase, or what was still missing."""
    evidence: list[int]


class Window(Fact):
    """A stretch of time. `begin_low`/`end_high` differ from `begin`/`end` where a watch gap hides the edge."""

    begin: float
    end: float
    begin_low: float
    end_high: float
    open: bool
    """Still so when the recording ended."""
    evidence: list[int]

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Estimate(Fact):
    """A share with its Wilson score interval at 95 % (E. B. Wilson, JASA 22, 1927)."""

    value: float | None
    """successes / total; None where total is 0."""
    successes: int
    total: int
    low: float | None
    high: float | None
    note: str | None
    """With no loss (or no success) at all: the rule of three, 3/n."""


class Percentiles(Fact):
    """Exact, nearest rank, from single values of successful requests. All None where n is 0."""

    n: int
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    straddling: int
    """How many of the requests ended in a later phase than they were sent in."""
    flags: dict[str, str]
    """Percentile -> why it is to be read with care (n < 1/(1-p): it equals the maximum)."""


class VictimExposure(Fact):
    pod: str
    uid: str | None
    action: int
    """Id of the row with which the fault was sent."""
    fault_at: float
    exposed: int
    """Requests sent <= fault_at < end and served by this Pod; prober_fault, cancelled, unfinished, probe-once apart."""
    lost: int
    loss: float | None
    """lost / exposed; None where exposed is 0."""
    lower: float | None
    """Least loss that the unplaced requests leave possible: those that succeeded were all on the victim."""
    upper: float | None
    """Largest: those that were lost were all on the victim."""
    unplaced: int
    """Requests across the fault whose Pod is not known."""
    routed_after: int
    """Requests sent after the fault that still reached this Pod."""
    routed_after_lost: int
    last_routed: float | None
    """Send time of the last of them."""
    requests: list[str]
    """Ids of the exposed requests."""
    evidence: list[int]


class Exposure(Fact):
    exposed: int
    lost: int
    loss_on_victim: float | None
    lower: float | None
    upper: float | None
    unplaced: int
    """Requests across any of the faults whose Pod is not known."""
    unplaced_total: int
    """Requests of the whole run, sent and answered by headers or not, whose Pod is not known."""
    victims: list[VictimExposure]


class LostRequest(Fact):
    request: str
    row: int
    probe: str
    outcome: str
    status: int | None
    pod: str | None
    """The serving Pod's name where it is known, else the name that the response gave."""
    uid: str | None
    sent: float
    ended: float
    phase: PhaseName
    error: str | None
    first_token: float | None
    action: int | None
    """Row of the accepted fault that preceded the end of the request: the one on its own Pod, else the latest."""
    action_pod: str | None
    same_pod: bool | None
    """Whether that fault was aimed at the Pod that served the request; None where that Pod is not known."""
    after_action: float | None
    """Seconds from that fault to the end of the request."""
    straddles: bool
    """Sent before that fault and ended after it."""


class Milestone(Fact):
    """One instant of a Pod's way to service: known to lie in [low, high].

    `at` is the receive time of the first row that shows it; None where it happened inside a watch gap (then only
    the window is known) or where it did not happen or is not known (then `low` and `high` are None too).
    """

    at: float | None
    low: float | None
    high: float | None
    sent: float | None
    """For a milestone that a request shows: when that request was sent."""
    why: str | None
    """Why `at` is not known."""
    evidence: list[int]


class Span(Fact):
    """Seconds between two instants, in [low, high]; all None where one of them did not happen or is not known."""

    value: float | None
    low: float | None
    high: float | None


class Milestones(Fact):
    created: Milestone
    scheduled: Milestone
    initialized: Milestone
    started: Milestone
    """All containers running (init containers apart)."""
    ready: Milestone
    endpoint_ready: Milestone
    first_routed: Milestone
    """Send time of the first request that reached the Pod."""
    first_complete: Milestone
    """End of the first successful request on it; `sent` says when that one was sent."""
    warm: Milestone
    """Send time of the first of N consecutive good streams; `high` is the end of the one that made it known."""


class Replacement(Fact):
    pod: str
    uid: str
    node: str | None
    replaces: str
    """Name of the victim."""
    replaces_uid: str | None
    fault_at: float
    milestones: Milestones
    time_to_ready: Span
    """Fault sent -> Ready."""
    time_to_first_stream: Span
    """Fault sent -> end of the first complete stream on it."""
    time_to_serve: Span
    """Fault sent -> warm."""
    created_to: dict[str, Span]
    """Milestone -> seconds since created."""
    ready_to_warm: Span
    warmup_failed: int
    """Requests on this Pod sent before it was warm (all of them where it never was) that failed."""
    warmup_slow: int
    """Those that succeeded, but outside the SLO."""
    tokens: int | None
    """Largest completion token count of a success on it."""


class Recovery(Fact):
    """The worst replacement of each figure; None while one of them is missing."""

    time_to_ready: Span
    time_to_first_stream: Span
    time_to_serve: Span
    missing: list[str]
    """Victims without a replacement, by name."""
    measured_under: str
    """The load under which it was measured, in words."""


class Disruption(Fact):
    """A Pod was taken away, by us or by somebody else."""

    pod: str
    uid: str
    type: Literal["eviction", "deletion", "node_shutdown", "node_pressure", "preemption", "taint", "garbage_collection"]
    ours: bool
    at: float | None
    low: float
    high: float
    reason: str | None
    endpoint_lag: float | None
    """Seconds for which its endpoint stayed ready after the disruption was seen; None where not known."""
    evidence: list[int]


class Termination(Fact):
    """How a deleted Pod went. deletionTimestamp is a deadline: requested = it - deletionGracePeriodSeconds,
    both from the first row that shows them; the kubelet's last, grace-0 delete rewrites both and is not read."""

    pod: str
    uid: str
    requested: Milestone
    deadline: Milestone
    grace: float | None
    containers_terminated: Milestone
    exit_codes: dict[str, int]
    gone: Milestone
    late_by: Span
    """gone - deadline; negative where it went in time."""
    finalizers: list[str]
    """Those left on the last row that showed it."""
    evidence: list[int]


class Eviction(Fact):
    """One call of the Eviction API (or a delete of a Pod), with its answer."""

    at: float
    answered: float | None
    action: str
    pod: str
    uid: str | None
    dry_run: bool
    answer: str | None
    status: int | None
    message: str | None
    pdbs: list[str]
    expected: bool | None
    self_inflicted: bool
    """A 429 on a budget that an earlier eviction of ours with a failed precondition holds (for two minutes)."""
    evidence: list[int]


class AlertEpisode(Fact):
    name: str
    labels: dict[str, str]
    pending_from: float | None
    """Poll that first showed it pending (it may have begun up to one poll earlier)."""
    active_time: str | None
    """As Prometheus reports it: when *pending* began."""
    firing_from: float | None
    end: float | None
    """First poll without it; None where it was there to the last."""
    end_reason: Literal["resolved", "staleness_reset", "label_identity_unstable", "unknown"] | None
    unknown_from: float | None
    """Since when its state is frozen because the rule's evaluation fails."""
    evidence: list[int]


class Gap(Fact):
    """Nothing is known of this resource between begin (last proof of life) and end."""

    resource: str
    begin: float
    end: float | None
    """None where the gap was never closed."""
    reason: str | None
    evidence: list[int]


class Finding(Fact):
    code: str
    severity: Severity
    text: str
    evidence: list[int]
    advice: str | None = None


class CheckResult(Fact):
    check: str
    verdict: Literal["passed", "failed", "skipped"]
    values: dict[str, float | bool | str | None]
    """What each metric of the expression was, as it is written there."""
    text: str
    """One line for people."""
    reason: str | None
    """Why it was skipped."""
    confidence: int | None
    evidence: list[int]
    notes: dict[str, str] = {}
    """Metric, as it is written there -> what its value rests on: of a percentile, how many values it is of, and
    whether these are too few for it to be anything but the largest."""


class ProberFacts(Fact):
    lag_p99: float | None
    lag_max: float | None
    """Largest lateness of the runner's event loop, seconds."""
    faults: int
    faults_share: float | None
    """prober_fault / all requests, probe-once apart."""
    send_lag_p99: float | None
    send_lag_max: float | None
    """Lateness of sending against the schedule, seconds; None in closed-loop load, which has none."""
    exact_share: float | None
    """Requests with headers whose receive times are all the kernel's / requests with headers."""
    bounded_share: float | None
    """Chunks that came in one read with a later one, so that their times are upper bounds / all chunks."""
    late_sends: int
    """Requests sent later than `LATE` after their schedule, or dropped for such a lateness."""
    late_share: float | None
    """The same / all that were scheduled."""
    core_share: float | None
    """CPU seconds a second of the busiest of the processes that send; 1 is all that one event loop can use."""
    requests_per_core: float | None
    """Requests of this run's kind that a core could handle a second, by what they cost; None where too few to tell."""
    chunks_per_core: float | None
    """The same for events of streams."""
    files_share: float | None
    """Largest share of the allowed descriptors in use."""


class Scheduled(Fact):
    """How a probe kept to its schedule. Its latencies count from the scheduled time."""

    planned: int
    """Requests whose time had come."""
    not_sent: int
    """Those that the in-flight cap forbade; they count against the success rate."""
    evidence: list[int]
    """Rows of those that were not sent."""


class DirectReplica(Fact):
    """A replica as a probe saw it that sent to its own address, and what the gateway sent to it meanwhile. `routed`
    means through the gateway; where no response header names the serving Pod, nothing is known of that."""

    pod: str
    uid: str
    addresses: list[str]
    role: Literal["victim", "replacement"] | None
    listens: float | None
    """When its load began: it took connections, or was Ready."""
    left: float | None
    """When its load ended."""
    fresh: bool
    """It came, or became Ready, during the run; only then there is a routing delay."""
    served: Milestone
    """Send time of the first request to it that succeeded; `low` is that of the failed one before it."""
    ready: Milestone
    endpoint_ready: Milestone
    routed: Milestone
    """Send time of the first request that reached it through the gateway."""
    routing_delay: Span
    """served -> routed; negative where the gateway was first."""
    passed_by: int | None
    """Requests that went to others through the gateway, when it served and its endpoint was ready, and before the first
    one came to it."""
    stopped: Milestone
    """Of one that left: end of the first of the last requests to it, none of which was answered."""
    routed_after: int
    """Requests that were sent through the gateway after that, and reached it."""
    routed_after_lost: int
    last_routed: float | None
    """Send time of the last of them."""
    requests: int
    """Sent to it directly since it was first Ready: those in the probe's figures."""
    successes: int
    early: int
    """Sent to it directly before; in no rate."""
    early_served: int
    ttft: Percentiles
    routed_requests: int
    routed_successes: int
    routed_ttft: Percentiles
    evidence: list[int]
    """Direct requests that failed."""


class DirectProbe(Fact):
    """A probe whose target is the replicas: figures of its own, which are in none of the service's."""

    probe: str
    success_rate: dict[str, Estimate]
    """By phase and `all`."""
    incomplete_200: dict[str, int]
    outcomes: dict[str, dict[str, int]]
    latency: dict[str, dict[str, Percentiles]]
    early: int
    """Requests sent before their replica was first Ready; in none of these figures."""
    early_served: int
    replicas: list[DirectReplica]


class Throughput(Fact):
    """Over the part of the run with traffic: from the first sending to the last end. Rates are per second."""

    seconds: float | None
    requests: float | None
    """Requests that count and were sent."""
    successes: float | None
    tokens: float | None
    """Completion tokens of successes; None where some success did not tell its usage."""
    in_flight_mean: float | None
    """Mean number in flight: the sum of all durations over `seconds` (J. D. C. Little, Operations Research 9, 1961)."""
    in_flight_max: int


class SkewFacts(Fact):
    owner: str
    low: float
    high: float
    """Their clock minus ours lies in [low, high] seconds (wall time by the anchor)."""
    samples: int


class Facts(Fact):
    run: RunFacts
    phases: list[Phase]
    exposure: Exposure
    success_rate: dict[str, Estimate]
    """By phase and `all`."""
    incomplete_200: dict[str, int]
    outcomes: dict[str, dict[str, int]]
    """Phase or `all` -> outcome -> count; probe-once requests apart."""
    statuses: dict[str, int]
    """HTTP status (`none` without one) -> requests of the whole run, probe-once apart."""
    lost_requests: list[LostRequest]
    lost_omitted: int
    unfinished: list[str]
    """Ids of requests without an end: the runner died first. In no rate: they say nothing about the service."""
    straddling: list[str]
    """Ids of requests sent in one phase and ended in a later one; cut at `LISTED_LIMIT`."""
    once: list[OnceFacts]
    latency: dict[str, dict[str, Percentiles]]
    """ttft, ttft_answer, tpot, e2e, chunk_gap -> phase or `all` -> percentiles, seconds."""
    goodput: dict[str, float | None]
    """Phase or `all` -> good requests a second; None where no SLO is given."""
    good_share: dict[str, Estimate | None]
    throughput: Throughput
    scheduled: dict[str, Scheduled]
    """By the name of the probe; those with open-loop load only."""
    replacements: list[Replacement]
    recovery: Recovery
    disruptions: list[Disruption]
    terminations: list[Termination]
    zero_ready: list[Window]
    zero_ready_seconds: Span
    """Time with no ready endpoint while the service was watched; `high` adds what gaps may hide."""
    outages: list[Window]
    """Stretches in which nobody was served: at least two requests in a row failed before their first token."""
    ready_endpoints: list[ReadyEndpoints]
    evictions: list[Eviction]
    alerts: list[AlertEpisode]
    endpoints_back: bool | None
    """As many ready endpoints at the end as before the first fault."""
    restarts: int | None
    """Container restarts since the recording began."""
    gaps: list[Gap]
    findings: list[Finding]
    checks: list[CheckResult]
    prober: ProberFacts
    skews: list[SkewFacts]
    verdict: Verdict
    reason: str
    exit_code: int
    """0 passed, 1 failed, 3 inconclusive, 4 aborted, 5 rollback failed."""
    direct: list[DirectProbe] = []
    """Probes of single replicas; everything above, the prober's own health apart, is about the others."""
    format: int = FORMAT


class OnceFacts(Fact):
    """A probe-once request: outside every rate, judged by what its step expected."""

    request: str
    row: int
    outcome: str
    status: int | None
    expected: bool | None


class ReadyEndpoints(Fact):
    """From `at` on, this many endpoints were ready; None inside a watch gap."""

    at: float
    ready: int | None
    row: int
