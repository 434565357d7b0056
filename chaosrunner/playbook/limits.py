"""What a drill may touch at most."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from chaosrunner.playbook.base import Model, Name, Percent, PositiveDuration, Selector

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
