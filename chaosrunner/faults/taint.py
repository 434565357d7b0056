"""taint: a taint on nodes, and off again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaosrunner.cluster.resources import NODES, Object
from chaosrunner.faults.setting import Setting
from chaosrunner.journal import fields
from chaosrunner.journal.journal import Field
from chaosrunner.timeline import rows

KEYS = ("key", "effect")
"""What identifies a taint: kubectl and the scheduler know no two with the same."""


class Taint(Setting):
    """Puts one taint on nodes. A node that has one of that key and effect already keeps it, with its value."""

    name = "taint"
    done = "tainted"
    resource = NODES

    def __init__(self, nodes: Sequence[rows.Target], *, key: str, value: str = "", effect: str) -> None:
        super().__init__(nodes)
        self._taint: dict[str, Any] = {"key": key, "effect": effect} | ({"value": value} if value else {})

    def field(self, obj: Object) -> Field:
        wanted = Field(path="/spec/taints", previous=None, desired=self._taint, keys=KEYS)
        return Field(path=wanted.path, previous=fields.value(obj, wanted), desired=self._taint, keys=KEYS)

    def told(self, field: Field) -> str | None:
        return f"{self._taint['key']}={self._taint.get('value', '')}:{self._taint['effect']}"
