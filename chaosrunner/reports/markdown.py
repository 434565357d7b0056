"""The report as Markdown, for a ticket or a wiki page."""

from __future__ import annotations

from collections.abc import Sequence

from chaosrunner.reports.sections import Cell, Section, Table


def markdown(title: str, headline: Cell, sections: Sequence[Section]) -> str:
    """One document; every text is escaped, so that no name or error message can break a table."""
    parts = [f"# {_escape(title)}", f"**{_escape(headline.text)}**"]
    for section in sections:
        parts.append(f"## {_escape(section.title)}")
        if section.lines:
            parts.append("\n".join(f"- {_escape(line.text.strip())}" for line in section.lines))
        parts.extend(_table(table) for table in section.tables)
        if section.notes:
            parts.append("\n".join(f"- {_escape(note.text.strip())}" for note in section.notes))
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    rules = ["---:" if index in table.right else "---" for index in range(len(table.columns))]
    rows = [[_escape(cell if isinstance(cell, str) else cell.text) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in ([_escape(column) for column in table.columns], rules, *rows))


def _escape(text: str) -> str:
    flat = " ".join(text.split())
    for char in "\\`*_[]<>|#":
        flat = flat.replace(char, f"\\{char}")
    return flat
