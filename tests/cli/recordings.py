"""Recordings on disk, written by the real writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaosrunner.timeline.manifest import Check, Manifest, Workload
from chaosrunner.timeline.rows import Row
from chaosrunner.timeline.writer import Writer
from tests.analysis.tape import ANCHOR, Tape


def tape() -> Tape:
    """Two Pods, one lost request, one that succeeded, an eviction between them."""
    made = Tape()
    made.pod(0.1, "a", "LISTED", ready=True)
    made.pod(0.1, "b", "LISTED", ready=True)
    made.request(1.0, 2.0, pod="b")
    made.evict(5.0, "a")
    made.request(4.0, 5.2, "aborted", pod="a", status=200, error="finish_reason abort")
    made.pod(5.5, "a", "DELETED", ready=False)
    made.end(9.0)
    return made


def write(root: Path, run: str, rows: list[Row], *, drill: str = "chat", end: bool = True, **fields: Any) -> Path:
    """A recording of `drill` below `root`; with `end=False` as of a runner that died."""
    folder = root / drill / run
    settings: dict[str, Any] = {
        "anchor": ANCHOR,
        "workload": Workload(namespace="demo", selector="app=chat"),
        "checks": [Check(expression="loss_on_victim == 0")],
    }
    manifest = Manifest(run=run, drill=drill, playbook="p", **(settings | fields))
    writer = Writer(folder, manifest)
    for row in rows:
        writer.emit(row)
    if end:
        writer.close()
    return folder
