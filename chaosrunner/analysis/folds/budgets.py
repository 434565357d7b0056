"""PodDisruptionBudgets as they were seen over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from chaosrunner.playbook.selectors import read_selector
from chaosrunner.timeline.rows import Pdb


class Hold(NamedTuple):
    """A budget counts a Pod as disrupted that did not go."""

    charged: Pdb
    """First row that shows it."""
    released: Pdb | None
    """First one that does not any more."""


class Budgets:
    """Every state of every budget, by UID, oldest first."""

    def __init__(self) -> None:
        self.history: dict[str, list[Pdb]] = {}

    def feed(self, row: Pdb) -> None:
        self.history.setdefault(row.uid, []).append(row)

    def matching(self, namespace: str | None, labels: Mapping[str, str], at: float) -> list[Pdb]:
        """Latest state at `at` of each budget whose selector matches a Pod with these labels."""
        found = []
        for rows in self.history.values():
            row = next((row for row in reversed(rows) if row.at <= at), None)
            if row is None or row.seen in ("DELETED", "VANISHED"):
                continue
            if namespace is not None and row.namespace is not None and row.namespace != namespace:
                continue
            selector = read_selector(row.selector)
            if selector is not None and selector.matches(labels):
                found.append(row)
        return found

    def between(self, uid: str, begin: float, end: float) -> list[Pdb]:
        """States of one budget received in (begin, end]."""
        return [row for row in self.history.get(uid, ()) if begin < row.at <= end]

    def hold(self, pod: str, since: float, until: float) -> Hold | None:
        """How a budget held the disruption of a Pod of this name, by its rows in (since, until]; None: not seen."""
        for uid in self.history:
            seen = self.between(uid, since, until)
            charged = next((row for row in seen if pod in row.disrupted_times), None)
            if charged is not None:
                later = (row for row in seen if row.id > charged.id)
                gone = ("DELETED", "VANISHED")
                return Hold(charged, next((r for r in later if pod not in r.disrupted_times or r.seen in gone), None))
        return None
