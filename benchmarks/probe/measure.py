"""One run: a server, a client, a while of load; then the client's times against the server's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.probe import machine
from benchmarks.probe.clients import Load
from benchmarks.probe.server import Record
from chaosrunner.timeline.files import ROWS
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Request

SETTLE = 1.0
"""Seconds between the start of the last user and the measurement."""
PATIENCE = 10.0
"""Seconds that a client has for ending its requests; then it is killed."""


class Scenario(msgspec.Struct, frozen=True):
    name: str
    text: str
    streams: int
    gap: float
    """Seconds between two chunks of a stream."""
    first: float = 0.02
    """Seconds to the first."""
    chunks: int = 64
    rate: float | None = None
    """Requests a second of an open loop; `streams` is then the most in flight."""
    workers: int = 1
    """Processes of the client, each on a core of its own."""

    @property
    def length(self) -> float:
        """Seconds that an answer takes."""
        return self.first + self.gap * (self.chunks - 1)


class Figures(msgspec.Struct):
    """What one run came to. Times in seconds; None: there was nothing to measure it by."""

    requests: float
    """A second."""
    chunks: float
    """A second, by the times at which the client has them received."""
    server: float
    """CPU of the server, of one core."""
    cost: float | None = None
    """CPU seconds of the client a chunk."""
    cpu: float | None = None
    """CPU of the client, of one core."""
    foreign: float | None = None
    """CPU of others, of both cores."""
    first_p50: float | None = None
    first_p99: float | None = None
    first_max: float | None = None
    chunk_p50: float | None = None
    chunk_p99: float | None = None
    chunk_max: float | None = None
    late_p50: float | None = None
    late_p99: float | None = None
    late_max: float | None = None
    """Sends against their schedule."""
    exact: float | None = None
    """Share of chunks whose times are the kernel's own."""
    exact_p99: float | None = None
    """Error of these alone."""
    memory: float | None = None
    """Bytes a stream."""
    wrong: float | None = None


@contextmanager
def serving(scenario: Scenario, log: Path, core: int, priority: int | None) -> Iterator[tuple[int, str]]:
    """The server's process id and URL; after the block its log is written."""
    command = [
        sys.executable, "-m", "benchmarks.probe.server", "--chunks", str(scenario.chunks),
        "--first", str(scenario.first), "--gap", str(scenario.gap), "--log", str(log),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = json.loads(process.stdout.readline())["port"]
            machine.place(process.pid, {core}, priority)
            yield process.pid, f"http://127.0.0.1:{port}"
        finally:
            os.sched_setscheduler(process.pid, os.SCHED_OTHER, os.sched_param(0))
            process.send_signal(signal.SIGTERM)


def measure(scenario: Scenario, client: str, seconds: float, where: machine.Cores, fast: bool) -> Figures:
    """Runs `client` under the load of `scenario`, and compares."""
    with tempfile.TemporaryDirectory() as scratch:
        log, folder = Path(scratch) / "server.jsonl", Path(scratch) / "recording"
        ramp = min(4.0, scenario.length) if scenario.length else 0.2
        with serving(scenario, log, where.server, 11 if fast else None) as (server, url):
            load = Load(url, scenario.streams, scenario.rate, scenario.workers, ramp, ramp + SETTLE + seconds)
            command = [
                sys.executable, "-m", "benchmarks.probe.clients",
                client, json.dumps(msgspec.to_builtins(load)), str(folder),
            ]  # fmt: skip
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                zero: float = json.loads(process.stdout.readline())["zero"]
                idle = machine.resident(process.pid)
                machine.place(process.pid, set(where.clients[: scenario.workers]), 10 if fast else None)
                with machine.prioritised(12) if fast else contextlib.nullcontext():
                    process.stdin.write("go\n")
                    process.stdin.flush()
                    time.sleep(ramp + SETTLE)
                    begin = machine.used(server, process.pid, where)
                    time.sleep(seconds)
                    end = machine.used(server, process.pid, where)
                memory = machine.resident(process.pid) - idle
                try:
                    process.wait(PATIENCE + scenario.length)
                except subprocess.TimeoutExpired:
                    process.kill()
        if process.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"the client {client} ended with {process.returncode}")
        figures = compare(records_of(log), rows_of(folder), zero, begin.at, end.at, end - begin)
    # Below some hundred streams what a client needs once outweighs what it needs for each.
    figures.memory = memory / scenario.streams if scenario.rate is None and scenario.streams >= 256 else None
    return figures


def records_of(log: Path) -> list[Record]:
    """What the server saw, in the order of arrival."""
    decoder = msgspec.json.Decoder(Record)
    return [decoder.decode(line) for line in log.read_bytes().splitlines()]


def rows_of(folder: Path) -> list[Request]:
    """The `request` rows of a recording."""
    decoder = msgspec.json.Decoder(Request)
    lines = (folder / ROWS).read_bytes().splitlines()
    return [decoder.decode(line) for line in lines if line.startswith(b'{"kind":"request",')]


def compare(
    records: Sequence[Record], rows: Sequence[Request], zero: float, begin: float, end: float, used: machine.Used
) -> Figures:
    """The client's rows against the server's records, for what arrived in [begin, end) of CLOCK_MONOTONIC."""
    served = {record.request: record for record in records}
    first: list[float] = []
    every: list[float] = []
    own: list[float] = []
    late: list[float] = []
    ended = 0
    wrong = sum(record.ended > 0 for record in records) - len(rows)
    for row in rows:
        record = served.get(row.request)  # None: it never came through
        times = row.chunks or []
        if record is None or row.outcome != Outcome.COMPLETE or len(times) != len(record.stamps):
            wrong += 1
            continue
        if begin <= row.at + zero < end:
            ended += 1
            if row.scheduled is not None:
                late.append(row.sent - row.scheduled)
        for number, (time_, stamp) in enumerate(zip(times, record.stamps, strict=True)):
            if begin <= time_ + zero < end:
                error = time_ + zero - stamp / 1e9
                every.append(error)
                # What came in one read has one time, which is right for the last of it.
                if row.exact and time_ not in times[number + 1 : number + 2]:
                    own.append(error)
                if number == 0:
                    first.append(error)
    for values in (first, every, own, late):
        values.sort()
    length = used.at
    return Figures(
        requests=ended / length,
        chunks=len(every) / length,
        cost=used.client / len(every) if every else None,
        cpu=used.client / length,
        server=used.server / length,
        foreign=max(0.0, used.all - used.server - used.client - used.ours) / length,
        first_p50=share(first, 0.5),
        first_p99=share(first, 0.99),
        first_max=share(first, 1.0),
        chunk_p50=share(every, 0.5),
        chunk_p99=share(every, 0.99),
        chunk_max=share(every, 1.0),
        late_p50=share(late, 0.5),
        late_p99=share(late, 0.99),
        late_max=share(late, 1.0),
        exact=len(own) / len(every) if every else None,
        exact_p99=share(own, 0.99),
        wrong=wrong,
    )


def share(values: Sequence[float], part: float) -> float | None:
    """The quantile `part` of sorted values."""
    return values[min(len(values) - 1, int(len(values) * part))] if values else None
