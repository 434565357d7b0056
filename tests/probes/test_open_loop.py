"""The open loop: by the schedule whatever the service does, and what the cap forbids is told."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import anyio
import pytest

from chaosrunner.errors import UserError
from chaosrunner.probes import Limits, ProbeSpec, run_probe
from chaosrunner.probes.maker import RequestMaker
from chaosrunner.probes.spec import OpenLoop, Stage
from chaosrunner.probes.timer import Timer, _LoopTimer
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Request, RequestSent, Row
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, Script, serve
from tests.probes.helpers import Rows, spec_for
from tests.probes.test_endings import ALL, stream

pytestmark = pytest.mark.anyio


def held(seconds: float) -> Script:
    """A stream that ends after so long."""

    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await conversation.events(*ALL[:1])
        await anyio.sleep(seconds)
        await conversation.events(*ALL[1:])
        await conversation.write(LAST_CHUNK)

    return script


def load(rps: float, most: int = 64, *, seconds: float = 60, to: float | None = None) -> OpenLoop:
    return OpenLoop((Stage(rps, seconds, to),), "constant", most)


async def run_for(spec: ProbeSpec, seconds: float, rows: Rows, *, drain: float | None = None) -> float:
    """Run a probe for so long, let it finish; when it was stopped, on its clock."""
    stop, clock = anyio.Event(), Clock()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_probe(spec, rows.emit, clock, stop, drain=drain))
            await anyio.sleep(seconds)
            stop.set()
            stopped = clock.now()
    return stopped


async def test_slow_answers_do_not_slow_the_sending() -> None:
    async with serve(held(0.3)) as server:
        rows = Rows()
        stopped = await run_for(spec_for(server.url, open=load(40), limits=Limits()), 1.0, rows)
        connections = server.connections
    rows.check()
    assert [row.request for row in rows.sent] == [f"chat-{number}" for number in range(1, len(rows.sent) + 1)]
    first = rows.sent[0].scheduled
    assert first is not None
    assert -10 <= len(rows.sent) - (stopped - first) * 40 <= 2  # one at the beginning, and one while the stop spreads
    assert [row.scheduled for row in rows.sent] == pytest.approx([first + n / 40 for n in range(len(rows.sent))])
    assert all(row.scheduled is not None and row.scheduled <= row.at <= stopped + 0.05 for row in rows.sent)
    assert {request.outcome for request in rows.requests} == {Outcome.COMPLETE}
    assert {(row.request, row.scheduled) for row in rows.sent} == {
        (row.request, row.scheduled) for row in rows.requests
    }
    assert connections == len(rows.sent), "connection: new"


async def test_idle_connections_are_used_again() -> None:
    async with serve(stream(*ALL)) as server:
        rows = Rows()
        await run_for(spec_for(server.url, open=load(20), connection="reused"), 1.0, rows)
        connections = server.connections
    assert len(rows.requests) >= 15
    assert connections <= 3


async def test_what_the_cap_forbids_is_told_and_not_sent() -> None:
    async with serve(held(0.35)) as server:
        rows = Rows()
        await run_for(spec_for(server.url, open=load(20, 2), limits=Limits()), 1.0, rows)
        connections = server.connections
    refused = [row for row in rows.requests if row.outcome == Outcome.NOT_SENT]
    assert len(refused) >= 10
    assert connections == len(rows.sent) == len(rows.requests) - len(refused)
    assert not {row.request for row in refused} & {row.request for row in rows.sent}
    assert sorted(int(row.request.removeprefix("chat-")) for row in rows.requests) == list(
        range(1, len(rows.requests) + 1)
    )
    for row in refused:
        assert row.scheduled == row.sent <= row.at
        assert (row.status, row.remote, row.first_token) == (None, None, None)
        assert row.error == "2 requests in flight, the most that max_in_flight allows"


async def test_what_piled_up_while_we_stood_still_is_our_fault() -> None:
    """No word on the service: it was not even asked."""
    rows = Rows()
    async with serve(held(0.1)) as server:
        spec = spec_for(server.url, open=load(50, 20), limits=Limits())
        async with anyio.create_task_group() as group:
            group.start_soon(run_for, spec, 1.2, rows)
            await anyio.sleep(0.4)
            time.sleep(0.6)  # noqa: ASYNC251 - the loop is to stand still
    spoiled = [row for row in rows.requests if row.outcome == Outcome.PROBER_FAULT]
    assert len(spoiled) >= 8
    assert all("the runner itself was late" in (row.error or "") for row in spoiled)
    assert max(row.at - (row.scheduled or 0) for row in rows.sent) > 0.5


async def test_a_schedule_that_is_over_waits_for_the_end() -> None:
    async with serve(stream(*ALL)) as server:
        rows = Rows()
        stages = (Stage(20, 0.3), Stage(0, 1))
        stopped = await run_for(spec_for(server.url, open=OpenLoop(stages, "constant")), 0.8, rows)
    assert len(rows.requests) == 6
    assert stopped >= 0.8


async def test_a_rate_that_cannot_be_held_stops_all_the_same() -> None:
    """And lets others have the loop."""
    async with serve(held(0.1)) as server:
        rows = Rows()
        await run_for(spec_for(server.url, open=load(50_000, 3)), 0.5, rows)
    outcomes = {row.outcome for row in rows.requests}
    assert Outcome.PROBER_FAULT in outcomes or Outcome.NOT_SENT in outcomes
    assert len(rows.sent) >= 3


async def test_the_drain_limit() -> None:
    async with serve(held(20)) as server:
        rows = Rows()
        await run_for(spec_for(server.url, open=load(20), limits=Limits()), 0.3, rows, drain=0.1)
    rows.check()
    assert {request.outcome for request in rows.requests} == {Outcome.CANCELLED}


async def test_a_bad_url_is_told_before_anything_is_sent() -> None:
    rows = Rows()
    with pytest.raises(UserError, match="nowhere"):
        await run_probe(spec_for("nowhere", open=load(0.001)), rows.emit, Clock(), anyio.Event())
    assert not rows


async def test_a_bug_is_not_silent() -> None:
    def emit(row: Row) -> None:
        if isinstance(row, Request | RequestSent):
            raise LookupError("a bug")

    async with serve(stream(*ALL)) as server:
        with anyio.fail_after(5), pytest.raises(BaseExceptionGroup) as caught:
            await run_probe(spec_for(server.url, open=load(20)), emit, Clock(), anyio.Event())
    assert caught.group_contains(LookupError)


# --- the timer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "loop"])
async def test_never_early_and_hardly_late(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "loop":
        monkeypatch.setattr("chaosrunner.probes.timer._backend", _LoopTimer)
    clock = Clock()
    late = []
    with Timer(clock) as timer:
        at = clock.now()
        for _ in range(100):
            at += 0.003
            await timer.until(at)
            late.append(clock.now() - at)
        await timer.until(at - 5)
    # How late it is in the mean is a matter of the machine; that it can be on time is one of the timer.
    assert 0 <= min(late) < (0.0005 if kind == "file" else 0.002)


async def test_a_timer_leaves_nothing() -> None:
    clock = Clock()
    with Timer(clock) as timer:
        with anyio.move_on_after(0.05):
            await timer.until(clock.now() + 60)
        await timer.until(clock.now() + 0.01)
    assert not asyncio.get_running_loop()._selector.get_map().keys() - {  # type: ignore[attr-defined]
        asyncio.get_running_loop()._ssock.fileno()  # type: ignore[attr-defined]
    }


# --- the plan -------------------------------------------------------------------------------------------------


def test_number_n_is_the_same_whoever_makes_it() -> None:
    spec = replace(spec_for("http://x"), seed="s")
    alone = [RequestMaker(spec).make(number) for number in range(1, 13)]
    shared = [RequestMaker(spec) for _ in range(3)]
    assert [shared[number % 3].make(number) for number in range(1, 13)] == alone
    assert len({planned.content for planned in alone}) == 12
