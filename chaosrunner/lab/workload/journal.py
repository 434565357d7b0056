"""The log of a workload program: one JSON object a line, each stamped with wall time.

It is the lab's own record of the instants that a drill has to find out from outside.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any


class Journal:
    """Appends rows `{"at": unix seconds, "event": name, ...}` to a file; without a file it does nothing."""

    def __init__(self, path: str | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if path else None

    def write(self, event: str, **fields: Any) -> None:
        """Append one row and hand it to the operating system at once, so that a killed process loses none."""
        if self._file is not None:
            row = {"at": round(time.time(), 6), "event": event, **fields}
            os.write(self._file, json.dumps(row, separators=(",", ":")).encode() + b"\n")
