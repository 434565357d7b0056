"""What the analysis must know beside the rows; all of it comes out of the recording's manifest."""

from __future__ import annotations

import msgspec


class Slo(msgspec.Struct, kw_only=True, frozen=True):
    """Limits in seconds; those that are None are not asked for."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def given(self) -> bool:
        return self.ttft is not None or self.tpot is not None or self.e2e is not None


class ProbeContext(msgspec.Struct, kw_only=True, frozen=True):
    name: str
    slo: Slo = Slo()
    shapes: tuple[str, ...] = ()
    """Classes of the probe's mix, where it has several."""
    stream: bool = True
    """False for plain HTTP: then its requests say nothing about warmth unless no probe streams."""
    load: str = ""
    """The load shape in words, as in "closed loop, 4 in flight"."""


class CheckContext(msgspec.Struct, kw_only=True, frozen=True):
    expression: str
    confidence: int | None = None
    """95: compare the bound of the 95 % interval, not the point estimate."""


class AnalysisContext(msgspec.Struct, kw_only=True, frozen=True):
    anchor_wall: float
    """Unix seconds at the recording's zero."""
    run: str = ""
    drill: str = ""
    namespace: str | None = None
    labels: dict[str, str] = {}
    """Labels that every Pod of the workload has; empty: every observed Pod belongs to it."""
    service: str | None = None
    """Name of the Service; None: every observed EndpointSlice counts."""
    probes: tuple[ProbeContext, ...] = ()
    warm_after: int = 3
    """N: consecutive good streams that make a replacement warm."""
    checks: tuple[CheckContext, ...] = ()
    default_skew: float = 1.0
    """Bound on the skew of a clock of which there is no sample, seconds either way."""

    def probe(self, name: str) -> ProbeContext:
        for probe in self.probes:
            if probe.name == name:
                return probe
        return ProbeContext(name=name)
