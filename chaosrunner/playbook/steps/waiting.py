"""Steps that change nothing: they watch, wait, or ask once."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic.json_schema import WithJsonSchema

from chaosrunner.playbook.base import Model, PositiveDuration, Text, mistake, reader, words
from chaosrunner.playbook.expressions import OUTCOMES, Expression, parse
from chaosrunner.playbook.requests import Message


class Baseline(Model):
    """Watch the service at rest; no fault is sent before it was healthy."""

    for_: PositiveDuration = Field(default=30.0, alias="for")
    """Least length of the baseline."""
    until: Expression = parse("success_rate >= 0.99")
    """What must hold at its end."""
    timeout: PositiveDuration = 120.0
    """Longest wait for `until` after `for`; then the run is inconclusive."""


class Wait(Model):
    """Wait for something to become true."""

    until: Expression
    """What must become true, like `replacement.warm` or `endpoints_back and pods_ready >= 2`."""
    timeout: PositiveDuration = 600.0
    """Longest wait; then the step failed and the rest is skipped."""


class Hold(Model):
    """Keep the load running and watch."""

    for_: PositiveDuration = Field(alias="for")
    """How long."""


class OnceExpect(Model):
    status: int | None = Field(default=None, ge=100, le=599)
    """HTTP status."""
    outcome: (
        Annotated[
            list[str],
            reader(words(OUTCOMES, "outcome", "an outcome, or a list of them")),
            WithJsonSchema({"anyOf": [{"enum": list(OUTCOMES)}, {"type": "array", "items": {"enum": list(OUTCOMES)}}]}),
        ]
        | None
    ) = None
    """Outcome, or one of several."""

    @model_validator(mode="after")
    def _any(self) -> OnceExpect:
        if self.status is None and self.outcome is None:
            raise mistake("expect names a status, an outcome, or both")
        return self


class ProbeOnce(Model):
    """Send one request outside the success rate, and check its answer."""

    probe: Text
    """Name of the probe that sends it."""
    prompt: str | None = None
    """Instead of the probe's prompt."""
    messages: list[Message] | None = Field(default=None, min_length=1)
    """Instead of the probe's messages."""
    max_tokens: int | None = None
    """Instead of the probe's."""
    body: dict[str, Any] = Field(default_factory=dict)
    """More fields for the body; they replace the probe's."""
    expect: OnceExpect = OnceExpect(outcome=["complete", "complete_missing_done"])
    """Answer expected; a success where absent."""
