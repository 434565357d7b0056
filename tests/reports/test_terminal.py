"""The layout of tables and lines on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from chaosrunner.reports.document import Cell, Section, Table
from chaosrunner.reports.terminal import print_table, render


def show(table: Table, width: int, **options: object) -> list[str]:
    console = Console(file=io.StringIO(), width=width, **options)  # type: ignore[arg-type]
    print_table(console, table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


POD = "qwen-coder-7b-instruct-648fddf964-56w5x"
ROWS = [("9.01 s", POD, "accepted", "an error text that is far too long to be shown in one line")]
TABLE = Table(("at", "Pod", "answer", "error"), ROWS, frozenset({0}), wrap=frozenset({1}), cut=frozenset({3}))


def test_where_there_is_room_all_is_shown_in_one_line() -> None:
    assert show(TABLE, 200)[1] == "  ".join(ROWS[0])


def test_error_texts_are_cut_first_and_numbers_never() -> None:
    assert show(TABLE, 80)[1:] == [f"9.01 s  {POD}  accepted  an error text that i…"]


def test_then_names_take_more_lines() -> None:
    lines = show(TABLE, 60)
    begun = lines[1].split()[2]
    assert lines[1] == f"9.01 s  {begun}  accepted  an error te…"
    assert begun + "".join(line.strip() for line in lines[2:]) == POD
    assert all(len(line) <= 60 for line in lines)


def test_alignment_and_no_blanks_at_the_end() -> None:
    table = Table(("name", "n"), [("a", "1"), ("long name", "1000")], frozenset({1}))
    assert show(table, 80) == ["name          n", "a             1", "long name  1000"]


def test_wide_characters_count_as_they_are_shown() -> None:
    table = Table(("a", "b"), [("日本", "x"), ("abc", "y")])
    assert show(table, 80) == ["a     b", "日本  x", "abc   y"]


def test_lines_go_on_further_in() -> None:
    console = Console(file=io.StringIO(), width=30)
    section = Section("title")
    section.line("one two three four five six seven eight")
    section.line("  an advice below it that is long too")
    section.item("label", "a value that does not fit in one line")
    render(console, Cell("HEAD: with more words than fit here"), [section])
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "HEAD: with more words than",
        "  fit here",
        "",
        "title",
        "  one two three four five",
        "    six seven eight",
        "    an advice below it that",
        "      is long too",
        "  label  a value that does not",
        "         fit in one line",
    ]


def test_texts_are_no_markup_and_colours_need_a_terminal() -> None:
    table = Table(("x",), [(Cell("[bold]not bold[/bold] :smile:", "bad"),)])
    assert show(table, 80, markup=False, emoji=False) == ["x", "[bold]not bold[/bold] :smile:"]
    coloured = show(table, 80, markup=False, emoji=False, force_terminal=True, color_system="standard")
    assert "\x1b[31m" in coloured[1]
    plain = show(table, 80, force_terminal=True, color_system="standard", no_color=True)
    assert "\x1b[31m" not in plain[1]
