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

CONTROLLERS = {"cpu", "cpuset", "memory", "pids"}
"""What kubelet and runc ask for with version 2; programs in the kernel replace the others."""


def is_unified() -> bool:
    """Whether the machine has one hierarchy of version 2 and no other."""
    return (ROOT / "cgroup.controllers").exists()


def make(name: str, children: Sequence[str]) -> None:
    """A group `name` with groups for its children, in each hierarchy."""
    for hierarchy in _hierarchies():
        for group in [hierarchy / name, *(hierarchy / name / child for child in children)]:
            _prepare_parent(group.parent)
            group.mkdir(exist_ok=True)
            _inherit(group)


def _prepare_parent(group: Path) -> None:
    """With version 2 a group says which controllers its children have. What is given already stays as it is."""
    if is_unified():
        given = set((group / "cgroup.subtree_control").read_text().split())
        for controller in sorted(CONTROLLERS - given):
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _inherit(group: Path) -> None:
    """With version 1 a new group has no processor and no memory, and so can give none to groups below it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not is_unified() and (group / name).exists():
            (group / name).write_text((group.parent / name).read_text())


def exist(name: str) -> bool:
    """Whether there is a group of that name."""
    return any((hierarchy / name).exists() for hierarchy in _hierarchies())


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
