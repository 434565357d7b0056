"""Closed-loop load: a fixed number of users, each of whom waits for an answer before asking again."""

from __future__ import annotations

import anyio

from chaosrunner.probes.attempt import Attempts
from chaosrunner.probes.maker import RequestMaker
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import SUCCESSES, Outcome

FIRST_BACKOFF = 0.05
"""Seconds that a worker waits after its first failure in a row; doubled with each further one."""
LAST_BACKOFF = 1.0
"""Seconds that a worker waits at most: a dead target is asked once a second by each worker, not in a spin."""

GOOD = SUCCESSES | {Outcome.CANCELLED}
"""What no worker waits after."""


async def closed_loop(spec: ProbeSpec, attempts: Attempts, clock: Clock, stop: anyio.Event) -> None:
    """Keep `spec.concurrency` requests in flight until `stop` is set; return when the last of them has ended."""
    maker = RequestMaker(spec)
    number = 0
    async def work(worker: int) -> None:
        nonlocal number
        backoff = 0.0
        with anyio.move_on_after(spec.ramp * worker / spec.concurrency):
            await stop.wait()
        async with client.lane() as lane:
            while not stop.is_set():
                number += 1
                planned = maker.make(number, worker)
                request = await attempts.send(lane, planned)
                backoff = 0.0 if request.outcome in GOOD else min(max(FIRST_BACKOFF, 2 * backoff), LAST_BACKOFF)
                with anyio.move_on_after(max(planned.pause, backoff)):
                    await stop.wait()

    async with spec.make_client(clock) as client, anyio.create_task_group() as workers:
        for worker in range(spec.concurrency):
            workers.start_soon(work, worker)
