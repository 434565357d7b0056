"""The table of figures."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.probe.measure import Figures

NOTES = """\
first, every: error of the receive time of the first chunk of an answer, and of every chunk. CPU: the client's, of one
core. late: sends against their schedule. exact: chunks whose time is the kernel's own, not that of a later one in the
same read, and the error of these alone. KB: memory of the client a stream, beyond what it had before it began.
server: its CPU; near 100 % it is the limit. foreign: what others used of both cores together. wrong: answers that the
client did not record as complete or whose chunks it miscounted, and answers of which it has no record."""


def span(seconds: float) -> str:
    if abs(seconds) < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) < 0.9995 else f"{seconds:.3g} s"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


COLUMNS: list[tuple[str, int, str, Callable[[float], str]]] = [
    ("requests/s", 10, "requests", lambda value: f"{value:.0f}" if value >= 10 else f"{value:.2f}"),
    ("chunks/s", 8, "chunks", lambda value: f"{value:.0f}"),
    ("us/chunk", 8, "cost", lambda value: f"{value * 1e6:.0f}"),
    ("CPU", 5, "cpu", percent),
    ("first p50", 9, "first_p50", span),
    ("p99", 7, "first_p99", span),
    ("max", 7, "first_max", span),
    ("every p50", 9, "chunk_p50", span),
    ("p99", 7, "chunk_p99", span),
    ("max", 7, "chunk_max", span),
    ("late p50", 8, "late_p50", span),
    ("p99", 7, "late_p99", span),
    ("max", 7, "late_max", span),
    ("exact", 5, "exact", percent),
    ("p99", 7, "exact_p99", span),
    ("KB", 4, "memory", lambda value: f"{value / 1000:.0f}"),
    ("server", 6, "server", percent),
    ("foreign", 7, "foreign", percent),
    ("wrong", 5, "wrong", lambda value: f"{value:.0f}"),
]


def header() -> str:
    return " ".join(["  client   ", *(f"{title:>{width}}" for title, width, _, _ in COLUMNS)])


def line(client: str, figures: Figures) -> str:
    cells = []
    for _, width, name, write in COLUMNS:
        value = getattr(figures, name)
        cells.append(f"{'-' if value is None else write(value):>{width}}")
    return " ".join([f"  {client:<9}", *cells])
