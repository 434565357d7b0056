"""One request outside the load, for negative checks: an over-long prompt must get HTTP 400, and nothing else."""

from __future__ import annotations

import itertools

import anyio

from chaosrunner.probes.attempt import Attempts, Expect
from chaosrunner.probes.maker import RequestMaker
from chaosrunner.probes.self_check import LoopWatch
from chaosrunner.probes.spec import Overrides, ProbeSpec
from chaosrunner.probes.tap import Tap
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Emit, Request

_numbers = itertools.count(1)


async def probe_once(
    spec: ProbeSpec, overrides: Overrides, expect: Expect, emit: Emit, clock: Clock, tap: Tap | None = None
) -> Request:
    """Send the probe's first shape with the overrides; its row has `once` set and says whether `expect` was met.

    `tap` looks on while the answer comes. Request ids are `<probe>-once-<number>`, unique in this process. Raises
    UserError as `run_probe` does.
    """
    single = spec.with_overrides(overrides)
    watch = LoopWatch(clock)
    attempts = Attempts(single, emit, clock, watch)
    number = next(_numbers)
    planned = RequestMaker(single).make(number, request_id=f"{spec.name}-once-{number}")
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        async with single.make_client(clock) as client:
            row = await attempts.send(client, planned, expect, tap)
        group.cancel_scope.cancel()
    return row
