"""What goes where: results on standard output and nothing else; progress, logs and errors on standard error."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
import msgspec
from rich.console import Console

UNBOUNDED = 240
"""Columns where nobody says how many there are: in a file, a pipe, a CI log."""


def out() -> Console:
    """Standard output. Rich colours only a terminal, and keeps NO_COLOR."""
    return _console(sys.stdout)


def err() -> Console:
    return _console(sys.stderr)


def _console(stream: Any) -> Console:
    bounded = stream.isatty() or "COLUMNS" in os.environ
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=None if bounded else UNBOUNDED)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_line(value: Any) -> None:
    """One line of JSON lines."""
    click.echo(msgspec.json.encode(value).decode())
