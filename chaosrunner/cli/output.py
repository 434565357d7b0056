"""What goes where: results on standard output and nothing else; progress, logs and errors on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

import click
import msgspec
from rich.console import Console

from chaosrunner.errors import UserError
from chaosrunner.reports.sections import Table
from chaosrunner.reports.terminal import print_table

Format = Literal["text", "json"]

BUG = 70
"""Exit code of a bug in chaosrunner (EX_SOFTWARE of sysexits.h)."""


def out() -> Console:
    """Standard output. Rich colours only a terminal and keeps NO_COLOR."""
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=_width(sys.stdout.isatty()))


def err() -> Console:
    return Console(file=sys.stderr, highlight=False, markup=False, emoji=False)


def _width(terminal: bool) -> int | None:
    """Off a terminal lines are as long as they are: whoever reads the file may wrap them."""
    return None if terminal else 240


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_line(value: Any) -> None:
    """One line of JSON lines."""
    click.echo(msgspec.json.encode(value).decode())


def show_table(table: Table) -> None:
    print_table(out(), table)


def output_option(*formats: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`-o`, as kubectl has it; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        "output",
        type=click.Choice(formats or ("text", "json")),
        default=(formats or ("text",))[0],
        show_default=True,
        help="Format of standard output.",
    )


def fail(error: UserError) -> int:
    """Shows an error that the user can mend; returns its exit code."""
    click.echo(f"error: {error}", err=True)
    return error.exit_code
