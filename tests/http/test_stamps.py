"""Receive times: the kernel's, whatever the loop and the wall clock do meanwhile."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaosrunner.http import StreamClient, stamps
from chaosrunner.http.stamps import Stamps
from chaosrunner.timeline.clock import Clock
from tests.http.pushing import pushed
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, chunk, serve

pytestmark = pytest.mark.anyio
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what TCP receives")


def server_in_a_thread(answer: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> int:
    """Its port. It serves one connection, undisturbed by what our loop does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listener, listener.accept()[0] as raw:
            with tls.wrap_socket(raw, server_side=True) if tls else raw as connection:
                connection.recv(65536)
                answer(connection)

    threading.Thread(target=run, daemon=True).start()
    return int(listener.getsockname()[1])


@linux
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_read_does_not_age_while_the_loop_stands_still(
    tls: bool, certificate: Path, server_tls: ssl.SSLContext
) -> None:
    clock = Clock()
    written: list[float] = []

    def answer(connection: socket.socket) -> None:
        connection.sendall(OK_SSE)
        time.sleep(0.1)
        written.append(clock.now())
        connection.sendall(chunk(b"data: a\n\n"))
        time.sleep(0.3)
        written.append(clock.now())
        connection.sendall(LAST_CHUNK)

    port = server_in_a_thread(answer, server_tls if tls else None)
    url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    async with StreamClient(url, clock=clock, ca=str(certificate / "cert")) as client:
        exchange = client.stream("GET", "/")
        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.3)
        kept = await pushed(exchange)
    [(at, data, exact)] = kept.reads
    assert (data, exact, exchange.exact) == (b"data: a\n\n", True, True)
    assert 0 <= at - written[0] < 0.02
    assert exchange.timings.ended is not None
    assert 0 <= exchange.timings.ended - written[1] < 0.02


async def test_without_stamps_the_loops_clock_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stamps, "enable", lambda self, raw: None)

    async def script(conversation: Conversation) -> None:
        await conversation.write(OK_SSE + chunk(b"one") + LAST_CHUNK)

    clock = Clock()
    async with serve(script) as server, StreamClient(server.url, clock=clock) as client:
        exchange = client.stream("GET", "/")
        before = clock.now()
        kept = await pushed(exchange)
    assert exchange.exact is False
    assert [(data, exact) for _, data, exact in kept.reads] == [(b"one", False)]
    assert before < kept.reads[0][0] <= clock.now()


class Wall:
    """A wall clock that can be stepped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0
        real = time.time_ns
        self.now = lambda: real() + self.ahead
        monkeypatch.setattr(stamps.time, "time_ns", self.now)

    def stamp(self, age: float = 0.0) -> list[tuple[int, int, bytes]]:
        """What the kernel says of bytes that came so many seconds ago, if there was no step since."""
        seconds, nanoseconds = divmod(self.now() - int(age * 1e9), 1_000_000_000)
        return [(socket.SOL_SOCKET, stamps.SO_TIMESTAMPNS, struct.pack("@ll", seconds, nanoseconds))]


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


def test_a_stamp_becomes_an_instant_of_the_recording(wall: Wall) -> None:
    clock = Clock()
    converter = Stamps(clock)
    time.sleep(0.6)
    at, exact = converter.of(wall.stamp(age=0.5), -1.0)
    assert exact
    assert at == pytest.approx(clock.now() - 0.5, abs=0.005)


@pytest.mark.parametrize("step", [3600.0, 0.01, -0.01, -3600.0])
def test_a_stepped_wall_clock_moves_no_instant(wall: Wall, step: float) -> None:
    clock = Clock()
    converter = Stamps(clock)
    before = wall.stamp()
    wall.ahead = int(step * 1e9)
    # Stamped before the step, read after it: nobody can tell, so the loop's time serves.
    at, exact = converter.of(before, -1.0)
    assert not exact
    assert at == pytest.approx(clock.now(), abs=0.005)
    # After a step back the same, for as long as a stamp may be one from before that was read late.
    time.sleep(0.02)
    at, exact = converter.of(wall.stamp(), at)
    assert exact == (step > -1)
    assert at == pytest.approx(clock.now(), abs=0.005)


def test_instants_of_a_connection_do_not_run_backwards(wall: Wall) -> None:
    clock = Clock()
    converter = Stamps(clock)
    time.sleep(0.05)
    at, exact = converter.of(wall.stamp(age=0.04), floor=clock.now() - 0.02)
    assert not exact
    assert at == pytest.approx(clock.now(), abs=0.005)


@pytest.mark.parametrize("ancillary", [[], [(socket.SOL_SOCKET, 1, b"short")]])
def test_a_read_without_a_stamp(ancillary: list[tuple[int, int, bytes]]) -> None:
    clock = Clock()
    at, exact = Stamps(clock).of(ancillary, -1.0)
    assert not exact
    assert at == pytest.approx(clock.now(), abs=0.005)
