"""The step that disturbs networks."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic.json_schema import WithJsonSchema

from chaosrunner.playbook.base import (
    Duration,
    Model,
    Name,
    Percent,
    PositiveDuration,
    Selector,
    exactly_one,
    mistake,
    reader,
)
from chaosrunner.playbook.steps.targets import PodTarget


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
