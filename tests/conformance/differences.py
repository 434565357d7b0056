"""Where the labs are known to differ: what the real one does, what the embedded one does, and why it stays so.

A test that meets an entry asserts each lab's own side; so an entry that no longer holds fails, as does a difference
that is not listed. Keep this short: what is cheap to mend is mended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ABSENT = "(absent)"


@dataclass(frozen=True)
class Difference:
    """One known difference.

    `where`: for an answer "SCRIPT: LABEL: PATH", where each part may be `*`; else the name by which a test asks for it.
    """

    where: str
    real: Any
    embedded: Any
    why: str


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "a cut node's Pods can be reached",
        False,
        True,
        "The embedded lab's Pods share the machine's loopback: it cuts a node from the API server only.",
    ),
)


def side(where: str, lab: str) -> Any:
    """What a lab does where the labs differ."""
    entry = next(entry for entry in DIFFERENCES if entry.where == where)
    return entry.real if lab == "real" else entry.embedded


def compare(real: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, real, other) of each place at which two JSON values differ."""
    if isinstance(real, dict) and isinstance(other, dict):
        for key in sorted(real.keys() | other.keys()):
            yield from compare(real.get(key, ABSENT), other.get(key, ABSENT), f"{path}.{key}" if path else key)
    elif isinstance(real, list) and isinstance(other, list) and len(real) == len(other):
        for index, (one, two) in enumerate(zip(real, other, strict=True)):
            yield from compare(one, two, f"{path}[{index}]")
    elif real != other:
        yield path, real, other
