"""Over HTTP/2 the outcomes are those of the same endings over HTTP/1.1."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import h2.errors
import pytest

from chaosrunner.timeline.outcomes import Outcome
from tests.http.test_http2 import Asked, break_off, close, hang_up, serve2
from tests.probes.helpers import ask
from tests.probes.test_endings import ALL, TOKEN, body

pytestmark = pytest.mark.anyio


async def end(asked: Asked) -> None:
    await asked.data(b"", end=True)


async def goaway_then_all(asked: Asked) -> None:
    """A gateway that drains: this stream goes on to its end."""
    await asked.goaway(asked.stream)
    await asyncio.sleep(0.02)
    await asked.data(body(*ALL[1:]))
    await end(asked)


async def silence(_: Asked) -> None:
    await asyncio.sleep(5)


async def goaway_below(asked: Asked) -> None:
    await asked.goaway(0, h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)


@pytest.mark.parametrize(
    ("payloads", "ending", "outcome", "error"),
    [
        (ALL, end, Outcome.COMPLETE, None),
        (ALL[:1], goaway_then_all, Outcome.COMPLETE, None),
        (ALL[:1], end, Outcome.UNTERMINATED_STREAM, "no finish_reason"),
        (ALL[:1], break_off, Outcome.CUT_STREAM, "stream_reset: RST_STREAM INTERNAL_ERROR"),
        (ALL[:1], goaway_below, Outcome.CUT_STREAM, "stream_reset: GOAWAY ENHANCE_YOUR_CALM"),
        (ALL[:1], close, Outcome.CUT_STREAM, "missing_last_chunk: peer closed"),
        (ALL[:1], hang_up, Outcome.CUT_STREAM, "reset: ECONNRESET"),
        (ALL[:1], silence, Outcome.STALLED_STREAM, "no byte within the limit"),
        ((TOKEN, '{"error":{"message":"m"}}'), silence, Outcome.ERROR_IN_STREAM, "m"),
        (ALL, break_off, Outcome.COMPLETE_MISSING_DONE, "complete, but then stream_reset"),
        (None, break_off, Outcome.NO_RESPONSE, "RST_STREAM INTERNAL_ERROR"),
        (None, goaway_below, Outcome.NO_RESPONSE, "GOAWAY ENHANCE_YOUR_CALM"),
        (None, close, Outcome.NO_RESPONSE, "peer closed"),
        (None, hang_up, Outcome.CONNECT_RESET, "ECONNRESET"),
        (None, silence, Outcome.NO_RESPONSE, "no headers within"),
    ],
)
async def test_endings(
    payloads: tuple[str, ...] | None, ending: Callable[[Asked], Awaitable[None]], outcome: Outcome, error: str | None
) -> None:
    async def script(asked: Asked) -> None:
        if payloads is not None:
            await asked.headers_back()
            await asked.data(body(*payloads))
        await asyncio.sleep(0.02)
        await ending(asked)

    async with serve2(script) as server:
        request = await ask(server.url, http2=True)
    assert request.outcome == outcome
    assert (request.error or "").startswith(error or "")
    assert (request.error is None) == (error is None)
    if request.status is not None:
        assert request.exact
