"""One step of a playbook, of whichever kind."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from chaosrunner.playbook.base import Model, Name, exactly_one
from chaosrunner.playbook.steps.command import Command
from chaosrunner.playbook.steps.controller import RolloutRestart, Scale
from chaosrunner.playbook.steps.network import Network
from chaosrunner.playbook.steps.nodes import Cordon, Drain, Taint, Uncordon
from chaosrunner.playbook.steps.process import Freeze, Kill
from chaosrunner.playbook.steps.takes import DeletePod, Evict
from chaosrunner.playbook.steps.waiting import Baseline, Hold, ProbeOnce, Wait


class Heal(Model):
    """End the fault of an earlier step before its time."""

    step: Name
    """Name of that step."""


LASTING = (Network, Freeze, Taint, Scale, Command)
"""Faults that are there until something ends them."""

StepBody = (
    Baseline | Evict | DeletePod | Cordon | Uncordon | Drain | Network | Freeze | Kill | Taint | Scale | RolloutRestart
    | Command | Heal | Wait | Hold | ProbeOnce
)  # fmt: skip

STEPS = (
    "baseline", "evict", "delete_pod", "cordon", "uncordon", "drain", "network", "freeze", "kill", "taint", "scale",
    "rollout_restart", "command", "heal", "wait", "hold", "probe_once",
)  # fmt: skip


class Step(Model):
    """One step: exactly one of the keys below, and an optional name."""

    name: Name | None = None
    """Name in reports; the kind of the step where absent."""
    baseline: Baseline | None = None
    """Watch the service at rest; gate of every fault."""
    evict: Evict | None = None
    """Evict Pods through the Eviction API."""
    delete_pod: DeletePod | None = Field(default=None, alias="delete-pod")
    """Delete Pods directly."""
    cordon: Cordon | None = None
    """Mark nodes unschedulable."""
    uncordon: Uncordon | None = None
    """Take cordons of this run back."""
    drain: Drain | None = None
    """Cordon nodes and evict their Pods."""
    network: Network | None = None
    """Disturb the network of Pods."""
    freeze: Freeze | None = None
    """Stop a process for a while."""
    kill: Kill | None = None
    """Send a signal to a process."""
    taint: Taint | None = None
    """Put a taint on nodes."""
    scale: Scale | None = None
    """Change the number of replicas."""
    rollout_restart: RolloutRestart | None = Field(default=None, alias="rollout-restart")
    """Replace all Pods by a rollout."""
    command: Command | None = None
    """Run commands of your own."""
    heal: Heal | None = None
    """End the fault of an earlier step."""
    wait: Wait | None = None
    """Wait until something holds."""
    hold: Hold | None = None
    """Keep the load running and watch."""
    probe_once: ProbeOnce | None = Field(default=None, alias="probe-once")
    """One request outside the success rate, with an expected answer."""

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, data: Any) -> Any:
        """`- baseline` and `- uncordon:` mean the step with all its defaults."""
        if isinstance(data, str):
            return {data: {}}
        if isinstance(data, dict):
            return {key: {} if value is None and key != "name" else value for key, value in data.items()}
        return data

    @model_validator(mode="after")
    def _one(self) -> Step:
        exactly_one(self, STEPS, "a step")
        return self

    @property
    def kind(self) -> str:
        """The key as YAML writes it: baseline, evict, delete-pod, ..."""
        return self._field.replace("_", "-")

    @property
    def body(self) -> StepBody:
        body: StepBody = getattr(self, self._field)
        return body

    @property
    def title(self) -> str:
        """Its name, or what it is."""
        return self.name or self.kind

    @property
    def _field(self) -> str:
        return next(name for name in STEPS if getattr(self, name) is not None)
