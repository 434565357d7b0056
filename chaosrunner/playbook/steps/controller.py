"""Steps on the workload's controller."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from chaosrunner.playbook.base import PositiveDuration, exactly_one
from chaosrunner.playbook.steps.targets import Trigger


class Scale(Trigger):
    """Change the replicas of the workload's controller; put back after `for`, or at the end of the run."""

    replicas: int | None = Field(default=None, ge=0)
    """How many."""
    by: int | None = None
    """How many more, or (negative) fewer."""
    for_: PositiveDuration | None = Field(default=None, alias="for")
    """How long; until the end of the run where absent."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        exactly_one(self, ("replicas", "by"), "scale")
        return self


class RolloutRestart(Trigger):
    """Replace all Pods of the workload by its controller's rules, as `kubectl rollout restart` does. Not undone."""
