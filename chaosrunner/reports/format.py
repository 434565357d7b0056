"""Numbers as people read them. An unknown value is a dash, never a zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands that only count files need no analysis
    from chaosrunner.analysis.facts import Estimate, Milestone, Span

UNKNOWN = "–"


def seconds(value: float | None) -> str:
    """A span: milliseconds below one second, else seconds with the digits that matter."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0 s"
    if abs(value) < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if abs(value) < 100 else f"{value:.0f} s"


def fine(value: float | None) -> str:
    """A span to three significant digits, in the unit that fits: `187 µs`, `20.3 ms`, `1.24 s`."""
    if value is None:
        return UNKNOWN
    value = float(f"{value:.3g}")  # before the unit is chosen: 999.9 ms is a second
    scaled, unit = next(
        ((value * factor, unit) for factor, unit in ((1, "s"), (1e3, "ms")) if abs(value * factor) >= 1),
        (value * 1e6, "µs"),
    )
    digits = 0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2
    return f"{scaled:.{digits}f} {unit}" if value else "0 s"


def instant(value: float | None) -> str:
    """An instant, in seconds of the recording."""
    return UNKNOWN if value is None else f"{value:.2f} s"


def offset(value: float | None) -> str:
    """Seconds before (-) or after (+) something."""
    if value is None:
        return UNKNOWN
    text = f"{value:+.2f} s"
    return "0.00 s" if float(text[:-2]) == 0 else text


def number(value: float) -> str:
    """A count, or a figure without a unit."""
    return f"{value:.6g}"


def span(value: Span) -> str:
    """A span with its uncertainty where that is worth knowing."""
    if value.value is None:
        if value.low is not None and value.high is not None:
            return f"{seconds(value.low)} to {seconds(value.high)}"
        return UNKNOWN
    return seconds(value.value)


def window(value: Milestone) -> str:
    """The stretch in which it happened, where its owner's clock ticks in seconds."""
    if value.low is None or value.high is None:
        return UNKNOWN
    return f"between {instant(value.low)} and {instant(value.high)}"


def milestone(value: Milestone, zero: float | None = None) -> str:
    """An instant, as an offset where `zero` is given; the window alone where it fell into a watch gap."""

    def at(instant_: float) -> str:
        return instant(instant_) if zero is None else offset(instant_ - zero)

    if value.at is not None:
        return at(value.at)
    if value.low is not None and value.high is not None:
        return f"{at(value.low)} to {at(value.high)}"
    return UNKNOWN


def share(value: float | None) -> str:
    """A share as percent, with enough digits that one loss in a thousand shows and 100 % means all."""
    if value is None:
        return UNKNOWN
    text = f"{value * 100:.2f}".rstrip("0").rstrip(".")
    if value < 1 and text == "100":
        text = ">99.99"
    if value > 0 and text == "0":
        text = "<0.01"
    return f"{text} %"


def estimate(value: Estimate) -> str:
    """A share with its count and its 95 % interval."""
    if value.value is None:
        return UNKNOWN
    return f"{share(value.value)} ({value.successes} of {value.total}; 95 %: {share(value.low)} to {share(value.high)})"


def row_ids(ids: Iterable[int], most: int = 4) -> str:
    """Row ids of the recording, as `#12 #13 …`."""
    listed = list(ids)
    return " ".join(f"#{number}" for number in listed[:most]) + (" …" if len(listed) > most else "")


def first_row(ids: Sequence[int]) -> str:
    """The first of them; empty where there is none."""
    return f"#{ids[0]}" if ids else ""


def harmless(text: str) -> str:
    """What somebody else said, without power over a terminal."""
    return "".join(char if char.isprintable() else "⏎" if char == "\n" else "·" for char in text)


def one_line(text: str | None, most: int = 200) -> str:
    """A text of somebody else (an error, a message) on one line, of at most this many characters."""
    flat = harmless(" ".join((text or "").split()))
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")
