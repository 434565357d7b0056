"""Runs a probe: its load, until it is told to stop, and then the rest of what is in flight."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import anyio

from chaosrunner.probes.attempt import Attempts
from chaosrunner.probes.closed_loop import closed_loop
from chaosrunner.probes.direct import to_each_replica
from chaosrunner.probes.open_loop import OpenLoad
from chaosrunner.probes.part import WHOLE, Part
from chaosrunner.probes.replicas import Replicas
from chaosrunner.probes.self_check import LoopWatch
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.probes.workers import run_workers
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Emit


async def run_probe(
    spec: ProbeSpec,
    emit: Emit,
    clock: Clock,
    stop: anyio.Event,
    *,
    drain: float | None = None,
    replicas: Replicas | None = None,
) -> None:
    """Send what the probe's load says until `stop` is set; return when the last request has ended.

    No request starts after `stop`. Those in flight are read to their end; with `drain`, what is still in flight that
    many seconds after `stop` is cancelled (outcome `cancelled`). Every request sent has its final row, also when the
    task itself is cancelled. Raises UserError for a bad URL or CA file before anything is sent.

    A probe of replicas takes those of `replicas`, as they come and go. With several workers a worker that dies is no
    error: a `Worker` row tells of it, and the others go on.
    """
    if spec.workers == 1:
        await run_part(spec, emit, clock, stop, drain=drain, replicas=replicas)
    else:
        await run_workers(spec, emit, clock, stop, drain=drain, replicas=replicas)


async def run_part(
    spec: ProbeSpec,
    emit: Emit,
    clock: Clock,
    stop: anyio.Event,
    *,
    part: Part = WHOLE,
    begin: float | None = None,
    drain: float | None = None,
    replicas: Replicas | None = None,
) -> None:
    """As `run_probe`, for a part of the probe's load, in this process.

    begin: when the load begins, on the recording's clock; now where absent.
    """
    client = spec.make_client(clock)  # what is wrong with the URL or the CA file is told now
    watch = LoopWatch(clock)
    zero = clock.now() if begin is None else begin

    async def load(spec: ProbeSpec, stop: anyio.Event, part: Part) -> None:
        mine, since = client, zero
        if spec.replica is not None:
            mine = client.towards(f"{urlsplit(spec.url).scheme}://{spec.replica.address}")
            since = max(zero, clock.now())
        attempts = Attempts(spec, emit, clock, watch)
        if spec.open is None:
            await closed_loop(spec, mine, attempts, clock, stop, part, since)
        else:
            await OpenLoad(spec, spec.open, mine, attempts, emit, clock, stop, part, zero, since).run()

    async def limit_drain(seconds: float) -> None:
        await stop.wait()
        await anyio.sleep(seconds)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        if drain is not None:
            group.start_soon(limit_drain, drain)
        with anyio.CancelScope() as scope, _frozen():
            if not spec.replicas:
                await load(spec, stop, part)
            else:
                await to_each_replica(spec, load, replicas or Replicas(), emit, clock, stop, part)
        group.cancel_scope.cancel()


@contextmanager
def _frozen() -> Iterator[None]:
    """Spare what is there already from garbage collections: a look through all of it would hold up a send by 0.1 s."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
