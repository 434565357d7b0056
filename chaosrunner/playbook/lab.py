"""What a rehearsal runs on."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from chaosrunner.playbook.base import Duration, Model, PositiveDuration, Text, WholeSeconds, exactly_one, reader

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
