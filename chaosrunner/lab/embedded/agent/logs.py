"""Container logs as a container runtime keeps them: one file a container instance, each line with its time."""

from __future__ import annotations

import calendar
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import anyio


@dataclass(frozen=True)
class LogOptions:
    """What `kubectl logs` asks for. `tail`: last lines only; `since`: unix seconds; `limit`: most bytes."""

    follow: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: float | None = None
    limit: int | None = None


class ContainerLog:
    """The log of one container instance. A line on disk is `RFC3339 stdout F TEXT`, the format of the CRI."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._partial = b""
        self._grown = anyio.Event()
        self.ended = False

    def write(self, chunk: bytes) -> None:
        """Append output; b"" ends the log."""
        stamp = _stamp().encode()
        lines = (self._partial + chunk).split(b"\n")
        self._partial = lines.pop()
        if not chunk and self._partial:
            lines.append(self._partial)
            self._partial = b""
        if lines:
            self._file.write(b"".join(stamp + b" stdout F " + line + b"\n" for line in lines))
        if not chunk:
            self._file.close()
            self.ended = True
        grown, self._grown = self._grown, anyio.Event()
        grown.set()

    async def read(self, options: LogOptions) -> AsyncIterator[bytes]:
        """The lines that are asked for, and with `follow` those that come until the container ends."""
        left = options.limit if options.limit is not None else sys.maxsize
        with self._path.open("rb") as file:
            lines: Iterable[bytes] = (line for line in file if options.since is None or _time_of(line) >= options.since)
            for line in lines if options.tail is None else deque(lines, maxlen=options.tail):
                text = _shown(line, options)[:left]
                left -= len(text)
                yield text
                if not left:
                    return
            while options.follow:
                grown = self._grown
                fresh = file.read()
                for line in fresh.splitlines(keepends=True):
                    yield _shown(line, options)
                if not fresh:
                    if self.ended:
                        return
                    await grown.wait()


def _shown(line: bytes, options: LogOptions) -> bytes:
    stamp, _, _, text = line.split(b" ", 3)
    return stamp + b" " + text if options.timestamps else text


def _stamp() -> str:
    now = time.time_ns()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now % 10**9:09d}Z"


def _time_of(line: bytes) -> float:
    stamp = line.split(b" ", 1)[0].decode()
    return calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")) + float(f"0.{stamp[20:-1]}")
