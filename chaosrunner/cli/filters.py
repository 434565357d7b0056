"""Rows of a recording as `timeline` shows them: which ones, and as what line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import get_close_matches

from chaosrunner.errors import UserError
from chaosrunner.reports.lines import News, describe, kind
from chaosrunner.timeline import rows
from chaosrunner.timeline.outcomes import SUCCESSES

KINDS = tuple(str(row.__struct_config__.tag) for row in rows.Row.__args__)

SAMPLES = frozenset({"clock", "skew", "prober"})
"""Kinds that are shown only where they are asked for: they come every second and with every call."""


def selected(
    recorded: Iterable[rows.Row],
    *,
    kinds: str | None = None,
    begin: float | None = None,
    end: float | None = None,
    pod: str | None = None,
    request: str | None = None,
    grep: str | None = None,
    lost: bool = False,
    only_notable: bool = False,
) -> list[rows.Row]:
    """The rows that every given filter lets through, ordered by time.

    Raises UserError where a filter makes no sense.
    """
    wanted = _kinds(kinds) if kinds else set(KINDS) - SAMPLES
    pattern = _pattern(grep)
    if begin is not None and end is not None and begin > end:
        raise UserError(f"--from {begin:g} is after --to {end:g}")
    news = News()

    def keep(row: rows.Row) -> bool:
        new = news.has(row)  # sees every row: what is news depends on what was before
        if kind(row) not in wanted or (only_notable and not new):
            return False
        if (begin is not None and row.at < begin) or (end is not None and row.at > end):
            return False
        if lost and not (isinstance(row, rows.Request) and row.outcome not in SUCCESSES):
            return False
        if request and getattr(row, "request", None) != request:
            return False
        text = describe(row)
        return not (pod and pod not in text) and not (pattern and not pattern.search(f"{kind(row)} {text}"))

    return sorted((row for row in recorded if keep(row)), key=lambda row: (row.at, row.id))


def line(row: rows.Row, anchor: float | None = None) -> str:
    """One line; with the wall time of the recording's zero, wall times are shown."""
    at = f"{row.at:9.3f}" if anchor is None else _utc(anchor + row.at)
    return f"{at}  {kind(row):<15}  {describe(row)}  #{row.id}"


def _kinds(text: str) -> set[str]:
    given = [part.strip() for part in text.split(",") if part.strip()]
    for name in given:
        if name not in KINDS:
            near = get_close_matches(name, KINDS, n=1)
            raise UserError(
                f"--kind: unknown kind {name} "
                + (f"(did you mean {near[0]}?)" if near else f"(known: {', '.join(KINDS)})")
            )
    return set(given)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise UserError(f"--grep: not a regular expression: {error}") from None


def _utc(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%H:%M:%S.%f")[:-3] + "Z"
