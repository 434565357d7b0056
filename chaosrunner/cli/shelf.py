"""The recordings below a folder: listed, and old ones removed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from chaosrunner.cli import guardians
from chaosrunner.cli.leftovers import lives
from chaosrunner.errors import UserError
from chaosrunner.journal.journal import NAME as JOURNAL
from chaosrunner.journal.journal import open_entries
from chaosrunner.reports.document import STYLES, Cell, Table
from chaosrunner.timeline import reader


class Listed(msgspec.Struct):
    """A recording in the list of runs."""

    drill: str
    run: str
    began: str
    """UTC."""
    state: str
    """ended, running, crashed."""
    verdict: str | None
    requests: int | None
    """None while the run is not over."""
    bytes: int
    to_undo: int
    """Changes that `recover` would look at."""
    guardian: str | None
    """What the run's guardian did; null where it had nothing to do."""
    folder: str


def listed(root: Path) -> list[Listed]:
    """All that can be read, newest first; standard error names the others."""
    return [_listed(recording) for recording in reversed(list(_recordings(root)))]


def table(runs: list[Listed]) -> Table:
    rows = [
        (
            run.drill,
            run.run,
            Cell(_verdict(run), STYLES.get(run.verdict or "", "warn")),
            "–" if run.requests is None else str(run.requests),
            f"{run.bytes / 1e6:.1f} MB",
            str(run.to_undo or ""),
        )
        for run in runs
    ]
    columns = ("drill", "run (UTC)", "verdict", "requests", "size", "to undo")
    return Table(columns, rows, right=frozenset({3, 4, 5}), wrap=frozenset({0}))


def _verdict(run: Listed) -> str:
    said = (run.verdict or run.state).replace("_", " ")
    return f"{said}, put back by its guardian" if run.guardian and run.state == "crashed" and not run.to_undo else said


def prune(root: Path, *, keep: int | None, older_than: float | None, dry_run: bool) -> Iterator[Path]:
    """Removes recordings (or only tells which): beyond the `keep` newest of each drill, and begun more than
    `older_than` seconds ago. Yields their folders."""
    now = datetime.now(UTC).timestamp()
    seen: Counter[str] = Counter()
    for recording in reversed(list(_recordings(root))):
        manifest = recording.manifest
        seen[manifest.drill] += 1
        if keep is not None and seen[manifest.drill] <= keep:
            continue
        if older_than is not None and now - manifest.anchor <= older_than:
            continue
        if lives(manifest) or _to_undo(recording):
            continue
        if not dry_run:
            shutil.rmtree(recording.folder)
        yield recording.folder


def _recordings(root: Path) -> Iterator[reader.Recording]:
    for folder in reader.find(root):
        try:
            yield reader.Recording.open(folder)
        except UserError as error:
            click.echo(f"skipped: {error}", err=True)


def _to_undo(recording: reader.Recording) -> int:
    path = recording.folder / JOURNAL
    if recording.manifest.lab or not path.exists():  # what a rehearsal changed ended with its lab
        return 0
    return len(open_entries(path))


def _listed(recording: reader.Recording) -> Listed:
    manifest = recording.manifest
    state = manifest.state if manifest.state == "ended" else ("running" if lives(manifest) else "crashed")
    return Listed(
        drill=manifest.drill,
        run=manifest.run,
        began=datetime.fromtimestamp(manifest.anchor, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        state=state,
        verdict=manifest.verdict,
        requests=manifest.rows.get("request", 0) if state == "ended" else None,
        bytes=sum(path.stat().st_size for path in recording.folder.iterdir() if path.is_file()),
        to_undo=0 if state == "running" else _to_undo(recording),
        guardian=guardians.in_words(recording.folder),
        folder=str(recording.folder),
    )
