"""Closed-loop load: a fixed number of users, each of whom waits for an answer before asking again."""

from __future__ import annotations

import anyio

from chaosrunner.probes.attempt import Attempts
from chaosrunner.probes.maker import RequestMaker
from chaosrunner.probes.self_check import LoopWatch
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import SUCCESSES
from chaosrunner.timeline.rows import Emit

FIRST_BACKOFF = 0.05
"""Seconds that a worker waits after its first failure in a row; doubled with each further one."""
LAST_BACKOFF = 1.0
"""Seconds that a worker waits at most: a dead target is asked once a second by each worker, not in a spin."""


async def run_probe(
    spec: ProbeSpec, emit: Emit, clock: Clock, stop: anyio.Event, *, drain: float | None = None
) -> None:
    """Keep `spec.concurrency` requests in flight until `stop` is set; return when the last of them has ended.

    No request starts after `stop`. Those in flight are read to their end; with `drain`, what is still in flight that
    many seconds after `stop` is cancelled (outcome `cancelled`). Every request sent has its final row, also when the
    task itself is cancelled. Raises UserError for a bad URL or CA file before anything is sent.
    """
    watch = LoopWatch(clock)
    attempts = Attempts(spec, emit, clock, watch)
    maker = RequestMaker(spec)
    number = 0
    clients = [spec.make_client(clock) for _ in range(spec.concurrency)]

    async def work(worker: int) -> None:
        nonlocal number
        backoff = 0.0
        with anyio.move_on_after(spec.ramp * worker / spec.concurrency):
            await stop.wait()
        async with clients[worker] as client:
            while not stop.is_set():
                number += 1
                planned = maker.make(number, worker)
                request = await attempts.send(client, planned)
                backoff = 0.0 if request.outcome in SUCCESSES else min(max(FIRST_BACKOFF, 2 * backoff), LAST_BACKOFF)
                with anyio.move_on_after(max(planned.pause, backoff)):
                    await stop.wait()

    async def work_all() -> None:
        async with anyio.create_task_group() as workers:
            for worker in range(spec.concurrency):
                workers.start_soon(work, worker)

    async def limit_drain(seconds: float) -> None:
        await stop.wait()
        await anyio.sleep(seconds)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        if drain is not None:
            group.start_soon(limit_drain, drain)
        with anyio.CancelScope() as scope:
            await work_all()
        group.cancel_scope.cancel()
