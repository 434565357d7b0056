"""The report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from chaosrunner.reports.sections import Cell, Section, Table

INDENT = (0, 0, 0, 2)

COLOURS = {"plain": "", "good": "green", "bad": "red", "warn": "yellow", "dim": "dim"}


def render(console: Console, headline: Cell | None, sections: Sequence[Section]) -> None:
    """Prints the report. Colours appear where the console has them; texts are never read as markup."""
    if headline:
        console.print(_text(headline, bold=True), soft_wrap=True)
    for section in sections:
        console.print()
        console.print(Text(section.title, style="bold"))
        for line in section.lines:
            console.print(Padding(_text(line), INDENT, expand=False))
        for table in section.tables:
            console.print(Padding(_table(table), INDENT, expand=False))
        for note in section.notes:
            console.print(Padding(_text(note), INDENT, expand=False))


def print_table(console: Console, table: Table) -> None:
    console.print(_table(table))


def _text(cell: Cell | str, *, bold: bool = False) -> Text:
    if isinstance(cell, str):
        return Text(cell)
    return Text(cell.text, style=f"bold {COLOURS[cell.style]}".strip() if bold else COLOURS[cell.style])


def _table(table: Table) -> RichTable:
    made = RichTable(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, column in enumerate(table.columns):
        made.add_column(column, justify="right" if index in table.right else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*(_text(cell) for cell in row))
    return made
