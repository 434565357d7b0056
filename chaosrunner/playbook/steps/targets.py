"""What faults are aimed at, and when they fire."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from chaosrunner.playbook.base import Model, PositiveDuration, Quantity, Selector, Text, exactly_one, mistake
from chaosrunner.playbook.expressions import Expression

Pick = Literal["most_in_flight", "least_in_flight", "random", "oldest", "newest"]


class PodSource(Model):
    """Narrows the candidates to exactly one of `selector`, `node`, `expression`."""

    selector: Selector | None = None
    """Pods of the workload that also carry these labels."""
    node: Text | None = None
    """Pods of the workload on this node."""
    expression: Expression | None = None
    """Pods for which this holds when the step fires, like `in_flight(target) >= 2`."""

    @model_validator(mode="after")
    def _one(self) -> PodSource:
        exactly_one(self, ("selector", "node", "expression"), "from")
        return self


class Trigger(Model):
    """When a fault fires."""

    when: Expression | None = None
    """Fire when this holds; `target` is each candidate in turn. At once where absent."""
    within: PositiveDuration = 60.0
    """Longest wait for `when`; then the run is inconclusive, and nothing was changed."""


class PodTarget(Trigger):
    """Which Pods a fault is aimed at."""

    pods: Quantity = Quantity("one")
    """How many: one, all, a number, or a percentage of the candidates (rounded down, at least one).
    Candidates are the workload's Running Pods that are not terminating, frozen before the run."""
    from_: PodSource | None = Field(default=None, alias="from")
    """Narrows the candidates."""
    pick: Pick = "most_in_flight"
    """Which of the candidates come first."""
    including: Literal["replacements"] | None = None
    """`replacements`: Pods created by earlier faults of this run are candidates too."""


class NodeTarget(Model):
    """Which nodes: one by name, or some of those that host the workload."""

    node: Text | None = None
    """This node."""
    nodes: Quantity | None = None
    """How many of the candidates; one where neither `node` nor `nodes` is given."""
    of: Literal["workload", "cordoned"] | None = None
    """Candidates: nodes that run Pods of the workload, or those that this run cordoned."""
    selector: Selector | None = None
    """Only nodes with these labels."""
    pick: Pick = "most_in_flight"
    """Which of the candidates come first; in-flight requests and ages are those of their Pods."""

    @model_validator(mode="after")
    def _consistent(self) -> NodeTarget:
        if self.node is not None and (self.nodes is not None or self.of is not None or self.selector is not None):
            raise mistake("node names the node; nodes, of and selector choose one", "keep one of the two")
        return self
