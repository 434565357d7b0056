"""The report as Markdown, for a ticket or a wiki page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from chaosrunner.reports.document import Cell, Item, Section, Table, text

_MARKS = re.compile(r"[\\`*_\[\]<>|#~$&]")
_LIST = re.compile(r"^(\d*)([-+=.)])")
"""What would begin a list (or underline a title) where it begins a line."""


def markdown(title: str, headline: Cell | None, sections: Sequence[Section]) -> str:
    """One document; every text is escaped, so that no name or error message can break a table or become markup."""
    blocks = [f"# {escape(title)}"] + ([f"**{escape(headline.text)}**"] if headline else [])
    for section in sections:
        blocks.append(f"## {escape(section.title)}")
        for is_table, parts in groupby(section.parts, lambda part: isinstance(part, Table)):
            if is_table:
                blocks.extend(_table(part) for part in parts if isinstance(part, Table))
            else:
                blocks.append("\n".join(_line(part) for part in parts if not isinstance(part, Table)))
    return "\n\n".join(blocks) + "\n"


def _line(part: Cell | Item) -> str:
    if isinstance(part, Item):
        return f"- **{escape(part.label)}**: {escape(part.value.text)}"
    nested = "  " if part.text.startswith(" ") else ""
    return f"{nested}- {escape(part.text)}"


def _table(table: Table) -> str:
    used = table.used
    rules = ["---:" if index in table.right else "---" for index in used]
    rows = [[escape(text(row[index])) for index in used] for row in table.rows]
    header = [escape(table.columns[index]) for index in used]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rules, *rows))


def escape(raw: str) -> str:
    """A text that reads the same once rendered. Any ASCII punctuation may be escaped (CommonMark 0.31, 2.4)."""
    return _LIST.sub(r"\1\\\2", _MARKS.sub(r"\\\g<0>", " ".join(raw.split())))
