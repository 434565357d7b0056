"""Reports on a terminal: nothing is wider than it, and no line ends in blanks.

Tables are laid out here and not by rich, which shrinks whichever column is widest: a column of numbers must stay
whole while the error text beside it is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from chaosrunner.reports.document import Cell, Item, Part, Section, Table

INDENT = 2
GAP = 2
LEAST_CUT = 12
LEAST_WRAP = 8
"""Columns are not shrunk below this, where their content is that wide."""

COLOURS = {"plain": "", "good": "green", "bad": "red", "warn": "yellow", "dim": "dim"}


def render(console: Console, headline: Cell | None, sections: Sequence[Section]) -> None:
    """Prints the report. Colours appear where the console has them; texts are never read as markup."""
    if headline:
        _write(console, _wrapped(console, headline, 0, bold=True))
    for number, section in enumerate(sections):
        if number or headline:
            console.print()
        console.print(Text(section.title, style="bold"))
        for kind, parts in groupby(section.parts, type):
            for lines in _parts(console, kind, list(parts)):
                _write(console, lines, INDENT)


def print_table(console: Console, table: Table) -> None:
    _write(console, _table(console, table, console.width))


def _parts(console: Console, kind: type[Part], parts: Sequence[Part]) -> list[list[Text]]:
    if kind is Item:
        rows = [(Cell(part.label, "dim"), part.value) for part in parts if isinstance(part, Item)]
        return [_table(console, Table(("", ""), rows, wrap=frozenset({1})), console.width - INDENT)]
    made = []
    for part in parts:
        if isinstance(part, Table):
            made.append(_table(console, part, console.width - INDENT))
        elif isinstance(part, Cell):
            made.append(_wrapped(console, part, INDENT))
    return made


def _write(console: Console, lines: Sequence[Text], indent: int = 0) -> None:
    for line in lines:
        line.rstrip()
        console.print(Text(" " * indent) + line, soft_wrap=True)


def _text(cell: Cell | str, *, bold: bool = False) -> Text:
    text, style = (cell, "") if isinstance(cell, str) else (cell.text, COLOURS[cell.style])
    return Text(text, style=f"bold {style}".strip() if bold else style)


def _wrapped(console: Console, cell: Cell, indent: int, *, bold: bool = False) -> list[Text]:
    """A line, continued further in where it does not fit."""
    whole = _text(cell, bold=bold)
    begin = len(cell.text) - len(cell.text.lstrip())
    width = console.width - indent - begin - INDENT
    if cell_len(cell.text) <= console.width - indent:
        return [whole]
    lines = list(whole[begin:].wrap(console, max(width, LEAST_CUT), overflow="fold"))
    return [Text(" " * (begin + (INDENT if number else 0))) + line for number, line in enumerate(lines)]


def _table(console: Console, table: Table, width: int) -> list[Text]:
    used = table.used
    header = [Text(table.columns[index], style="dim") for index in used]
    body = [[_text(row[index]) for index in used] for row in table.rows]
    rows = [header, *body] if any(title.plain for title in header) else body
    right, wrap, cut = (
        [position for position, index in enumerate(used) if index in marked]
        for marked in (table.right, table.wrap, table.cut)
    )
    widths = [max(max(map(cell_len, row[position].plain.split("\n"))) for row in rows) for position in range(len(used))]
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    for positions, least in ((cut, LEAST_CUT), (wrap, LEAST_WRAP), (cut, 1)):
        excess = _shrink(widths, positions, least, excess)
    lines: list[Text] = []
    for row in rows:
        cells = [
            list(cell.wrap(console, widths[position], overflow="fold")) if position in wrap else cell.split("\n")
            for position, cell in enumerate(row)
        ]
        for number in range(max(map(len, cells))):
            line = Text()
            for position, parts in enumerate(cells):
                part = parts[number].copy() if number < len(parts) else Text()
                if position in cut:
                    part.truncate(widths[position], overflow="ellipsis")
                part.align("right" if position in right else "left", max(widths[position], cell_len(part.plain)))
                line.append_text(part)
                line.append(" " * GAP)
            lines.append(line)
    return lines


def _shrink(widths: list[int], positions: Sequence[int], least: int, excess: int) -> int:
    """Takes `excess` off these columns, the widest first; returns what is left of it."""
    while excess > 0 and positions:
        widest = max(positions, key=lambda position: widths[position])
        if widths[widest] <= least:
            break
        widths[widest] -= 1
        excess -= 1
    return excess
