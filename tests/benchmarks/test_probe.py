"""The rig that measures the probe: what it compares, and that each client comes through it."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks.probe import machine
from benchmarks.probe.measure import Scenario, compare, measure
from benchmarks.probe.server import Record
from chaosrunner.timeline.rows import Request

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def row(name: str, chunks: list[float], at: float, outcome: str = "complete") -> Request:
    return Request(at=at, request=name, probe="chat", outcome=outcome, sent=0, chunks=chunks, exact=True)


def test_errors_are_receive_minus_send_within_the_window() -> None:
    second = 1_000_000_000
    records = [
        Record("a", received=0, stamps=[1 * second, 2 * second, 9 * second], ended=9 * second),
        Record("b", received=0, stamps=[3 * second], ended=4 * second),
        Record("c", received=0, stamps=[3 * second], ended=4 * second),
        Record("lost", received=0, stamps=[3 * second], ended=4 * second),
        Record("cut off by the end", received=0, stamps=[3 * second]),
    ]
    zero = 100.0  # the recording began at 100 s of the clock that the server reads
    rows = [
        row("a", [1.001 - zero, 2.003 - zero, 9.1 - zero], 9.1 - zero),
        row("b", [3.002 - zero], 4 - zero),
        row("c", [3.002 - zero], 4 - zero, "cut_stream"),
    ]
    used = machine.Used(at=4.0, server=1.0, client=2.0, ours=0.1, all=3.5)
    found = compare(records, rows, zero, 1.5, 5.5, used)
    assert (found.chunks, found.requests) == (2 / 4, 1 / 4)
    assert found.first_p50 == pytest.approx(0.002)
    assert (found.chunk_p50, found.chunk_max) == (pytest.approx(0.003), pytest.approx(0.003))
    assert (found.cpu, found.server, found.cost) == (0.5, 0.25, 1.0)
    assert found.foreign == pytest.approx(0.1)
    assert (found.exact, found.exact_p99) == (1.0, pytest.approx(0.003))
    assert found.wrong == 2, "one not complete, one without a row"


def test_of_chunks_of_one_read_the_last_is_exact() -> None:
    record = Record("a", received=0, stamps=[1_000_000_000, 1_500_000_000, 2_000_000_000], ended=3_000_000_000)
    used = machine.Used(at=4.0, server=1.0, client=2.0, ours=0.1, all=3.5)
    found = compare([record], [row("a", [1.501, 1.501, 2.002], 3.0)], 0.0, 0.0, 4.0, used)
    assert found.chunk_max == pytest.approx(0.501)
    assert (found.exact, found.exact_p99) == (2 / 3, pytest.approx(0.002))


@LINUX
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="takes two cores")
@pytest.mark.parametrize(
    "client", ["product", *(pytest.param(c, marks=pytest.mark.slow) for c in ("httpx", "aiohttp"))]
)
def test_a_client_under_load(client: str) -> None:
    scenario = Scenario("small", "4 streams", streams=4, gap=0.02, first=0.02, chunks=10)
    found = measure(scenario, client, 1.5, machine.cores(), fast=False)
    assert found.wrong == 0
    assert 10 < found.requests < 21, "4 streams that take 0.2 s"
    assert 100 < found.chunks < 210
    assert found.chunk_p50 is not None
    assert 0 < found.chunk_p50 < 0.1
    assert found.exact is not None
    assert found.exact > 0.3 if client == "product" else found.exact == 0
