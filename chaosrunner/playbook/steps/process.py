"""Steps that stop processes, or send them signals."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from chaosrunner.playbook.base import Name, PositiveDuration, Text
from chaosrunner.playbook.steps.targets import PodTarget


class ProcessFault(PodTarget):
    """Which process of which Pods."""

    container: Name | None = None
    """Container whose process it is; the Pod's first where absent."""
    process: Text | None = None
    """A process by its name, like `VLLM::EngineCore`; the container's main process where absent."""


class Freeze(ProcessFault):
    """Stop a process without ending it. It goes on by itself after `for`."""

    for_: PositiveDuration = Field(default=30.0, alias="for")
    """How long."""


class Kill(ProcessFault):
    """Send a signal to a process."""

    signal: Literal["KILL", "TERM", "INT", "QUIT", "ABRT", "SEGV"] = "KILL"
    """Which. Others than KILL may be ignored by the process."""
