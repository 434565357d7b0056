"""The gateway held against its replicas: whether it was late to send to one that served, or to stop."""

from __future__ import annotations

from collections.abc import Iterator

from chaosrunner.analysis.facts import DirectProbe, DirectReplica, Finding
from chaosrunner.analysis.findings.base import finding, plural

LATE = 1.0
"""Seconds after which a gateway that does not yet send to a ready endpoint, while others get requests, is late."""
FEWEST = 3
"""Unanswered requests from which on an address counts as out of reach."""


def routing(probes: list[DirectProbe]) -> Iterator[Finding]:
    """How long after a replica served the gateway's first request came to it, and what that time went into."""
    for probe in probes:
        for replica in probe.replicas:
            if replica.routing_delay.value is not None:
                yield _delay(replica, replica.routing_delay.value)
            if replica.routed_after and replica.stopped.at is not None and replica.last_routed is not None:
                lost = f", {replica.routed_after_lost} lost" if replica.routed_after_lost else ""
                text = (
                    f"the gateway sent {plural(replica.routed_after, 'request')} to {replica.pod} after it had stopped "
                    f"answering direct ones (at {replica.stopped.at:.2f} s), the last one "
                    f"{replica.last_routed - replica.stopped.at:.2f} s after{lost}: the gateway was late to leave it"
                )
                advice = "let a preStop hook outlast the gateway's news" if lost else None
                yield finding("late_withdrawal", "warning" if lost else "info", text, replica.stopped.evidence, advice)


def unreachable(probes: list[DirectProbe]) -> Iterator[Finding]:
    """Replicas that answer the gateway, and nothing that is sent to them directly."""
    for probe in probes:
        for replica in probe.replicas:
            if replica.served.at is None and replica.requests >= FEWEST and replica.routed_successes:
                text = (
                    f"none of {replica.requests} requests to {replica.pod} at {', '.join(replica.addresses)} was "
                    f"answered, though it served {replica.routed_successes} through the gateway"
                )
                advice = "see endpoint.replicas (port, scheme, host), and whether Pods can be reached from the runner"
                yield finding("replica_out_of_reach", "warning", text, replica.evidence, advice)


def _delay(replica: DirectReplica, delay: float) -> Finding:
    served = replica.served.at
    assert served is not None
    rows = [*replica.served.evidence, *replica.routed.evidence]
    text = f"{replica.pod} served requests sent to it directly from {served:.2f} s on"
    if delay < 0:
        text += f"; the gateway's first one was {-delay:.2f} s before that: the gateway was not late"
        return finding("routing_delay", "info", text, rows)
    parts = _parts(replica, served)
    taken = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in parts.items())
    text += f"; the gateway's first one came {delay:.2f} s later ({taken})"
    gateway = parts["then the gateway"]
    if gateway >= LATE and replica.passed_by:
        text += f", after {plural(replica.passed_by, 'request')} had gone to others: the gateway was late"
        return finding("routing_delay", "warning", text, rows)
    if gateway >= LATE:
        text += ", and nobody asked meanwhile"
    return finding("routing_delay", "info", f"{text}: the gateway was not late", rows)


def _parts(replica: DirectReplica, served: float) -> dict[str, float]:
    """What the time from serving to the gateway's first request went into, in this order; what is over before the one
    before it takes none."""
    parts, cursor = {}, served
    for what, milestone in (
        ("until Ready", replica.ready),
        ("until its endpoint was ready", replica.endpoint_ready),
        ("then the gateway", replica.routed),
    ):
        if milestone.at is not None:
            parts[what] = max(0.0, milestone.at - cursor)
            cursor = max(cursor, milestone.at)
    return parts
