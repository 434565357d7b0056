"""Reads a recording: finished, crashed, or still being written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from chaosrunner.errors import UserError
from chaosrunner.timeline import manifest as manifests
from chaosrunner.timeline.files import EVENTS, REQUEST_KINDS, REQUESTS, ROWS, lines
from chaosrunner.timeline.rows import FORMAT, Row

if TYPE_CHECKING:
    import pyarrow as pa

# Arrow is imported where tables are read: the list of runs needs manifests only.

_decoder: msgspec.json.Decoder[Row] = msgspec.json.Decoder(Row)


class Recording:
    """A folder that a run wrote."""

    def __init__(self, folder: Path, manifest: manifests.Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(cls, folder: Path) -> Recording:
        """Opens the recording in `folder`.

        Raises UserError if it is none, or of a newer format.
        """
        try:
            manifest = manifests.read(folder)
        except FileNotFoundError:
            raise UserError(f"{folder}: no recording here (no {manifests.NAME})") from None
        except msgspec.MsgspecError as error:
            raise UserError(f"{folder / manifests.NAME}: not a manifest: {error}") from None
        if manifest.format > FORMAT:
            raise UserError(
                f"{folder}: format {manifest.format}; this version reads up to {FORMAT}. Upgrade chaosrunner"
            )
        if not (folder / ROWS).exists() and not (folder / EVENTS).exists():
            raise UserError(f"{folder}: neither {ROWS} nor {EVENTS}: the rows are missing")
        return cls(folder, manifest)

    @property
    def crashed(self) -> bool:
        """Whether the run never wrote its end (it died, or is still running)."""
        return self.manifest.state != "ended"

    @property
    def _columnar(self) -> bool:
        return (self.folder / REQUESTS).exists() and (self.folder / EVENTS).exists()

    def rows(self) -> Iterator[Row]:
        """All rows in the order of their ids, as the run's own folds saw them."""
        if not (self.folder / ROWS).exists():
            raise UserError(f"{self.folder}: {ROWS} is missing; only figures that need no single rows can be made")
        yield from self._decoded()

    def _decoded(self, skip: tuple[bytes, ...] = ()) -> Iterator[Row]:
        """The rows of the JSON lines, but for lines that begin as `skip` says."""
        for number, line in enumerate(lines(self.folder / ROWS), start=1):
            if skip and line.startswith(skip):
                continue
            try:
                yield _decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise UserError(f"{self.folder / ROWS}:{number}: not a row: {error}") from None

    def events(self) -> Iterator[Row]:
        """All rows but those of requests, in the order of their ids."""
        if self._columnar:
            import pyarrow.parquet as pq

            file = pq.ParquetFile(self.folder / EVENTS)
            for batch in file.iter_batches(columns=["row"]):
                for row in batch.column(0):
                    yield _decoder.decode(row.as_py())
        else:
            yield from self._decoded(skip=REQUEST_KINDS)

    def requests(self, columns: list[str] | None = None) -> pa.Table:
        """Requests as a table (`tables.REQUEST_SCHEMA`), in the order of their ids.

        In a crashed recording the requests without an end are there too, as `unfinished`.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        from chaosrunner.timeline import tables

        if self._columnar:
            return pq.ParquetFile(self.folder / REQUESTS).read(columns=columns)
        path = self.folder / ROWS
        schema = tables.REQUEST_SCHEMA
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        try:
            return pa.concat_tables([schema.empty_table(), *tables.request_batches(path, schema, crashed=self.crashed)])
        except (msgspec.MsgspecError, pa.ArrowInvalid) as error:
            raise UserError(f"{path}: not a row: {error}") from None


def find(root: Path) -> list[Path]:
    """Folders of recordings below `root` (`<drill>/<run id>`), oldest first."""
    return sorted((path.parent for path in root.glob(f"*/*/{manifests.NAME}")), key=lambda path: path.name)


def resolve(root: Path, name: str) -> Recording:
    """The recording that a user means: a folder, `latest`, a drill's name (its latest), or a run id.

    Raises UserError if there is none.
    """
    folder = Path(name)
    if folder.is_dir() and (folder / manifests.NAME).exists():
        return Recording.open(folder)
    known = find(root)
    matching = [
        path
        for path in known
        if name == "latest" or name in (path.name, path.parent.name, f"{path.parent.name}/{path.name}")
    ]
    if not matching:
        raise UserError(
            f"{name}: neither a recording's folder, nor a run id or a drill below {root}"
            + ("" if known else "; there are no recordings yet")
        )
    return Recording.open(matching[-1])
