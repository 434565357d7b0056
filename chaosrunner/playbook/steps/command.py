"""The step that runs the user's own commands."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from chaosrunner.playbook.base import PositiveDuration, mistake
from chaosrunner.playbook.steps.targets import PodTarget

Argv = Annotated[list[str], Field(min_length=1)]


class Command(PodTarget):
    """Run commands of your own: a cloud's CLI, ssh, IPMI. They are run for each chosen Pod: `{{ pod }}`, `{{ node }}`,
    `{{ ip }}`, `{{ namespace }}`, `{{ context }}` and `{{ kubeconfig }}` are filled in; no shell is between. Exit
    code 0 means that it worked."""

    apply: Argv
    """Makes the change."""
    verify: Argv | None = None
    """Tells whether it bit; taken for granted where absent."""
    undo: Argv | None = None
    """Takes it back; must work twice, and where nothing was changed. Nothing is undone where absent."""
    verify_undone: Argv | None = None
    """Tells whether nothing of it is left."""
    timeout: PositiveDuration = 30.0
    """Longest run of each; then it is killed, and counts as failed."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables beside those of chaosrunner itself; no secrets."""
    for_: PositiveDuration | None = Field(default=None, alias="for")
    """How long; until the end of the run where absent."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.undo is None and (self.verify_undone is not None or self.for_ is not None):
            raise mistake("nothing is undone without undo", "give undo, or leave verify_undone and for out")
        return self
