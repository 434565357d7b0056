"""Numbers as people read them. An unknown value is a dash, never a zero."""

from __future__ import annotations

from collections.abc import Iterable

from chaosrunner.analysis.facts import Estimate, Milestone, Span

UNKNOWN = "–"


def seconds(value: float | None) -> str:
    """A span: milliseconds below one second, else seconds with the digits that matter."""
    if value is None:
        return UNKNOWN
    if abs(value) < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if abs(value) < 100 else f"{value:.0f} s"


def instant(value: float | None, zero: float = 0.0) -> str:
    """An instant of the recording, in seconds after `zero`, signed where `zero` is an event."""
    if value is None:
        return UNKNOWN
    return f"{value - zero:+.2f} s" if zero else f"{value:.2f} s"


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
    return f"between {value.low:.2f} and {instant(value.high)}"


def milestone(value: Milestone, zero: float = 0.0) -> str:
    """An instant relative to `zero`; the window alone where it fell into a watch gap."""
    if value.at is not None:
        return instant(value.at, zero)
    if value.low is not None and value.high is not None:
        return f"{instant(value.low, zero)} to {instant(value.high, zero)}"
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


def plural(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")
