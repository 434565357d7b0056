"""The Markdown report, rendered by a real CommonMark parser with GitHub's tables."""

from __future__ import annotations

import html
import re

import pytest
from markdown_it import MarkdownIt

from chaosrunner.analysis import Facts
from chaosrunner.reports.document import Section, Table, text
from chaosrunner.reports.markdown import escape, markdown
from chaosrunner.reports.sections import headline, sections
from tests.reports.story import NASTY, crowd, eviction, quiet

RENDERER = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough")


def shown(rendered: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", rendered)).split())


@pytest.mark.parametrize(
    "raw",
    [
        NASTY, "a | b", "*a* _b_ **c** `d` ~~e~~", "[x](http://y) ![z](w)", "<script>x</script> &amp;", "# no title",
        "1. no list", "2) neither", "- nor this", "+ that", "\\*", "\\", "$x^2$", "===", "a_b_c #12 100 %",
    ],
)  # fmt: skip
@pytest.mark.parametrize("frame", ["{}", "- {}", "| a |\n| --- |\n| {} |", "# {}"])
def test_any_text_reads_the_same_once_rendered(raw: str, frame: str) -> None:
    rendered = RENDERER.render(frame.format(escape(raw)))
    allowed = {"p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "h1"}
    assert {tag.lower() for tag in re.findall(r"</?([a-zA-Z][a-zA-Z0-9]*)", rendered)} <= allowed
    assert " ".join(raw.split()) in shown(rendered)


@pytest.mark.parametrize("found", [eviction(error=NASTY), quiet(), crowd(30)], ids=["eviction", "quiet", "crowd"])
def test_a_report_renders_with_every_table_and_cell(found: Facts) -> None:
    made = sections(found)
    rendered = RENDERER.render(markdown("a *title* | of <all>", headline(found), made))
    tables = [part for section in made for part in section.parts if isinstance(part, Table)]
    assert rendered.count("<table>") == len(tables)
    assert rendered.count("<h2>") == len(made)
    assert "<h1>a *title* | of &lt;all&gt;</h1>" in rendered
    assert not re.search(r"<(a|em|code|script|b|img|s)\b", rendered)
    cells = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", rendered, re.DOTALL)]
    expected = [" ".join(text(row[index]).split()) for table in tables for row in table.rows for index in table.used]
    assert cells == expected


def test_columns_without_content_are_left_out() -> None:
    section = Section("s")
    section.table(Table(("a", "empty", "n"), [("x", "", "1"), ("y", "", "2")], right=frozenset({2})))
    document = markdown("t", headline(quiet()), [section])
    assert "| a | n |\n| --- | ---: |\n| x | 1 |\n| y | 2 |\n" in document
