"""A probe in several processes: real ones, against a server in another, whose own log says how each request ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import anyio
import msgspec
import psutil
import pytest

from chaosrunner.errors import UserError
from chaosrunner.probes import Limits, ProbeSpec, Shape, outbox, run_probe, wire, workers
from chaosrunner.probes.maker import RequestMaker
from chaosrunner.probes.part import Part, numbers
from chaosrunner.probes.spec import CancelAfter, OpenLoop, Prompt, Stage
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Prober, Request, RequestHeaders, Row, Worker
from tests.lab.workload.harness import Program
from tests.probes.helpers import Rows

pytestmark = pytest.mark.anyio

ENDED = {
    "complete": Outcome.COMPLETE,
    "aborted": Outcome.ABORTED,
    "client_gone": Outcome.CANCELLED,
    "refused": Outcome.HTTP_ERROR,
}
"""What the model server's log calls the end of a request."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Program]:
    program = Program(
        "model_server", tmp_path, ["--startup", "0", "--tokens-per-second", "200", "--max-sequences", "64"]
    )
    yield program
    program.kill()


async def spec_of(server: Program, **changes: object) -> ProbeSpec:
    shapes = (Shape(prompt="hello", max_tokens=8, headers={"x-request-id": "{{ request }}"}),)
    spec = ProbeSpec(
        name="chat",
        url=f"http://127.0.0.1:{await server.listening()}",
        shapes=shapes,
        concurrency=6,
        workers=2,
        connection="reused",
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


class Team(Rows):
    """A probe that runs, and what it tells."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.stop = anyio.Event()
        self._news = anyio.Event()

    def emit(self, row: Row) -> None:
        super().emit(row)
        self._news.set()

    async def run(self, spec: ProbeSpec, drain: float | None = None) -> None:
        await run_probe(spec, self.emit, self.clock, self.stop, drain=drain)

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(30):
            while not condition():
                self._news = anyio.Event()
                await self._news.wait()

    def life(self, event: str) -> list[Worker]:
        return [row for row in self if isinstance(row, Worker) and row.event == event]

    def number(self, row: Request) -> int:
        return int(row.request.removeprefix("chat-"))

    def check(self) -> None:
        """Each request has its rows; whoever began has ended, and is gone."""
        super().check()
        assert all(not psutil.pid_exists(row.pid) for row in self.life("began"))


async def run_until(spec: ProbeSpec, requests: int) -> Team:
    team = Team()
    async with anyio.create_task_group() as group:
        group.start_soon(team.run, spec)
        await team.until(lambda: len(team.requests) >= requests)
        team.stop.set()
    team.check()
    return team


# --- one plan ---------------------------------------------------------------------------------------------


def test_what_is_told_a_worker_is_the_whole_spec() -> None:
    spec = ProbeSpec(
        name="a",
        url="http://x",
        dialect="chat",
        shapes=(
            Shape(
                name="s",
                weight=2,
                messages=({"role": "user", "content": [{"type": "text", "text": "{{ nonce }}"}]},),
                body={"n": 2, "list": [1, None, 2.5, "ü"], "deep": {"a": True}},
                headers={"x": "{{ worker }}"},
                cancel_after=CancelAfter(chunks=3, share=0.5),
            ),
            Shape(prompts=(Prompt("a"), Prompt(messages=({"role": "user", "content": "b"},), max_tokens=3))),
        ),
        limits=Limits(total=3),
        open=OpenLoop((Stage(1.5, 2, 7), Stage(3, 4))),
        headers={"authorization": "Bearer secret-of-ours"},
        api_key="another-secret",
        workers=3,
    )
    start = wire.Start(spec, Part(1, 3), Clock().anchor, 2.5)
    frame = wire.framed(start)
    assert wire.read_order(frame[4:]) == start
    told = wire.read_order(frame[4:])
    assert isinstance(told, wire.Start)
    for number in range(1, 50):
        assert RequestMaker(told.spec).make(number) == RequestMaker(spec).make(number)


@pytest.mark.parametrize("workers", [1, 2, 3])
async def test_a_closed_loop_sends_the_same_requests_whatever_the_number_of_workers(
    workers: int, server: Program
) -> None:
    shapes = tuple(
        Shape(name=name, weight=weight, prompt=f"{name} {{{{ worker }}}}", max_tokens=tokens)
        for name, weight, tokens in (("short", 3, 2), ("long", 1, 12))
    )
    spec = await spec_of(server, shapes=shapes, concurrency=5, workers=workers, seed="s")
    team = await run_until(spec, 60)
    maker = RequestMaker(spec)
    sent = {team.number(row): row for row in team.requests}
    by_user = {}
    for user in range(5):
        own = list(islice(numbers(user, 5), len(sent)))
        by_user[user] = [number for number in own if number in sent]
        assert by_user[user] == own[: len(by_user[user])], "a user leaves no number out"
    assert sum(map(len, by_user.values())) == len(sent)
    assert all(by_user.values())
    # What a request is, its number alone says.
    assert {number: row.shape for number, row in sent.items()} == {
        number: maker.make(number).shape.name for number in sent
    }
    assert {row.worker for row in team.life("began")} == (set() if workers == 1 else set(range(1, workers + 1)))


@pytest.mark.parametrize("workers", [1, 3])
async def test_an_open_loop_keeps_to_one_schedule_whatever_the_number_of_workers(workers: int, server: Program) -> None:
    # As many in flight as there may ever be: on a busy machine answers are late, which is no reason to refuse any.
    spec = await spec_of(server, open=OpenLoop((Stage(60, 60),), "constant", 3600), workers=workers)
    team = await run_until(spec, 60)
    sent = {team.number(row): row for row in team.requests}
    for first in range(1, workers + 1):  # how far each had come when they were stopped, differs
        mine = [number for number in sorted(sent) if number % workers == first % workers]
        assert mine == list(range(first, first + workers * len(mine), workers))
    zero = sent[1].scheduled
    assert zero is not None
    for number, row in sent.items():
        assert row.scheduled == pytest.approx(zero + (number - 1) / 60)
        assert row.sent >= row.scheduled


# --- nothing lost -----------------------------------------------------------------------------------------


async def test_rows_agree_with_the_log_of_the_server_one_by_one(server: Program) -> None:
    headers = {"x-request-id": "{{ request }}"}
    shapes = (
        Shape(name="good", weight=6, prompt="hello", max_tokens=6, headers=headers),
        Shape(name="too_long", weight=1, prompt="word " * 4000, max_tokens=6, headers=headers),
        Shape(name="cut", weight=2, prompt="hello", max_tokens=40, headers=headers, cancel_after=CancelAfter(chunks=3)),
    )
    spec = await spec_of(server, shapes=shapes, concurrency=12, workers=3)
    team = Team()
    async with anyio.create_task_group() as group:
        group.start_soon(team.run, spec)
        await team.until(lambda: len(team.requests) >= 300)
        server.process.send_signal(signal.SIGTERM)  # streams end with finish_reason abort
        await team.until(lambda: any(row.outcome == Outcome.CONNECT_REFUSED for row in team.requests))
        team.stop.set()
    team.check()
    served = {row["id"]: ENDED[row["ended"]] for row in server.rows("request")}
    told = {row.request: row.outcome for row in team.requests}
    unserved = {told[name] for name in told.keys() - served.keys()}
    # Where the server ends a stream just when we give it up, both are right.
    crossed = {row.request for row in team.requests if row.shape == "cut"} & {
        name for name, outcome in served.items() if outcome == Outcome.ABORTED
    }
    assert {told[name] for name in crossed} <= {Outcome.ABORTED, Outcome.CANCELLED}
    assert {name: told[name] for name in served if name not in crossed} == {
        name: outcome for name, outcome in served.items() if name not in crossed
    }
    assert set(served.values()) == set(ENDED.values())
    assert unserved <= {Outcome.CONNECT_REFUSED, Outcome.CONNECT_RESET, Outcome.NO_RESPONSE}
    # The times of all are on one clock.
    received = {row["id"]: row["received"] for row in server.rows("request")}
    for row in team.requests:
        if row.request in received:
            assert team.clock.wall(row.sent) - 0.005 < received[row.request] < team.clock.wall(row.at) + 0.005


async def test_stop_starts_nothing_and_drops_nothing(server: Program) -> None:
    shapes = (Shape(prompt="hello", max_tokens=200),)
    spec = await spec_of(server, shapes=shapes)
    team = Team()
    async with anyio.create_task_group() as group:
        group.start_soon(team.run, spec)
        await team.until(lambda: len(team.headers) == 6)
        team.stop.set()
    team.check()
    assert [row.outcome for row in team.requests] == [Outcome.COMPLETE] * 6
    assert len(team.life("ended")) == 2


async def test_the_drain_limit_and_cancellation_leave_rows(server: Program) -> None:
    spec = await spec_of(server, shapes=(Shape(prompt="hello", max_tokens=2000),))
    team = Team()
    async with anyio.create_task_group() as group:
        group.start_soon(team.run, spec, 0.1)
        await team.until(lambda: len(team.headers) == 6)
        team.stop.set()
    team.check()
    assert [row.outcome for row in team.requests] == [Outcome.CANCELLED] * 6
    team = Team()
    async with anyio.create_task_group() as group:
        group.start_soon(team.run, spec)
        await team.until(lambda: len(team.headers) == 6)
        group.cancel_scope.cancel()
    team.check()
    assert [row.outcome for row in team.requests] == [Outcome.CANCELLED] * 6


async def test_stopped_before_the_workers_are_up(server: Program) -> None:
    team = Team()
    team.stop.set()
    with anyio.fail_after(10):
        await team.run(await spec_of(server))
    assert not team
    assert not workers_of_ours()


# --- who dies ---------------------------------------------------------------------------------------------


async def test_a_worker_that_is_killed_is_not_the_services_fault(server: Program) -> None:
    shapes = (Shape(name="s", prompt="hello", max_tokens=40, headers={"x-request-id": "{{ request }}"}),)
    spec = await spec_of(server, shapes=shapes, workers=3)
    own = {f"chat-{number}" for user in Part(1, 3).users(6) for number in islice(numbers(user, 6), 1000)}
    team = Team()

    def in_mid_stream() -> set[str]:
        return own & {row.request for row in team.headers} - {row.request for row in team.requests}

    async with anyio.create_task_group() as group:
        group.start_soon(team.run, spec)
        await team.until(lambda: len(team.requests) >= 12 and in_mid_stream())
        victim = team.life("began")[1]
        os.kill(victim.pid, signal.SIGKILL)
        await team.until(lambda: team.life("died"))
        before = len(team.requests)
        await team.until(lambda: len(team.requests) >= before + 20)  # the others go on
        team.stop.set()
    team.check()
    died = team.life("died")[0]
    assert (died.worker, died.of, died.pid) == (2, 3, victim.pid)
    assert died.reason == "worker 2 of 3 was killed by signal 9 (Killed)"
    assert [row.worker for row in team.life("ended")] == [1, 3] or [row.worker for row in team.life("ended")] == [3, 1]
    outcomes = Counter(row.outcome for row in team.requests)
    assert set(outcomes) == {Outcome.COMPLETE, Outcome.PROBER_FAULT}
    lost = [row for row in team.requests if row.outcome == Outcome.PROBER_FAULT]
    assert 0 < len(lost) <= 2
    for row in lost:
        assert row.request in own
        assert row.at >= row.sent
        assert row.error == died.reason
        assert row.shape == "s"
        if (headers := next((other for other in team.headers if other.request == row.request), None)) is not None:
            assert (row.headers, row.status, row.remote) == (headers.at, 200, headers.remote)
    assert max(row.sent for row in team.requests if row.request in own) <= died.at
    told = {row.request for row in team.requests}
    untold = [row["received"] for row in server.rows("received") if row["id"] not in told]
    assert all(received > team.clock.wall(died.at) - 0.5 for received in untold)
    assert len(untold) <= 2


async def test_a_worker_that_hangs_does_not_hold_up_a_cancelled_probe(
    server: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 0.5)
    spec = await spec_of(server, shapes=(Shape(prompt="hello", max_tokens=2000),))
    team = Team()
    async with anyio.create_task_group() as group:
        group.start_soon(team.run, spec)
        await team.until(lambda: len(team.headers) == 6)
        os.kill(team.life("began")[0].pid, signal.SIGSTOP)
        group.cancel_scope.cancel()
    team.check()
    assert Counter(row.outcome for row in team.requests) == {Outcome.CANCELLED: 3, Outcome.PROBER_FAULT: 3}
    assert {row.error for row in team.requests if row.outcome == Outcome.PROBER_FAULT} == {
        "worker 1 of 2 did not end in time"
    }


async def test_a_worker_that_cannot_start_is_one_error(server: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = await spec_of(server)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    team = Team()
    with pytest.raises(UserError, match=r"probe chat: worker \d of 2 ended with exit code 1 before it could begin"):
        await team.run(spec)
    assert not team


async def test_no_worker_outlives_its_parent(server: Program, tmp_path: Path) -> None:
    spec = await spec_of(server, shapes=(Shape(prompt="hello", max_tokens=2000),), workers=3)
    (tmp_path / "spec").write_bytes(msgspec.msgpack.encode(spec))
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(program), str(tmp_path / "spec")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent, anyio.fail_after(30):
        assert await anyio.to_thread.run_sync(parent.stdout.readline) == "under way\n"
        children = psutil.Process(parent.pid).children()
        assert len(children) == 3
        for child in children:  # what a terminal and a service manager do to all processes
            child.send_signal(signal.SIGINT)
            child.send_signal(signal.SIGTERM)
        await anyio.sleep(0.2)
        assert all(child.status() != psutil.STATUS_ZOMBIE for child in psutil.Process(parent.pid).children())
        parent.kill()
        while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children):  # noqa: ASYNC110
            await anyio.sleep(0.01)


PARENT = """
import sys
from pathlib import Path
import anyio, msgspec
from chaosrunner.probes import ProbeSpec, run_probe
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import RequestHeaders

spec = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=ProbeSpec)
seen = []

def emit(row):
    if isinstance(row, RequestHeaders):
        seen.append(row)
        if len(seen) == spec.concurrency:
            print("under way", flush=True)

anyio.run(run_probe, spec, emit, Clock(), anyio.Event())
"""


# --- honesty ----------------------------------------------------------------------------------------------


async def test_each_worker_tells_its_own_health(server: Program) -> None:
    spec = await spec_of(server, open=OpenLoop((Stage(40, 60),), "constant", 30), workers=2)
    team = Team()
    async with anyio.create_task_group() as group:
        group.start_soon(team.run, spec)
        await team.until(lambda: {row.worker for row in team if isinstance(row, Prober)} == {1, 2})
        team.stop.set()
    for row in team:
        if isinstance(row, Prober):
            assert row.probe == "chat"
            assert row.loop_lag < 1
            assert row.send_lag is not None
            assert row.cpu
            assert row.requests is not None


async def test_a_parent_that_reads_late_loses_nothing(server: Program) -> None:
    spec = await spec_of(
        server, shapes=(Shape(prompt="hello", max_tokens=4, headers={"x-request-id": "{{ request }}"}),)
    )
    team = Team()
    async with anyio.create_task_group() as group:
        group.start_soon(team.run, spec)
        await team.until(lambda: team.requests)
        time.sleep(1.5)  # noqa: ASYNC251 - the loop is to stand still
        team.stop.set()
    team.check()
    assert {row.request for row in team.requests} == {row["id"] for row in server.rows("request")}
    assert {row.outcome for row in team.requests} == {Outcome.COMPLETE}, "a late parent is no late worker"


async def test_a_worker_whose_rows_nobody_takes_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST", 20_000)
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    got: list[Row] = []

    def read() -> None:
        time.sleep(0.4)
        with theirs.makefile("rb") as file:
            while size := file.read(4):
                report = wire.read_report(file.read(int.from_bytes(size)))
                assert isinstance(report, wire.Rows)
                got.extend(report.rows)

    reader = threading.Thread(target=read)
    reader.start()
    box = outbox.Outbox(ours, lambda: pytest.fail("the reader is there"))
    rows: list[Row] = [
        RequestHeaders(at=number, request=f"chat-{number}", status=200, remote="10.1.2.3:4") for number in range(3000)
    ]
    begin, most = time.monotonic(), 0
    for row in rows:
        box.emit(row)
        if row.at % 100 == 99:
            await anyio.sleep(0.003)
            most = max(most, box.waiting)
    assert time.monotonic() - begin > 0.4, "it stood still"
    assert 100 < most < 1000
    box.finish()
    assert box.waiting == 0
    ours.close()
    await anyio.to_thread.run_sync(reader.join)
    theirs.close()
    assert got == rows


def test_a_worker_imports_nothing_heavy() -> None:
    program = "import sys, chaosrunner.probes.worker; print(*sys.modules)"
    imported = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    heavy = ("kubernetes", "aiohttp", "pandas", "numpy", "pyarrow", "pydantic", "prometheus_client")
    assert [name for name in heavy if name in imported] == []


def workers_of_ours() -> list[psutil.Process]:
    """Worker processes that this one has as children; fixtures of other tests may have started other programs."""
    return [child for child in psutil.Process().children() if "chaosrunner.probes.worker" in child.cmdline()]


# --- one clear error --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_bad_ca_file_is_one_error(workers: int, server: Program, tmp_path: Path) -> None:
    spec = await spec_of(server, workers=workers)
    spec = replace(spec, url=spec.url.replace("http", "https"), ca=str(tmp_path / "none.pem"))
    team = Team()
    with pytest.raises(UserError, match=r"none\.pem"):
        await team.run(spec)
    assert not team
    assert not workers_of_ours()


async def test_what_a_worker_finds_wrong_while_it_sends_is_one_error(server: Program) -> None:
    spec = await spec_of(server, shapes=(Shape(prompt="hello", max_tokens=4, headers={"x-two": "a\nb"}),))
    team = Team()
    with pytest.raises(UserError, match="x-two"):
        await team.run(spec)
    team.check()


def test_more_workers_than_requests_in_flight_make_no_sense() -> None:
    with pytest.raises(UserError, match="workers must be 1 to 2"):
        ProbeSpec(name="a", url="http://x", concurrency=2, workers=3)
    with pytest.raises(UserError, match="workers must be 1 to 4"):
        ProbeSpec(name="a", url="http://x", open=OpenLoop((Stage(1, 1),), max_in_flight=4), workers=5)
