"""Certificates and keys, which TLS libraries take as files only, in memory: a killed run leaves none on disk."""

from __future__ import annotations

import atexit
import base64
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

FIELDS = ("certificate-authority", "client-certificate", "client-key")
"""Of a kubeconfig; with `-data` they hold what is in the file (base64)."""


@cache
def file_of(content: bytes) -> str:
    """Path of a file with this content, for this process only; on Linux in memory (memfd_create(2)), else in a
    temporary folder until the process ends."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        with os.fdopen(os.dup(descriptor := os.memfd_create("chaosrunner")), "wb") as file:
            file.write(content)
        return f"/proc/self/fd/{descriptor}"
    handle, path = tempfile.mkstemp(prefix="chaosrunner-")
    atexit.register(Path(path).unlink, missing_ok=True)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return path


def without_data(section: dict[str, Any]) -> dict[str, Any]:
    """A cluster or user of a kubeconfig, with files in place of data; data prevails over a file, as kubectl has it.

    Raises ValueError for data that is no base64.
    """
    found = dict(section)
    for name in FIELDS:
        if data := found.pop(f"{name}-data", None):
            found[name] = file_of(base64.b64decode("".join(str(data).split()), validate=True))
    return found
