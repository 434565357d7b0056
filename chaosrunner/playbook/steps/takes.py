"""Steps that take Pods away."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import model_validator
from pydantic.json_schema import WithJsonSchema

from chaosrunner.playbook.base import Duration, WholeSeconds, mistake, reader
from chaosrunner.playbook.expressions import ANSWERS, suggest
from chaosrunner.playbook.steps.targets import PodTarget


def _read_answer(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
        return value
    if isinstance(value, str):
        if value in ANSWERS:
            return value
        raise ValueError(f'unknown answer "{value}"; {suggest(value, ANSWERS) or "one of: " + ", ".join(ANSWERS)}')
    raise ValueError("expected an HTTP status like 429 or a class of answers like blocked_by_budget")


Answer = Annotated[
    int | str,
    reader(_read_answer),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 100, "maximum": 599}, {"enum": list(ANSWERS)}]}),
]
"""HTTP status, or class of the answer."""


class PodFault(PodTarget):
    """Pods that are taken away."""

    grace_period: WholeSeconds | None = None
    """Termination grace period asked for, whole seconds; the Pod's own where absent."""
    expect: Answer = "accepted"
    """Answer that the step expects; any other fails it."""


class Evict(PodFault):
    """Ask the Eviction API to evict Pods, as a drain does; budgets are honoured."""

    dry_run: bool = False
    """Only ask (`dryRun=All`): the server answers as it would, and nothing is taken away."""
    retry_for: Duration = 0.0
    """How long an eviction that a budget refuses, or of which nobody says what became, is tried again."""


class DeletePod(PodFault):
    """Delete Pods directly, past every budget."""

    force: bool = False
    """Remove the object at once (grace period 0), without waiting for the kubelet: the process may live on."""

    @model_validator(mode="after")
    def _consistent(self) -> DeletePod:
        if self.force and self.grace_period:
            raise mistake("force means a grace period of 0", "leave grace_period out")
        return self
