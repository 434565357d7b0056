"""Drills: a playbook bound to an environment."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from chaosrunner.playbook.base import Metadata, Model, Name, Text
from chaosrunner.playbook.drivers import Drivers
from chaosrunner.playbook.endpoint import Endpoint, Prometheus
from chaosrunner.playbook.lab import LabSpec
from chaosrunner.playbook.limits import Limits
from chaosrunner.playbook.parameters import ParameterName
from chaosrunner.playbook.workload import Workload


class Drill(Model):
    """A playbook bound to an environment."""

    apiVersion: Literal["chaosrunner.dev/v1"]
    """Version of the format."""
    kind: Literal["Drill"]
    """Drill."""
    metadata: Metadata
    """Name and tags."""
    description: str = ""
    """What the drill is for."""
    playbook: Text
    """The playbook: its name, or the path of its file relative to this one."""
    context: Text | None = None
    """Context of the kubeconfig, or `in-cluster`. A rehearsal uses the lab's."""
    production: bool = False
    """A run needs the cluster's name, typed or by --cluster, and what stays until undone must be allowed by name."""
    namespace: Name | None = None
    """Namespace of the workload; the context's where absent."""
    workload: Workload
    """What the drill is about."""
    endpoint: Endpoint = Endpoint()
    """Where the probes send their requests."""
    prometheus: Prometheus | None = None
    """Where alert states are asked; without it alerts are unknown."""
    parameters: dict[ParameterName, Any] = Field(default_factory=dict)
    """Values for the playbook's parameters; `-p name=value` goes before them."""
    limits: Limits = Limits()
    """What the drill may touch at most."""
    drivers: Drivers = Drivers()
    """By what faults are made."""
    lab: LabSpec | None = None
    """What a rehearsal runs on."""
