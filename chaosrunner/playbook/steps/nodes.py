"""Steps on nodes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chaosrunner.playbook.base import PositiveDuration, WholeSeconds
from chaosrunner.playbook.steps.targets import NodeTarget, Trigger

LABEL = r"^([a-z0-9A-Z]([-a-z0-9A-Z.]*[a-z0-9A-Z])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
"""A qualified name, as keys of labels and taints are."""


class Cordon(NodeTarget):
    """Mark nodes unschedulable; undone at the end of the run."""

    of: Literal["workload"] | None = None
    """Candidates: nodes that run Pods of the workload."""


class Uncordon(NodeTarget):
    """Put nodes back that this run cordoned, before its end; all of them where nothing is named."""


class Drain(NodeTarget, Trigger):
    """Cordon nodes and evict their Pods, by the rules of `kubectl drain`; the cordon is undone at the end."""

    timeout: PositiveDuration = 600.0
    """Longest drain of one node; then the step failed."""
    ignore_daemonsets: bool = True
    """Leave Pods of DaemonSets alone; false refuses a node that has some."""
    delete_emptydir_data: bool = False
    """Evict Pods with emptyDir volumes too (their data is lost); false refuses a node that has some."""
    force: bool = False
    """Evict Pods without a controller too (they do not come back); false refuses a node that has some."""
    grace_period: WholeSeconds | None = None
    """Termination grace period asked for, whole seconds; each Pod's own where absent."""
    retry_every: PositiveDuration = 5.0
    """Time between tries of an eviction that a budget refuses."""


class Taint(NodeTarget):
    """Put a taint on nodes; taken away after `for`, or at the end of the run."""

    of: Literal["workload"] | None = None
    """Candidates: nodes that run Pods of the workload."""
    key: Annotated[str, Field(pattern=LABEL)] = "chaosrunner.dev/drill"
    """Key of the taint."""
    value: str = ""
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"
    """Keep Pods away, or (`NoExecute`) throw out those that do not tolerate it as well."""
    for_: PositiveDuration | None = Field(default=None, alias="for")
    """How long; until the end of the run where absent."""
