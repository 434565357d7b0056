"""Writes a recording: JSON lines while the run lasts, Parquet beside them at its end.

Each row goes to the operating system as it is emitted: the death of the process loses nothing that was seen. Only the
rows about requests, of which there may be tens of thousands a second, wait `PACE` for each other, or for the next row
of another kind, and go in one `write`. (The loss of the machine may lose more; the journal, which must survive that
too, is fsynced.)
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
from collections import Counter
from pathlib import Path

import msgspec

from chaosrunner.timeline import manifest as manifests
from chaosrunner.timeline.files import ROWS
from chaosrunner.timeline.redact import Redactor
from chaosrunner.timeline.rows import Emit, Request, RequestHeaders, RequestSent, Row

PACE = 0.02
"""Seconds that rows about requests wait at most, as long as the event loop turns."""
MOST = 256
"""Rows that wait at most, however long it does not."""
_MANY = frozenset({RequestSent, RequestHeaders, Request})

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
        self._counts: Counter[type[Row]] = Counter()
        self._redactor = redactor or Redactor()
        self._masks = self._redactor.masks
        self._encoder = msgspec.json.Encoder()
        self._next = 1
        self._listeners: list[Emit] = []
        self._waiting: list[bytes] = []
        self._scheduled = False
        self._torn = False
        self._error: OSError | None = None
        """Why rows could not be written, until somebody has been told."""
        self._file = os.open(folder / ROWS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        atexit.register(self._flush)  # of a run that ends without a close
        self.save_manifest()

    def subscribe(self, listener: Emit) -> None:
        """`listener` gets every later row, with its id, once it is as it will be written."""
        self._listeners.append(listener)

    def emit(self, row: Row) -> None:
        """Writes one row and hands it on.

        Raises OSError (disk full) once when rows cannot be written: a run that cannot record must end. From then on
        rows are only handed on, so that the live analysis can say how the run ended.
        """
        row.id = self._next
        self._next += 1
        kind = type(row)
        line, told = self._encoder.encode(row), row
        if self._masks:
            line, told = self._masked(row, line)
        self._counts[kind] += 1
        waiting = self._waiting
        waiting.append(line)
        if kind not in _MANY or len(waiting) >= MOST:
            self._flush()
        elif not self._scheduled:
            self._schedule()
        for listener in self._listeners:
            listener(told)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _masked(self, row: Row, encoded: bytes) -> tuple[bytes, Row]:
        """The row as the recording will tell it, encoded and decoded: nobody sees more than that."""
        line = self._redactor.json(encoded)
        if line == encoded:
            return encoded, row
        try:
            return line, _decoder.decode(line)
        except msgspec.ValidationError:  # a "credential" that is a word of ours, like `started`: that is no secret
            return encoded, row

    def _schedule(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nothing would come back for them
            self._flush()
            return
        self._scheduled = True
        loop.call_later(PACE, self._flush_in_time)

    def _flush_in_time(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        """Write what waits. What cannot be written is remembered, for the next who emits a row to hear of."""
        if not self._waiting or self._file < 0:
            return
        self._waiting.append(b"")
        data = b"\n".join(self._waiting)
        self._waiting.clear()
        if self._torn:
            return
        self._torn = True
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._error = error
        else:
            self._torn = False

    def save_manifest(self) -> None:
        encoded = self._redactor.json(msgspec.json.encode(self.manifest))
        manifests.write(self.folder, msgspec.json.decode(encoded, type=manifests.Manifest))

    def discard(self) -> None:
        """Removes the recording."""
        os.close(self._file)
        self._file = -1
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Ends the recording: Parquet files, hashes, the final manifest. Rows can no longer be emitted.

        One whose rows could not all be written stays as the death of the process would have left it. Raises OSError.
        """
        self._flush()
        atexit.unregister(self._flush)
        os.close(self._file)
        self._file = -1
        if self._error is not None:
            raise self._error
        if self._torn:
            return
        from chaosrunner.timeline import tables  # Arrow, which nobody needs before

        tables.convert(self.folder / ROWS, self.folder)
        self.manifest.rows = dict(sorted((_kind(row), count) for row, count in self._counts.items()))
        self.manifest.state = "ended"
        self.manifest.files = {
            path.name: manifests.sha256(path)
            for path in sorted(self.folder.iterdir())
            if path.is_file() and path.name != manifests.NAME
        }
        self.save_manifest()


def _kind(row: type[Row]) -> str:
    return str(row.__struct_config__.tag)
