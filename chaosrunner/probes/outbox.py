"""Rows on their way from a worker to its parent."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import NoReturn

from chaosrunner.probes import wire
from chaosrunner.timeline.rows import Row

PACE = 0.005
"""Least seconds between two batches of rows: a killed worker has told all but its last milliseconds. To hand over each
row as it comes would cost ten times as much, as every time the parent is woken."""
MOST = 8 << 20
"""Bytes that may wait for a parent that is slow to read. Beyond them the worker stands still until it has: nothing is
lost, the memory is bounded, and the stall is measured as what it is, lag of the event loop."""


class Outbox:
    """Sends rows over a socket, in batches. Calls `orphaned` where the parent is gone."""

    def __init__(self, channel: socket.socket, orphaned: Callable[[], NoReturn]) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._orphaned = orphaned
        self._loop = asyncio.get_running_loop()
        self._rows: list[Row] = []
        self._data = bytearray()
        self._rows_in_data = 0
        self._flushed = 0.0
        self._scheduled = False
        self._blocked = False

    @property
    def waiting(self) -> int:
        """Rows that are not with the kernel yet. (Those of a batch that has begun to go count until it has gone.)"""
        return len(self._rows) + self._rows_in_data

    def emit(self, row: Row) -> None:
        self._rows.append(row)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_at(self._flushed + PACE, self._flush)

    def tell(self, message: wire.Report) -> None:
        """A message, after the rows so far."""
        self._pack()
        self._data += wire.framed(message)
        self._write()

    def finish(self) -> None:
        """Wait until everything has been handed over."""
        self._pack()
        self._push(0)

    def _flush(self) -> None:
        self._scheduled = False
        self._flushed = self._loop.time()
        self._pack()
        self._write()

    def _pack(self) -> None:
        if self._rows:
            self._data += wire.framed(wire.Rows(self._rows))
            self._rows_in_data += len(self._rows)
            self._rows = []

    def _write(self) -> None:
        """Hand over what the kernel takes now, and come back for the rest."""
        if len(self._data) > MOST:
            self._push(MOST // 2)
        try:
            self._send()
        except BlockingIOError:
            self._blocked = True
            self._loop.add_writer(self._channel, self._write)
        else:
            if self._blocked:
                self._blocked = False
                self._loop.remove_writer(self._channel)

    def _push(self, rest: int) -> None:
        """Stand still until no more than `rest` bytes wait."""
        while len(self._data) > rest:
            try:
                self._send()
            except BlockingIOError:
                select.select([], [self._channel], [])

    def _send(self) -> None:
        while self._data:
            try:
                sent = self._channel.send(self._data)
            except ConnectionError:
                self._orphaned()
            del self._data[:sent]
        self._rows_in_data = 0
