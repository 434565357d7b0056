"""Who a workload on a standing lab belongs to: a file each, which its owner holds locked for as long as it lives.

A file without a lock is of an owner that was killed before it removed its workload.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_DRAFT = ".new"


class Owned(NamedTuple):
    """The two namespaces of a workload."""

    namespace: str
    system_namespace: str


@contextmanager
def owning(folder: Path, workload: Owned, *, left_by: tuple[type[Exception], ...]) -> Iterator[None]:
    """The workload is this process's for the length of the block, which removes it.

    `left_by`: what the block raises where some of it may be left; then it counts as abandoned.
    """
    folder.mkdir(exist_ok=True)
    draft = folder / f"{workload.namespace}{_DRAFT}"
    with draft.open("w") as lock:
        # It has its name only when it is locked: nobody is to take it for a dead one's in between.
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(workload.system_namespace)
        lock.flush()
        note = draft.rename(folder / workload.namespace)
        try:
            yield
        except left_by:
            raise
        except BaseException:
            note.unlink()
            raise
        note.unlink()


def abandoned(folder: Path) -> list[str]:
    """The namespaces of workloads whose owners are dead, and which nobody is clearing."""
    found = []
    for note in _notes(folder):
        with _free(note, fcntl.LOCK_SH) as is_free:
            if is_free:
                found.append(note.name)
    return found


def inherit(folder: Path) -> Iterator[Owned]:
    """Workloads whose owners are dead, each this process's until the next is asked for; it is no more on the list once
    the caller has cleared it, and stays there where the caller's clearing raises."""
    for note in _notes(folder):
        with _free(note, fcntl.LOCK_EX) as is_free:
            if is_free:
                yield Owned(note.name, note.read_text())
                note.unlink()


def _notes(folder: Path) -> list[Path]:
    return sorted(note for note in folder.glob("*") if note.suffix != _DRAFT)


@contextmanager
def _free(note: Path, how: int) -> Iterator[bool]:
    """Whether nobody holds the file; held by this process for the length of the block then."""
    try:
        lock = note.open()
    except FileNotFoundError:  # its owner has just ended properly
        yield False
        return
    with lock:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield note.exists()
