"""Who may undo a journal's entries: the run itself, then its guardian or `recover`; one at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

log = structlog.get_logger()

HELD = (BlockingIOError, PermissionError)
"""What flock(2) raises where somebody else holds the lock."""


class Busy(Exception):
    """Somebody else undoes this journal's entries at this moment."""


def take(path: Path) -> int:
    """Locks the journal until the returned file descriptor is closed, or this process has died.

    Raises Busy where another process (or another holder in this one) has it, OSError where the file cannot be opened.
    A file system without locks does not keep anybody from undoing: undos are safe side by side, only not tidy.
    """
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except HELD as error:
        os.close(file)
        raise Busy(str(path)) from error
    except OSError as error:
        log.info("no locks on this file system", path=str(path), error=error.strerror)
    return file


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Holds the lock for the length of the block. Raises as `take` does."""
    file = take(path)
    try:
        yield
    finally:
        os.close(file)
