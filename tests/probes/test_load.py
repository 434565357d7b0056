"""The closed loop: nothing lost, nothing invented, nothing dropped at the end, and no spin against a dead target."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from itertools import accumulate, islice

import anyio
import psutil
import pytest

from chaosrunner.probes import Expect, Limits, Overrides, Shape, closed_loop, probe_once, run_probe, self_check
from chaosrunner.probes.part import numbers
from chaosrunner.probes.self_check import LoopWatch
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Prober, RequestSent, Row
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, Script, answer, serve
from tests.lateness import lateness
from tests.probes.helpers import QUICK, Rows, run_until, spec_for, until
from tests.probes.test_endings import ALL, FINISH, TOKEN, silence, stream

pytestmark = pytest.mark.anyio

PLANTED = {
    Outcome.COMPLETE: stream(*ALL),
    Outcome.COMPLETE_MISSING_DONE: stream(*ALL[:-1]),
    Outcome.ABORTED: stream(TOKEN, FINISH.replace("stop", "abort"), "[DONE]"),
    Outcome.ERROR_IN_STREAM: stream(TOKEN, '{"error":{"message":"m","code":500}}', "[DONE]"),
    Outcome.UNTERMINATED_STREAM: stream(TOKEN, "[DONE]"),
    Outcome.CUT_STREAM: stream(TOKEN, end=Conversation.reset),
    Outcome.NO_RESPONSE: Conversation.fin,
    Outcome.CONNECT_RESET: Conversation.reset,
}
BACKOFFS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between a worker's first failures."""


@pytest.mark.parametrize("connection", ["new", "reused"])
async def test_rows_agree_with_the_log_of_the_server_one_by_one(connection: str) -> None:
    """The prompt carries the request id, so that the server's log can be joined to the rows.

    Server and probe share an event loop, which a busy machine may hold up: limits shorter than that would blame the
    server for it. A stall that does not yet count as the prober's fault changes no outcome.
    """
    log: dict[str, Outcome] = {}
    dice = random.Random(7)

    async def script(conversation: Conversation) -> None:
        name = conversation.body.decode().partition("id=")[2].partition(";")[0]
        outcome = Outcome.COMPLETE if dice.random() < 0.8 else dice.choice(list(PLANTED))
        assert name not in log, "a request came twice"
        log[name] = outcome
        if len(log) == 200:
            time.sleep(0.7)  # noqa: ASYNC251 - the loop is to stand still
        await PLANTED[outcome](conversation)

    async with serve(script) as server:
        rows = Rows()
        shapes = (Shape(prompt="id={{ request }};"),)
        spec = spec_for(server.url, concurrency=8, shapes=shapes, connection=connection, limits=Limits())
        await run_until(spec, 400, rows)
        connections = server.connections
    assert {request.request: request.outcome for request in rows.requests} == log
    assert 400 <= len(log) < 410
    assert len(Counter(log.values())) == len(PLANTED)
    sent = [int(row.request.removeprefix("chat-")) for row in rows.sent]
    for user in range(8):
        own = list(islice(numbers(user, 8), len(sent)))
        told = [number for number in sent if number in own]
        assert told == own[: len(told)], "a user leaves no number out"
    reused = sum(request.reused is True for request in rows.requests)
    assert connections == len(log) - reused
    assert (reused > 200) == (connection == "reused")


async def test_so_many_in_flight_as_asked_for() -> None:
    in_flight = [0]
    seen: list[int] = []

    async def script(conversation: Conversation) -> None:
        in_flight[0] += 1
        seen.append(in_flight[0])
        await conversation.write(OK_SSE)
        await conversation.events(*ALL, gap=0.01)
        in_flight[0] -= 1
        await conversation.write(LAST_CHUNK)

    async with serve(script) as server:
        await run_until(spec_for(server.url, concurrency=5, limits=Limits()), 40, Rows())  # none is given up
    assert max(seen) == 5


async def test_stop_starts_nothing_and_drops_nothing() -> None:
    stop = anyio.Event()
    rows = Rows()
    clock = Clock()

    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await conversation.events(*ALL, gap=0.1)
        await conversation.write(LAST_CHUNK)

    async with serve(script) as server, anyio.create_task_group() as group:
        group.start_soon(run_probe, spec_for(server.url, concurrency=3), rows.emit, clock, stop)
        await until(lambda: len(rows.headers) == 3)
        stop.set()
        stopped = clock.now()
    rows.check()
    assert all(row.at <= stopped for row in rows.sent)
    assert [request.outcome for request in rows.requests] == [Outcome.COMPLETE] * 3
    assert all(request.at > stopped for request in rows.requests)


async def test_the_drain_limit_and_cancellation_leave_rows() -> None:
    silent = 0

    async def end(conversation: Conversation) -> None:
        nonlocal silent
        silent += 1
        await silence(conversation)

    async with serve(stream(TOKEN, end=end)) as server:
        spec = spec_for(server.url, concurrency=3, limits=Limits())
        rows = Rows()
        stop = anyio.Event()
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: run_probe(spec, rows.emit, Clock(), stop, drain=0.1))
                await until(lambda: silent == len(rows.headers) == 3)
                await anyio.sleep(0.05)  # what was written is read within a few turns of the loop
                stop.set()
        rows.check()
        assert [request.outcome for request in rows.requests] == [Outcome.CANCELLED] * 3
        assert all(request.first_token is not None for request in rows.requests), "what was seen is kept"

        rows = Rows()
        async with anyio.create_task_group() as group:
            group.start_soon(run_probe, spec, rows.emit, Clock(), anyio.Event())
            await until(lambda: len(rows.sent) == 3)
            group.cancel_scope.cancel()
        rows.check()
        assert [request.outcome for request in rows.requests] == [Outcome.CANCELLED] * 3


async def test_a_failing_target_is_not_hammered() -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.write(answer("500 Internal Server Error"))

    rows = Rows()
    async with serve(script) as server, lateness() as late:
        await run_until(spec_for(server.url), 6, rows)
    gaps = [b.sent - a.at for a, b in zip(rows.requests, rows.requests[1:], strict=False)]
    assert all(planned <= gap < planned + 0.1 + late() for gap, planned in zip(gaps, BACKOFFS, strict=True))


@asynccontextmanager
async def refusing() -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def answering(script: Script, scheme: str = "http") -> AsyncIterator[str]:
    async with serve(script) as server:
        yield server.url.replace("http", scheme)


@pytest.mark.parametrize("connection", ["new", "reused"])
@pytest.mark.parametrize(
    ("target", "outcome"),
    [
        (refusing, Outcome.CONNECT_REFUSED),
        (lambda: answering(Conversation.reset), Outcome.CONNECT_RESET),
        (lambda: answering(Conversation.fin), Outcome.NO_RESPONSE),
        (lambda: answering(silence), Outcome.NO_RESPONSE),
        (lambda: answering(silence, "https"), Outcome.CONNECT_TIMEOUT),
        (lambda: answering(stream(TOKEN, end=silence)), Outcome.STALLED_STREAM),
    ],
    ids=["refused", "reset", "closed", "silent", "silent-tls", "stalled"],
)
async def test_a_dead_target_is_asked_calmly_and_leaves_no_socket(
    target: Callable[[], AbstractAsyncContextManager[str]], outcome: Outcome, connection: str
) -> None:
    rows = Rows()
    stop = anyio.Event()
    begun = time.monotonic()
    async with target() as url:
        limits = replace(QUICK, connect=0.2, first_byte=0.2, byte_idle=0.2)
        spec = spec_for(url, concurrency=3, connection=connection, limits=limits)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_probe(spec, rows.emit, Clock(), stop, drain=0.0))
            await until(lambda: len(rows.requests) >= 3 * 3)
            passed = time.monotonic() - begun
            stop.set()
        ours = {request.connection for request in rows.requests}

        def held() -> set[str]:
            return ours & {f"{one.laddr.ip}:{one.laddr.port}" for one in psutil.Process().net_connections("tcp")}

        await until(lambda: not held())  # transports close some turns of the loop later
    rows.check()
    assert {request.outcome for request in rows.requests} - {Outcome.CANCELLED} == {outcome}
    assert len(rows.sent) <= 3 * (1 + sum(backoff <= passed for backoff in accumulate(BACKOFFS)))


@pytest.mark.slow
async def test_an_outage_may_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many failures in a row as half an hour has, without its waits."""
    monkeypatch.setattr(closed_loop, "FIRST_BACKOFF", 0.0)
    monkeypatch.setattr(closed_loop, "LAST_BACKOFF", 0.0)
    rows = Rows()
    async with refusing() as url:
        await run_until(spec_for(url), 1800, rows)
    assert {request.outcome for request in rows.requests} == {Outcome.CONNECT_REFUSED}


async def test_pause() -> None:
    rows = Rows()
    async with serve(stream(*ALL)) as server, lateness() as late:
        await run_until(spec_for(server.url, pause=0.1), 4, rows)
    gaps = [b.sent - a.at for a, b in zip(rows.requests, rows.requests[1:], strict=False)]
    assert all(0.099 <= gap < 0.15 + late() for gap in gaps)


async def test_ramp_spreads_the_first_requests() -> None:
    rows = Rows()
    async with serve(stream(*ALL)) as server, lateness() as late:
        await run_until(spec_for(server.url, concurrency=4, ramp=0.8, pause=5.0), 4, rows)
    gaps = [b.at - a.at for a, b in zip(rows.sent, rows.sent[1:], strict=False)]
    assert len(gaps) == 3
    assert all(abs(gap - 0.2) < 0.05 + late() for gap in gaps)


async def test_a_negative_check() -> None:
    async def script(conversation: Conversation) -> None:
        long = len(conversation.body) > 5000
        await (conversation.write(answer("400 Bad Request", b"too long")) if long else stream(*ALL)(conversation))

    async with serve(script) as server:
        rows = Rows()
        spec, expect = spec_for(server.url), Expect(status=400, outcomes=frozenset({"http_error"}))
        refused = await probe_once(spec, Overrides(prompt="word " * 2000), expect, rows.emit, Clock())
        accepted = await probe_once(spec, Overrides(), expect, rows.emit, Clock())
    rows.check()
    assert (refused.once, refused.expected, refused.error) == (True, True, "too long")
    assert (accepted.once, accepted.expected, accepted.outcome) == (True, False, Outcome.COMPLETE)
    assert refused.request != accepted.request
    assert all(row.once for row in rows.sent)


async def test_self_check_samples_the_loop() -> None:
    rows: list[Row] = []
    async with anyio.create_task_group() as group, lateness() as late:
        group.start_soon(lambda: self_check(rows.append, Clock(), queue=lambda: 7, interval=0.2))
        await until(lambda: rows)
        time.sleep(0.3)  # noqa: ASYNC251 - the loop is to stand still
        await until(lambda: len(rows) == 4)
        group.cancel_scope.cancel()
    lags = [row.loop_lag for row in rows if isinstance(row, Prober)]
    assert 0.2 <= max(lags) <= 0.05 + late()
    assert min(lags) < 0.2
    assert all(row.queue == 7 and row.cpu and row.open_files for row in rows if isinstance(row, Prober))


async def test_a_loop_that_stood_still_is_our_fault() -> None:
    """The answer lies in the socket while the loop is held up beyond the first-byte limit."""

    def emit(row: Row) -> None:
        rows.emit(row)
        if isinstance(row, RequestSent):
            asyncio.get_running_loop().call_later(0.2, time.sleep, 1.5)

    rows = Rows()
    async with serve(silence) as server:
        request = await probe_once(spec_for(server.url), Overrides(), Expect(), emit, Clock())
    assert request.outcome == Outcome.PROBER_FAULT
    async with serve(silence) as server:
        request = await probe_once(spec_for(server.url), Overrides(), Expect(), rows.emit, Clock())
    assert request.outcome == Outcome.NO_RESPONSE


async def test_a_stall_long_past_is_forgotten() -> None:
    watch = LoopWatch(Clock())
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        await anyio.sleep(0.15)
        time.sleep(1.2)  # noqa: ASYNC251 - the loop is to stand still
        assert watch.stalled()
        await anyio.sleep(0.15)
        assert watch.stalled()
        await anyio.sleep(1.1)
        assert not watch.stalled()
        group.cancel_scope.cancel()


async def test_what_is_there_before_the_load_is_spared_from_garbage_collections() -> None:
    """A look through all modules would hold up a send by a tenth of a second."""
    before, frozen = gc.get_freeze_count(), list[int]()

    def emit(row: Row) -> None:
        frozen.append(gc.get_freeze_count())

    async with serve(stream(*ALL)) as server:
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(run_probe, spec_for(server.url), emit, Clock(), stop)
            await until(lambda: len(frozen) > 3)
            stop.set()
    assert min(frozen) > before + 10_000
    assert gc.get_freeze_count() == before
