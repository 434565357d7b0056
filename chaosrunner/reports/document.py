"""What a report is made of, whatever it is written as: titled sections of lines, labelled values and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Style = Literal["plain", "good", "bad", "warn", "dim"]

STYLES: dict[str, Style] = {
    "passed": "good",
    "failed": "bad",
    "skipped": "warn",
    "inconclusive": "warn",
    "aborted": "warn",
    "rollback_failed": "bad",
    "failure": "bad",
    "warning": "warn",
    "info": "dim",
}
"""Colour of a verdict or a severity."""


@dataclass(frozen=True)
class Cell:
    text: str
    style: Style = "plain"


@dataclass(frozen=True)
class Item:
    """A labelled value."""

    label: str
    value: Cell


@dataclass(frozen=True)
class Table:
    """Columns are given by their index; those without a mark are shown whole, whatever the width."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    right: frozenset[int] = frozenset()
    """Columns that are aligned to the right."""
    wrap: frozenset[int] = frozenset()
    """Columns that may take several lines."""
    cut: frozenset[int] = frozenset()
    """Columns that are cut to one line where there is no room for more, like the error texts of others."""

    @property
    def used(self) -> list[int]:
        """Columns with anything in them."""
        return [index for index in range(len(self.columns)) if any(text(row[index]) for row in self.rows)]


Part = Cell | Item | Table


@dataclass
class Section:
    title: str
    parts: list[Part] = field(default_factory=list)

    def line(self, text: str, style: Style = "plain") -> None:
        self.parts.append(Cell(text, style))

    def item(self, label: str, text: str, style: Style = "plain") -> None:
        self.parts.append(Item(label, Cell(text, style)))

    def table(self, table: Table) -> None:
        self.parts.append(table)


def text(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text
