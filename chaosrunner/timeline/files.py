"""The files of a recording, and the lines of the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROWS = "rows.jsonl"
REQUESTS = "requests.parquet"
EVENTS = "events.parquet"

REQUEST = b'{"kind":"request",'
REQUEST_SENT = b'{"kind":"request_sent",'
REQUEST_HEADERS = b'{"kind":"request_headers",'
REQUEST_KINDS = (REQUEST, REQUEST_SENT, REQUEST_HEADERS)
"""How the lines of requests begin."""


def lines(path: Path) -> Iterator[bytes]:
    """Whole lines of a JSON lines file; a torn last line (the process died while writing) is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line
