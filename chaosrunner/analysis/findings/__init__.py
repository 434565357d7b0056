"""Observations that explain themselves: what was noticed, how grave it is, which rows show it."""

from __future__ import annotations

from chaosrunner.analysis.facts import Facts, Finding
from chaosrunner.analysis.findings import containers, direct, evictions, leaving, nodes, observation, path, service
from chaosrunner.analysis.picture import Picture

__all__ = ["findings"]


def findings(picture: Picture, facts: Facts) -> list[Finding]:
    """All findings, in a fixed order. `facts` holds the figures made so far."""
    found: list[Finding] = []
    for source in (
        observation.gaps(picture),
        observation.unobserved(picture),
        observation.prober(picture, facts),
        observation.unsent(facts),
        evictions.budgets(picture),
        evictions.evictions(picture),
        leaving.disruptions(facts.disruptions),
        leaving.terminations(picture, facts.terminations),
        containers.deaths(picture),
        nodes.outages(picture),
        service.outages(picture, facts.outages, facts.replacements),
        service.warmup(picture, facts.replacements),
        service.routing(picture, facts.replacements),
        service.exposure(picture, facts),
        direct.routing(facts.direct),
        direct.unreachable(facts.direct),
        path.buffering(picture),
        path.time_limits(picture),
        observation.alerts(picture),
        observation.effects(picture),
        observation.journal(picture),
    ):
        found.extend(source)
    return found
