"""Writes a recording: JSON lines while the run lasts, Parquet beside them at its end.

Each row goes to the operating system as it is emitted, in one `write`: the death of the process loses nothing
that was seen. (The loss of the machine may; the journal, which must survive that too, is fsynced.)
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import msgspec

from chaosrunner.timeline import manifest as manifests
from chaosrunner.timeline.files import ROWS
from chaosrunner.timeline.redact import Redactor
from chaosrunner.timeline.rows import Emit, Row

_decoder: msgspec.json.Decoder[Row] = msgspec.json.Decoder(Row)


class Writer:
    """Gives rows their ids, writes them, and hands them on to the live analysis, in this order."""

    def __init__(self, folder: Path, manifest: manifests.Manifest, redactor: Redactor | None = None) -> None:
        """Creates `folder` (which must not exist yet) and writes the first manifest.

        Raises OSError if it cannot.
        """
        folder.mkdir(parents=True)
        self.folder = folder
        self.manifest = manifest
        self.counts: Counter[str] = Counter()
        self._redactor = redactor or Redactor()
        self._encoder = msgspec.json.Encoder()
        self._next = 1
        self._listeners: list[Emit] = []
        self._torn = False
        self._file = os.open(folder / ROWS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.save_manifest()

    def subscribe(self, listener: Emit) -> None:
        """`listener` gets every later row, with its id, after it was written."""
        self._listeners.append(listener)

    def emit(self, row: Row) -> None:
        """Writes one row and hands it on.

        Raises OSError (disk full) for the first row that cannot be written: a run that cannot record must end. From
        then on rows are only handed on, so that the live analysis can say how the run ended.
        """
        row.id = self._next
        self._next += 1
        encoded = self._encoder.encode(row)
        line, told = self._masked(row, encoded)
        try:
            if not self._torn:
                self._write(line + b"\n")
                self.counts[_kind(row)] += 1
        finally:
            for listener in self._listeners:
                listener(told)

    def _masked(self, row: Row, encoded: bytes) -> tuple[bytes, Row]:
        """The row as the recording will tell it, encoded and decoded: nobody sees more than that."""
        line = self._redactor.json(encoded)
        if line == encoded:
            return encoded, row
        try:
            return line, _decoder.decode(line)
        except msgspec.ValidationError:  # a "credential" that is a word of ours, like `started`: that is no secret
            return encoded, row

    def _write(self, line: bytes) -> None:
        self._torn = True
        while line:
            line = line[os.write(self._file, line) :]
        self._torn = False

    def save_manifest(self) -> None:
        encoded = self._redactor.json(msgspec.json.encode(self.manifest))
        manifests.write(self.folder, msgspec.json.decode(encoded, type=manifests.Manifest))

    def close(self) -> None:
        """Ends the recording: Parquet files, hashes, the final manifest. Rows can no longer be emitted.

        One whose rows could not all be written stays as the death of the process would have left it. Raises OSError.
        """
        os.close(self._file)
        self._file = -1
        if self._torn:
            return
        from chaosrunner.timeline import tables  # Arrow, which nobody needs before

        tables.convert(self.folder / ROWS, self.folder)
        self.manifest.rows = dict(sorted(self.counts.items()))
        self.manifest.state = "ended"
        self.manifest.files = {
            path.name: manifests.sha256(path)
            for path in sorted(self.folder.iterdir())
            if path.is_file() and path.name != manifests.NAME
        }
        self.save_manifest()


def _kind(row: Row) -> str:
    return str(row.__struct_config__.tag)
