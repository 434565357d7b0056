"""What runs left behind whose process is gone, as the recordings below a folder tell."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import msgspec
import structlog

from chaosrunner.journal import process
from chaosrunner.journal.journal import Entry, find_journals, open_entries
from chaosrunner.timeline import manifest as manifests
from chaosrunner.timeline.manifest import Manifest

log = structlog.get_logger()

WORDS = {"cordon": "cordoned", "uncordon": "uncordoned"}
"""How a fault leaves its target."""


def journals(root: Path) -> list[Path]:
    """Journals below `root`, oldest run first, but for those of rehearsals: what they changed ended with their lab, or
    is put back by the next rehearsal on it, by what the nodes themselves tell."""
    return [path for path in find_journals(root) if not _rehearsed(path.parent)]


def left_changed(root: Path) -> list[Entry]:
    """Changes still to be undone of runs of this host that are dead, newest first."""
    found: list[Entry] = []
    for path in journals(root):
        try:
            found += [entry for entry in open_entries(path) if process.liveness(entry.owner) == "dead"]
        except OSError as error:
            log.warning("a journal cannot be read", path=str(path), error=error.strerror)
    return sorted(found, key=lambda entry: entry.wall, reverse=True)


def tell(entries: list[Entry]) -> str:
    """Which runs died, and what they left, on one line."""
    told = []
    for (run, drill), mine in groupby(entries, lambda entry: (entry.run, entry.drill)):
        left = ", ".join(
            f"{entry.target.kind.lower()}/{entry.target.name} {WORDS.get(entry.fault, f'changed by {entry.fault}')}"
            for entry in mine
        )
        told.append(f"run {run} of drill {drill} died and left {left}")
    return "; ".join(told)


def crashed(root: Path) -> Iterator[tuple[Path, Manifest]]:
    """Recordings of runs of this host that died on a cluster, with their folders."""
    for path in sorted(root.glob(f"*/*/{manifests.NAME}")):
        manifest = _manifest(path.parent)
        if manifest and manifest.lab is None and manifest.state != "ended" and _liveness(manifest) == "dead":
            yield path.parent, manifest


def lives(manifest: Manifest) -> bool:
    """Whether the run without an end may still go on: on another host nobody here can tell."""
    return manifest.state != "ended" and _liveness(manifest) in ("alive", "unknown")


def _liveness(manifest: Manifest) -> str | None:
    """None where the manifest names no process."""
    host = manifest.host
    if host is None:
        return None
    return process.liveness(process.Process(pid=host.pid, started=host.started, host=host.hostname))


def _rehearsed(folder: Path) -> bool:
    manifest = _manifest(folder)
    return manifest is not None and manifest.lab is not None


def _manifest(folder: Path) -> Manifest | None:
    """None where it cannot be read: a journal beside it counts all the same."""
    try:
        return manifests.read(folder)
    except (OSError, msgspec.MsgspecError):
        return None
