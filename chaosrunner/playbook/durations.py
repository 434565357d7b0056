"""Durations and percentages as people write them: `500ms`, `2s`, `1h30m`, `99.9%`."""

from __future__ import annotations

import re
from decimal import Decimal

UNITS = {"d": Decimal(86400), "h": Decimal(3600), "m": Decimal(60), "s": Decimal(1), "ms": Decimal("0.001")}
"""Seconds in each unit, largest first: the order in which they must be written."""

NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
PATTERN = rf"^(?=[0-9]){''.join(f'(?:{NUMBER}{unit})?' for unit in UNITS)}$"
"""A regular expression (also valid in JSON Schema) of all durations with units."""

_WHOLE = re.compile(PATTERN, re.ASCII)
_PART = re.compile(rf"({NUMBER})(ms|[dhms])", re.ASCII)
_PERCENT = re.compile(rf"({NUMBER})\s*%", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds of a duration with units, largest unit first, each at most once: `1h30m`, `1.5s`, `250ms`.

    Raises `ValueError` with what is wrong and how to write it.
    """
    written = text.strip()
    if written == "0":
        return 0.0
    if not _WHOLE.match(written):
        raise ValueError(f'"{text}" is no duration; write it like 500ms, 30s, 10m or 1h30m')
    return float(sum(Decimal(number) * UNITS[unit] for number, unit in _PART.findall(written)))


def format_duration(seconds: float) -> str:
    """The shortest usual spelling; `parse_duration` gives exactly `seconds` back.

    >>> format_duration(5400.0), format_duration(0.25), format_duration(2.0)
    ('1h30m', '250ms', '2s')
    """
    exact = Decimal(repr(float(seconds)))
    if 0 < exact < 1 and exact * 1000 == int(exact * 1000):
        return f"{int(exact * 1000)}ms"
    if exact != int(exact) or exact < 60:
        return f"{exact.normalize() + 0:f}s"
    parts = []
    rest = int(exact)
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_percent(text: str) -> float:
    """The share (0.999) that a percentage (`99.9%`) names. Raises `ValueError` for anything else."""
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'"{text}" is no percentage; write it like 50% or 99.9%')
    return float(Decimal(match[1]) / 100)
