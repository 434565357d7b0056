"""scale: another number of replicas of the workload's controller, and back."""

from __future__ import annotations

from chaosrunner.cluster.resources import Object, Resource
from chaosrunner.errors import UserError
from chaosrunner.faults.setting import Setting
from chaosrunner.journal import fields
from chaosrunner.journal.journal import Field
from chaosrunner.timeline import rows

POINTER = "/spec/replicas"


class Scale(Setting):
    """Sets `spec.replicas`. What somebody else, an autoscaler say, sets meanwhile is left as they want it."""

    name = "scale"
    done = "scaled"

    def __init__(self, resource: Resource, target: rows.Target, *, replicas: int | None = None, by: int = 0) -> None:
        """`by` is counted from what the controller wants when the fault is made, where `replicas` is None."""
        super().__init__([target])
        self.resource = resource
        self._replicas = replicas
        self._by = by

    def field(self, obj: Object) -> Field:
        now = fields.get(obj, POINTER)
        if not isinstance(now, int):
            raise UserError(f"{self.resource.kind} {obj['metadata']['name']} has no spec.replicas to change")
        if self._replicas is None:
            self._replicas = now + self._by
            if self._replicas < 0:
                raise UserError(f"{now} replicas cannot become {self._replicas}")
        return Field(path=POINTER, previous=now, desired=self._replicas)

    def told(self, field: Field) -> str | None:
        return f"replicas {field.previous} -> {field.desired}"
