"""What was recorded of the same gateways with another client, and which outcome that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from chaosrunner.timeline.outcomes import Outcome

FILE = Path(__file__).parent.parent / "data" / "gw" / "proxies.jsonl"
NAMES = {"nginx": "nginx11", "nginx-default": "nginx_default"}
"""Gateways that the recording calls otherwise than by our name with an underscore."""


class Seen(NamedTuple):
    """How a request ended."""

    outcome: Outcome
    status: int | None
    texts: int
    """Chunks with text."""
    done: bool


def recorded(gateway: str) -> dict[str, Seen]:
    """By what was done to the stream: what a client saw through `gateway`.

    The other client only knew what HTTP says; what a stream means is added here: an error object is in the bytes of
    `error_frame` alone, and a whole answer has [DONE].
    """
    name = NAMES.get(gateway, gateway.replace("-", "_"))
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    return {row["mode"]: _seen(row) for row in rows if row["proxy"] == name}


def _seen(row: dict[str, object]) -> Seen:
    status, done = row["status"], bool(row["done"])
    assert status is None or isinstance(status, int)
    # The recording's whole answers had eight events with text, and its error objects were events too.
    texts = min(int(str(row["events"])), 5)
    return Seen(_outcome(row, status, done), status, texts, done)


def _outcome(row: dict[str, object], status: int | None, done: bool) -> Outcome:
    if status is None:
        return Outcome.NO_RESPONSE
    if status >= 300:
        return Outcome.HTTP_ERROR
    if row["error"] is not None:
        return Outcome.STALLED_STREAM if row["error"] == "ReadTimeout" else Outcome.CUT_STREAM
    if row["mode"] == "error_frame":
        return Outcome.ERROR_IN_STREAM
    return Outcome.COMPLETE if done else Outcome.UNTERMINATED_STREAM
