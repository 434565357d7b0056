"""What a drill is about."""

from __future__ import annotations

from pydantic import Field

from chaosrunner.playbook.base import Model, Name, Selector


class Gateway(Model):
    """The Pods through which the probes' requests come."""

    selector: Selector
    """Labels of its Pods."""
    namespace: Name | None = None
    """Their namespace; the workload's where absent."""


class Workload(Model):
    """What the drill is about."""

    selector: Selector
    """Labels of its Pods."""
    controller: str | None = Field(default=None, pattern=r"^[A-Za-z][A-Za-z0-9.]*/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    """What creates them, like `deployment/chat`; looked up from the Pods' owners where absent."""
    service: Name | None = None
    """Service whose endpoints they are; without it endpoint metrics are unknown."""
    gateway: Gateway | None = None
    """The Pods through which requests come: what network faults call `gateway`. A rehearsal uses the lab's."""
