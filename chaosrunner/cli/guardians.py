"""What a run's guardian did, as its recording tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from chaosrunner.journal.guardian import BY_HAND, NAME

DONE = ("undone", "already_undone", "not_applied", "changed_by_others")
"""States of entries that need nobody any more."""


def told(folder: Path) -> list[dict[str, Any]]:
    """The lines of a guardian; none where it had nothing to do."""
    found = []
    try:
        lines = (folder / NAME).read_bytes().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.DecodeError:  # it is being written, or its writer died
            continue
    return found


def in_words(folder: Path) -> str | None:
    """What the guardian did, on one line; None where it had nothing to do."""
    lines = told(folder)
    if not lines:
        return None
    reason = next((line["reason"] for line in lines if line["event"] == "terminated"), None)
    reason = reason or next((line["reason"] for line in lines if line["event"] == "took_over"), "it is at it")
    if not any(line["event"] == "took_over" for line in lines):
        return f"its guardian asked the run to end: {reason}"
    back = [f"{line['kind'].lower()}/{line['name']} {line['event']}" for line in lines if line["event"] in DONE]
    parts = [f"its guardian took over: {reason}", ", ".join(back).replace("_", " ") or "nothing to put back"]
    if not any(line["event"] == "ended" for line in lines):
        return "; ".join([*parts, "it has not ended"])
    if left := [line for line in lines if line["event"] in ("undo_failed", "left_alone")]:
        names = ", ".join(f"{line['kind'].lower()}/{line['name']}" for line in left)
        parts.append(f"left: {names} (see {BY_HAND})")
    if any(line.get("freed") for line in lines):
        parts.append("its target was freed")
    return "; ".join(parts)
