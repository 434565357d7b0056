"""What the analysis must know beside the rows; all of it comes out of the recording's manifest."""

from __future__ import annotations

import msgspec

from chaosrunner.playbook.expressions import Expression, parse
from chaosrunner.playbook.selectors import Selector, parse_selector
from chaosrunner.timeline.manifest import Manifest


class Slo(msgspec.Struct, kw_only=True, frozen=True):
    """Limits in seconds; those that are None are not asked for."""

    ttft: float | None = None
    ttft_answer: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    chunk_gap: float | None = None
    """Limit of the largest gap between two chunks with content."""

    def limits(self) -> dict[str, float]:
        """Those that are asked for, by name."""
        return {name: limit for name in self.__struct_fields__ if (limit := getattr(self, name)) is not None}


class ProbeContext(msgspec.Struct, kw_only=True, frozen=True):
    name: str
    direct: bool = False
    """Its requests went to each replica by its own address, and are none of the service's."""
    slo: Slo = Slo()
    shapes: tuple[str, ...] = ()
    """Classes of the probe's mix; empty where the manifest does not say."""
    stream: bool = True
    """False for plain HTTP: then its requests say nothing about warmth unless no probe streams."""
    warm_streams: int = 3
    """N of the warm rule."""
    concurrency: int | None = None
    load: str | None = None
    """How much it sends, in words."""
    reuses_connections: bool = False
    pod_header: str | None = None
    """Response header that names the serving Pod; None: the peer's address does (direct probing)."""


class CheckContext(msgspec.Struct, kw_only=True, frozen=True):
    expression: Expression
    name: str | None = None
    confidence: int | None = None
    """95: compare the bound of the 95 % interval, not the point estimate."""
    probe: str | None = None
    """Only requests of this probe count."""


class KnownPod(msgspec.Struct, kw_only=True, frozen=True):
    """A Pod that the plan found, before any row showed it."""

    name: str
    uid: str
    node: str | None = None
    ip: str | None = None
    root: str | None = None
    """UID of its root controller."""


class AnalysisContext(msgspec.Struct, kw_only=True, frozen=True):
    anchor: float
    """Unix seconds at the recording's zero."""
    run: str = ""
    drill: str = ""
    selector: Selector = Selector()
    """Which Pods belong to the workload; the empty one takes every observed Pod."""
    service: str | None = None
    """Name of the Service; None: every observed EndpointSlice counts."""
    candidates: tuple[KnownPod, ...] = ()
    ready_endpoints: int | None = None
    """Ready endpoints when the run began; used where no row before the first fault tells."""
    probes: tuple[ProbeContext, ...] = ()
    checks: tuple[CheckContext, ...] = ()
    default_skew: float = 1.0
    """Bound on the skew of a clock of which there is no sample, seconds either way."""

    @classmethod
    def of(cls, manifest: Manifest) -> AnalysisContext:
        """The context that a manifest describes.

        Raises `ExpressionError` for a check and ValueError for a selector that cannot be read.
        """
        return cls(
            anchor=manifest.anchor,
            run=manifest.run,
            drill=manifest.drill,
            selector=parse_selector(manifest.workload.selector),
            service=manifest.workload.service,
            candidates=tuple(
                KnownPod(name=pod.name, uid=pod.uid, node=pod.node, ip=pod.ip, root=pod.root)
                for pod in manifest.candidates
            ),
            ready_endpoints=manifest.ready_endpoints,
            probes=tuple(
                ProbeContext(
                    name=probe.name,
                    direct=probe.target == "replicas",
                    slo=msgspec.convert(probe.slo, Slo),
                    shapes=tuple(probe.shapes),
                    stream=probe.dialect != "http",
                    warm_streams=probe.warm_streams,
                    concurrency=probe.concurrency,
                    load=probe.load,
                    reuses_connections=probe.connection in ("reused", "fixed"),
                    pod_header=probe.pod_header,
                )
                for probe in manifest.probes
            ),
            checks=tuple(
                CheckContext(
                    expression=parse(check.expression),
                    name=check.name,
                    confidence=check.confidence,
                    probe=check.probe,
                )
                for check in manifest.checks
            ),
        )

    def probe(self, name: str) -> ProbeContext:
        for probe in self.probes:
            if probe.name == name:
                return probe
        return ProbeContext(name=name)
