"""Runs a probe: its load, until it is told to stop, and then the rest of what is in flight."""

from __future__ import annotations

import anyio

from chaosrunner.probes.attempt import Attempts
from chaosrunner.probes.closed_loop import closed_loop
from chaosrunner.probes.open_loop import open_loop
from chaosrunner.probes.self_check import LoopWatch
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Emit


async def run_probe(
    spec: ProbeSpec, emit: Emit, clock: Clock, stop: anyio.Event, *, drain: float | None = None
) -> None:
    """Send what the probe's load says until `stop` is set; return when the last request has ended.

    No request starts after `stop`. Those in flight are read to their end; with `drain`, what is still in flight that
    many seconds after `stop` is cancelled (outcome `cancelled`). Every request sent has its final row, also when the
    task itself is cancelled. Raises UserError for a bad URL or CA file before anything is sent.
    """
    watch = LoopWatch(clock)
    attempts = Attempts(spec, emit, clock, watch)

    async def limit_drain(seconds: float) -> None:
        await stop.wait()
        await anyio.sleep(seconds)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        if drain is not None:
            group.start_soon(limit_drain, drain)
        with anyio.CancelScope() as scope:
            if spec.open is None:
                await closed_loop(spec, attempts, clock, stop)
            else:
                await open_loop(spec, spec.open, attempts, emit, clock, watch, stop)
        group.cancel_scope.cancel()
