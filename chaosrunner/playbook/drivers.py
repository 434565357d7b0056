"""By what faults are made."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic.json_schema import WithJsonSchema

from chaosrunner.playbook.base import Model, Text, reader, words
from chaosrunner.playbook.endpoint import Url


class AgentImage(Model):
    """The container that sets faults inside a Pod: see `chaosrunner agent --help`."""

    image: Text | None = None
    """Image; the one of this version where absent."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When nodes pull it."""


class ToxiproxyDriver(Model):
    """A Toxiproxy between callers and replicas."""

    url: Url | None = None
    """Base URL of its HTTP API; a rehearsal uses the lab's."""
    proxy: Text = "{{ pod }}"
    """Name of the proxy that leads to a Pod; `{{ pod }}` and `{{ ip }}` are filled in."""


DRIVERS = ("ephemeral-container", "network-policy", "toxiproxy")

Driver = Literal["ephemeral-container", "network-policy", "toxiproxy"]


Preference = Annotated[
    list[Driver],
    reader(words(DRIVERS, "driver", "a driver, or a list of them in the order of preference")),
    WithJsonSchema(
        {"anyOf": [{"enum": list(DRIVERS)}, {"type": "array", "minItems": 1, "items": {"enum": list(DRIVERS)}}]}
    ),
]
"""Drivers; in YAML one, or a list."""


class Drivers(Model):
    """By what faults are made where there is more than one way."""

    network: Preference = ["ephemeral-container"]  # noqa: RUF012
    """`ephemeral-container`: rules in the Pod's own network, which end by themselves. `network-policy`: a
    NetworkPolicy. `toxiproxy`: a proxy in between. Of a list the first that works here."""
    agent: AgentImage = AgentImage()
    """The container of `ephemeral-container`, of freeze and of kill."""
    toxiproxy: ToxiproxyDriver = ToxiproxyDriver()
    """Where the proxy is."""
