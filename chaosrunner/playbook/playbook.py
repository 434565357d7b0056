"""Playbooks: probes, steps and checks, with parameters."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from chaosrunner.playbook.base import Metadata, Model, Percent, Text
from chaosrunner.playbook.expressions import Expression
from chaosrunner.playbook.parameters import Parameter, ParameterName
from chaosrunner.playbook.probe import Probe
from chaosrunner.playbook.steps.step import Step


class Check(Model):
    """A pass criterion, judged when the run is over."""

    check: Expression
    """What must hold."""
    name: Text | None = None
    """Name in reports; the expression where absent."""
    confidence: Percent | None = None
    """Compare the bound of the confidence interval at this level instead of the estimate (success_rate only)."""
    probe: Text | None = None
    """Count only requests of this probe; those of all probes of the endpoint where absent, and none that went to the
    replicas directly."""

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, data: Any) -> Any:
        return {"check": data} if isinstance(data, str) else data

    @property
    def title(self) -> str:
        return self.name or str(self.check)


class Playbook(Model):
    """A reusable procedure: probes, steps and checks, with parameters."""

    apiVersion: Literal["chaosrunner.dev/v1"]
    """Version of the format."""
    kind: Literal["Playbook"]
    """Playbook."""
    metadata: Metadata
    """Name and tags."""
    description: str = ""
    """What question the playbook answers, and how."""
    parameters: dict[ParameterName, Parameter] = Field(default_factory=dict)
    """Values that a drill gives."""
    probes: list[Probe] = Field(min_length=1)
    """Traffic that runs from the first step to the last."""
    steps: list[Step] = Field(min_length=1)
    """What happens, in this order."""
    abort: Expression | None = None
    """When this holds at any time after the baseline, the run is aborted and everything put back."""
    checks: list[Check] = Field(default_factory=list)
    """What must hold in the end."""
    warm_streams: int = Field(default=3, ge=1, le=100)
    """How many consecutive good streams make a replacement warm."""
