"""Kept connections and new ones: what tells a stale connection from stale routing is in the rows.

Case: kubernetes/kubernetes#128479 (also #123116, #127335, envoyproxy/gateway#4205). An endpoint is removed at once, yet
requests still reach the old Pod over connections that were open already; people lengthen preStop in vain.
"""

from __future__ import annotations

import socket

import anyio
import pytest

from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Request
from tests.http.scripted import Conversation, serve
from tests.probes.helpers import Rows, ask, run_until, spec_for
from tests.probes.test_endings import ALL, TOKEN, stream

pytestmark = pytest.mark.anyio


async def test_a_stale_connection_stale_routing_a_cut_stream_and_a_good_one() -> None:
    served = 0

    async def old_pod(conversation: Conversation) -> None:
        nonlocal served
        served += 1
        await (stream(*ALL) if served == 1 else Conversation.reset)(conversation)

    async with serve(old_pod) as old:
        rows = Rows()
        await run_until(spec_for(old.url, connection="reused", pause=0.1), 2, rows)
        first, r1 = rows.requests
        assert old.connections == 1
        assert [conversation.peer for conversation in old.seen] == [first.connection, r1.connection]
    # r1: a connection of before, reset with no byte of an answer.
    assert (first.outcome, r1.outcome) == (Outcome.COMPLETE, Outcome.CONNECT_RESET)
    assert (first.reused, r1.reused) == (False, True)
    assert r1.connection == first.connection
    assert r1.remote == first.remote == old.url.removeprefix("http://")
    assert r1.opened == first.opened == first.connected
    assert r1.opened is not None
    assert r1.opened < r1.sent
    assert (r1.connected, r1.headers, r1.size) == (None, None, 0)

    # r2: a connection of its own, to an address where nobody listens any more.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = f"127.0.0.1:{listener.getsockname()[1]}"
    r2 = await ask(f"http://{gone}", connection="reused")
    assert r2.outcome == Outcome.CONNECT_REFUSED
    assert (r2.remote, r2.connection, r2.opened, r2.connected, r2.reused) == (gone, None, None, None, None)

    # r3: under way when the Pod went. r4: a new connection to another Pod.
    for script, outcome in (
        (stream(*[TOKEN] * 40, end=Conversation.reset), Outcome.CUT_STREAM),
        (stream(*ALL), Outcome.COMPLETE),
    ):
        async with serve(script) as server:
            request = await ask(server.url, connection="reused")
            assert request.outcome == outcome
            _is_on_a_connection_of_its_own(request, server.url)
            assert request.connection == server.seen[0].peer
            assert len(request.chunks or []) == (40 if outcome == Outcome.CUT_STREAM else 2)


async def test_a_connection_that_ended_while_idle_is_not_used_again() -> None:
    """The client sees the end before it sends: no request is lost, and the row says that the connection is new."""

    async def closes(conversation: Conversation) -> None:
        await stream(*ALL)(conversation)
        await conversation.fin()

    async with serve(closes) as server:
        rows = Rows()
        await run_until(spec_for(server.url, connection="reused", pause=0.1), 2, rows)
        for request in rows.requests:
            assert request.outcome == Outcome.COMPLETE
            _is_on_a_connection_of_its_own(request, server.url)
        assert server.connections == 2


async def test_a_connection_refused_by_every_address_names_the_last_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with anyio.fail_after(5):
        request = await ask(f"http://localhost:{port}")
    assert request.outcome == Outcome.CONNECT_REFUSED
    assert request.remote in (f"127.0.0.1:{port}", f"[::1]:{port}")


def _is_on_a_connection_of_its_own(request: Request, url: str) -> None:
    assert request.reused is False
    assert request.remote == url.removeprefix("http://")
    assert request.opened is not None
    assert request.opened == request.connected
    assert request.sent <= request.opened
