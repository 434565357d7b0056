"""The lab's control groups: the one thing of it, besides files, that outlives its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")

_PATIENCE = 5.0
"""Seconds that processes which were killed may take to leave their groups."""


def is_unified() -> bool:
    """Whether the machine has one hierarchy of version 2 and no other."""
    return (ROOT / "cgroup.controllers").exists()


def make(name: str, children: Sequence[str]) -> None:
    """A group `name` with groups for its children, in each hierarchy, with all controllers that there are."""
    for hierarchy in _hierarchies():
        for group in [hierarchy / name, *(hierarchy / name / child for child in children)]:
            _prepare_parent(group.parent)
            group.mkdir(exist_ok=True)
            _inherit(group)


def _prepare_parent(group: Path) -> None:
    """With version 2 a group says which controllers its children have."""
    if is_unified():
        controllers = (group / "cgroup.controllers").read_text().split()
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in controllers))


def _inherit(group: Path) -> None:
    """With version 1 a new group has no processor and no memory, and so can give none to groups below it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not is_unified() and (group / name).exists():
            (group / name).write_text((group.parent / name).read_text())


def remove(name: str) -> list[Path]:
    """Remove group `name` and all below it. Returns what is still in use after a few seconds."""
    deadline = time.monotonic() + _PATIENCE
    while left := [group for group in _groups(name) if not _removed(group)]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def _groups(name: str) -> list[Path]:
    """All groups of the lab, the deepest first."""
    return [Path(folder) for hierarchy in _hierarchies() for folder, _, _ in os.walk(hierarchy / name, topdown=False)]


def _removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def _hierarchies() -> Iterator[Path]:
    """Where the hierarchies are mounted. With version 1 there is one a controller, some under two names."""
    if is_unified():
        yield ROOT
        return
    for folder in sorted(ROOT.iterdir()):
        if not folder.is_symlink() and (folder / "cgroup.procs").exists():
            yield folder
