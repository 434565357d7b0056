"""What the service was to its users, and how much of it the drill could see."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chaosrunner.analysis.exposure import unplaced_across
from chaosrunner.analysis.facts import Facts, Finding, Replacement, Window
from chaosrunner.analysis.findings.base import finding
from chaosrunner.analysis.picture import Picture
from chaosrunner.analysis.placement import UNPLACED

PASSED_BY = 20
"""Requests to others after which it is no chance that a replacement got none."""


def outages(picture: Picture, outages: list[Window], replacements: list[Replacement]) -> Iterator[Finding]:
    for outage in outages:
        text = f"nobody was served for {outage.seconds:.1f} s (from {outage.begin:.1f} s)"
        yield finding("outage", "warning", text, outage.evidence)
        ready = [
            milestone.at
            for replacement in replacements
            if (milestone := replacement.milestones.ready).at is not None and outage.begin <= milestone.at < outage.end
        ]
        if ready and len(ready) == len(picture.pairs):
            text = f"every replacement was Ready for {outage.end - max(ready):.1f} s before a request was served again"
            yield finding("ready_but_not_serving", "warning", text, outage.evidence)
    history = picture.observations.endpoints.history
    if picture.victims and any(point.ready == 0 and point.at >= picture.victims[0].at for point in history):
        yield from _unprotected(picture)


def _unprotected(picture: Picture) -> Iterator[Finding]:
    """Why all endpoints went at once, as far as the rows at the fault tell."""
    call = picture.victims[0].call
    pods = [pod for pod in (picture.pods.by_uid.get(key) for key in call.ready_keys) if pod is not None]
    nodes = {pod.node for pod in pods}
    if len(pods) > 1 and len(nodes) == 1 and None not in nodes:
        text = f"all {len(pods)} ready replicas were on one node, {nodes.pop()}"
        yield finding("all_replicas_on_one_node", "warning", text, call.rows, "spread them (topologySpreadConstraints)")
    budgets = picture.observations.watches.listed & {"poddisruptionbudgets"} or picture.observations.budgets.history
    if budgets and picture.taken and all(victim.call.pod and not victim.call.budgets for victim in picture.taken):
        yield finding("no_budget", "warning", "no PodDisruptionBudget matches the victims", call.rows)


def warmup(picture: Picture, replacements: list[Replacement]) -> Iterator[Finding]:
    for pod, replacement in zip(picture.replacements, replacements, strict=True):
        span = replacement.ready_to_warm.value
        if span is not None and span > 0 and (replacement.warmup_failed or replacement.warmup_slow):
            text = (
                f"{pod.name} was Ready {span:.1f} s before it was warm: "
                f"{replacement.warmup_failed} failed and {replacement.warmup_slow} slow requests on it meanwhile"
            )
            yield finding("ready_before_warm", "warning", text, replacement.milestones.warm.evidence)


def routing(picture: Picture, replacements: list[Replacement]) -> Iterator[Finding]:
    """A replacement in service to which no request went: not cold, but not on anybody's way."""
    requests = picture.requests
    for pod, replacement in zip(picture.replacements, replacements, strict=True):
        ready = replacement.milestones.endpoint_ready
        if (
            ready.high is None
            or pod.terminating
            or pod.gone is not None
            or picture.on(pod).any()
            or picture.pending_on(pod)
        ):
            continue
        elsewhere = requests.in_service & (requests.sent > ready.high) & (picture.placed != UNPLACED)
        count = int(np.count_nonzero(elsewhere))
        if count < PASSED_BY:
            continue
        text = (
            f"{pod.name} was a ready endpoint for {picture.now - ready.high:.1f} s, and all {count} requests sent "
            "since went to other Pods"
        )
        probes = np.unique(requests.probe[elsewhere]).tolist()
        names = [requests.vocabulary["probe"].words[code] for code in probes]
        reused = all(picture.context.probe(name).reuses_connections for name in names)
        advice = "set connection: new in a probe: a connection that is reused may stay with one Pod" if reused else None
        yield finding("not_routed", "warning", text, ready.evidence, advice)


def exposure(picture: Picture, facts: Facts) -> Iterator[Finding]:
    if picture.victims and not facts.exposure.exposed:
        text = "no stream was in flight on a victim when the fault was sent: the drill proves nothing about the drain"
        advice: str | None = 'wait for exposure: when: "in_flight(target) >= 1"'
        if facts.exposure.unplaced:
            text, advice = text.replace("no stream was", "no stream is known to have been"), None
        rows = [row for victim in picture.victims for row in victim.call.rows]
        yield finding("not_exposed", "warning", text, rows, advice)
    if picture.victims and facts.exposure.unplaced:
        text = f"the Pod of {facts.exposure.unplaced} requests across the fault is not known; they bound the loss"
        yield finding("unplaced", "warning", text, picture.requests.ids(unplaced_across(picture)))
