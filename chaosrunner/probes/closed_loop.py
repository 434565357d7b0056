"""Closed-loop load: a fixed number of users, each of whom waits for an answer before asking again."""

from __future__ import annotations

import anyio

from chaosrunner.http import StreamClient
from chaosrunner.probes.attempt import Attempts
from chaosrunner.probes.maker import RequestMaker
from chaosrunner.probes.part import Part, numbers
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import SUCCESSES, Outcome

FIRST_BACKOFF = 0.05
"""Seconds that a user waits after the first failure in a row; doubled with each further one."""
LAST_BACKOFF = 1.0
"""Seconds that a user waits at most: a dead target is asked once a second by each user, not in a spin."""

GOOD = SUCCESSES | {Outcome.CANCELLED}
"""What no user waits after."""


async def closed_loop(
    spec: ProbeSpec, client: StreamClient, attempts: Attempts, clock: Clock, stop: anyio.Event, part: Part, begin: float
) -> None:
    """Keep this part's users busy until `stop` is set; return when the last of their requests has ended.

    begin: when the first user begins, on the recording's clock; the others follow over `spec.ramp`.
    """
    maker = RequestMaker(spec)

    async def ask(user: int) -> None:
        backoff = 0.0
        with anyio.move_on_after(begin + spec.ramp * user / spec.concurrency - clock.now()):
            await stop.wait()
        async with client.lane() as lane:
            for number in numbers(user, spec.concurrency):
                if stop.is_set():
                    return
                planned = maker.make(number, user)
                request = await attempts.send(lane, planned)
                backoff = 0.0 if request.outcome in GOOD else min(max(FIRST_BACKOFF, 2 * backoff), LAST_BACKOFF)
                if (pause := max(planned.pause, backoff)) > 0:  # a scope that is over at once costs as much as a send
                    with anyio.move_on_after(pause):
                        await stop.wait()

    async with client, anyio.create_task_group() as users:
        for user in part.users(spec.concurrency):
            users.start_soon(ask, user)
