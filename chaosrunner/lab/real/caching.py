"""Ways to make what is kept in the cache: one maker at a time, and either whole or not there, whoever is killed."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_SCRATCH = "unfinished-"


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the lock file at `path`; calls `waiting` first if someone else has it. It is freed when its holder dies."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder inside of `folder` in which to make something, and to rename it from when all of it is there. What is
    not renamed goes at the end."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH) as made:
        yield Path(made)


def clear_scratch(folder: Path, *, age: float = 0.0) -> None:
    """Removes what makers left that were killed, if it is older than `age` seconds."""
    for left in folder.glob(f"{_SCRATCH}*"):
        if time.time() - left.stat().st_mtime >= age:
            shutil.rmtree(left)
