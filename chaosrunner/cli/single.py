"""Sends one request for the command line and shows its answer frame by frame."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec

from chaosrunner import logs
from chaosrunner.cli.asked import asked
from chaosrunner.cli.frames import Frame, Frames
from chaosrunner.cli.output import err, out, print_json
from chaosrunner.errors import UserError
from chaosrunner.http import Headers, TransportError
from chaosrunner.probes import Expect, Overrides, ProbeSpec, probe_once
from chaosrunner.reports.single import verdict
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import SUCCESSES

INTERRUPTED = 4

ABOUT_LOAD = {
    "rps": "--rps", "stages": "--stage", "concurrency": "--concurrency", "ramp": "--ramp", "pause": "--pause",
    "arrivals": "--arrivals", "max_in_flight": "--max-in-flight", "workers": "--workers", "duration": "--duration",
    "requests": "--requests", "drain": "--drain", "checks": "--check", "slo": "--slo", "record": "--record",
    "metrics": "--metrics", "no_chunks": "--no-chunks",
}  # fmt: skip
"""Flags that say nothing about a single request."""


class Answer(msgspec.Struct, kw_only=True):
    """A single request as JSON."""

    request: rows.Request
    headers: dict[str, str]
    frames: list[Frame]


def run_once(raw: bool, output: str, **given: Any) -> int:
    for name, option in ABOUT_LOAD.items():
        if given[name]:
            raise UserError(f"{option} is about many requests, and --once sends one")
    if raw and output == "json":
        raise UserError("--raw writes the body as it is: leave -o json out")
    found = asked(given)
    logs.hide(found.hidden)
    clock = Clock()
    shown = _Raw() if raw else Frames(None if output == "json" else out(), found.spec, clock)
    row, interrupted = anyio.run(_send, found.spec, clock, shown)
    shown.finish(row)
    if isinstance(shown, Frames) and output == "json":
        print_json(Answer(request=row, headers=shown.fields, frames=shown.frames))
    return INTERRUPTED if interrupted else int(row.outcome not in SUCCESSES)


async def _send(spec: ProbeSpec, clock: Clock, shown: Frames | _Raw) -> tuple[rows.Request, bool]:
    """The request's row, and whether a signal ended it."""
    ended: list[rows.Request] = []
    interrupted = False

    def emit(row: rows.Row) -> None:
        match row:
            case rows.RequestSent():
                shown.began(row)
            case rows.Request():
                ended.append(row)

    async def obey(signals: AsyncIterator[signal.Signals]) -> None:
        nonlocal interrupted
        async for _ in signals:
            interrupted = True
            group.cancel_scope.cancel()

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:
            group.start_soon(obey, signals)
            await probe_once(spec, Overrides(), Expect(), emit, clock, shown)
            group.cancel_scope.cancel()
    return ended[0], interrupted


class _Raw:
    """Writes the body to standard output, byte for byte as it comes; the verdict to standard error."""

    def began(self, row: rows.RequestSent) -> None:
        """Nothing is told before the body."""

    def headers(self, at: float, status: int, headers: Headers) -> None:
        """Nothing is told before the body."""

    def data(self, at: float, data: bytes, exact: bool) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def ended(self, at: float, properly: bool | None, error: TransportError | None) -> None:
        """The verdict tells."""

    def finish(self, row: rows.Request) -> None:
        console = err()
        for line in verdict(row)[:2]:
            console.print(line, soft_wrap=True)
