"""A load for each replica by its own address: real sockets, and real processes where a probe has several."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.errors import UserError
from chaosrunner.probes import ProbeSpec, Replica, Replicas, Shape, run_probe
from chaosrunner.probes.part import Part
from chaosrunner.probes.spec import OpenLoop, Stage
from chaosrunner.timeline import rows as timeline
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Request
from tests.http.scripted import LAST_CHUNK, OK_SSE, Conversation, ScriptedServer, serve
from tests.probes.helpers import Rows, spec_for, until

DONE = '{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}'
TOKEN = '{"choices":[{"index":0,"text":"x","finish_reason":null}]}'


async def whole(conversation: Conversation) -> None:
    await conversation.write(OK_SSE)
    await conversation.events(TOKEN, DONE, '{"choices":[],"usage":{"completion_tokens":1}}', "[DONE]")
    await conversation.write(LAST_CHUNK)


def spec(**changes: object) -> ProbeSpec:
    usual = {"url": "http://gateway.example:8080", "name": "direct", "replicas": True, "pause": 0.02}
    return spec_for(**usual | changes)  # type: ignore[arg-type]


def at(server: ScriptedServer, number: int, *, up: bool = True) -> Replica:
    port = int(server.url.rpartition(":")[2])
    return Replica(id=f"uid-{number}", number=number, name=f"chat-{number}", host="127.0.0.1", port=port, up=up)


class Probing(Rows):
    """A probe of replicas that runs beside the test."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = Replicas()
        self.clock = Clock()
        self.stop = anyio.Event()

    @asynccontextmanager
    async def running(self, wanted: ProbeSpec) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_probe(wanted, self.emit, self.clock, self.stop, replicas=self.replicas))
            yield
            self.stop.set()
        self.check()

    def to(self, number: int) -> list[Request]:
        return [row for row in self.requests if row.replica == f"uid-{number}"]

    def life(self, number: int) -> list[str]:
        return [row.event for row in self if isinstance(row, timeline.Replica) and row.number == number]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


# --- who is asked, and by what name ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_replicas_that_come_join_and_those_that_go_leave() -> None:
    probing = Probing()
    async with AsyncExitStack() as stack:
        first, second, third = [await stack.enter_async_context(serve(whole)) for _ in range(3)]
        async with probing.running(spec()):
            probing.replicas.set([at(first, 1), at(second, 2)])
            await until(lambda: len(probing.to(1)) >= 4 and len(probing.to(2)) >= 4)
            probing.replicas.set([at(first, 1), at(third, 3)])
            await until(lambda: probing.life(2) == ["joined", "listens", "left"] and len(probing.to(3)) >= 2)
            left = next(row.at for row in probing if isinstance(row, timeline.Replica) and row.event == "left")
            asked = len(second.seen)
            before = len(probing.to(1))
            await until(lambda: len(probing.to(1)) >= before + 4)
            assert len(second.seen) == asked
    assert {row.outcome for row in probing.requests} == {Outcome.COMPLETE}
    assert all(row.sent <= left for row in probing.to(2))
    for server, number in ((first, 1), (second, 2), (third, 3)):
        sent = [row.request for row in probing.to(number)]
        assert len(set(sent)) == len(sent) == len(server.seen)
        # Each replica has a plan of its own, which begins at 1.
        assert sorted(int(name.removeprefix(f"direct@{number}-")) for name in sent) == list(range(1, len(sent) + 1))
        assert {row.pod for row in probing.to(number)} == {f"chat-{number}"}
        # A gateway would pass its own name on.
        assert {conversation.headers["host"] for conversation in server.seen} == {"gateway.example:8080"}
        prompts = [conversation.body for conversation in server.seen]
        assert len(set(prompts)) == len(prompts)
    assert probing.life(1) == probing.life(3) == ["joined", "listens", "left"]


@pytest.mark.anyio
async def test_a_host_and_credentials_of_the_drill_go_along() -> None:
    probing = Probing()
    async with serve(whole) as server:
        async with probing.running(spec(headers={"Host": "chat.internal", "tenant": "a"}, api_key="secret")):
            probing.replicas.set([at(server, 1)])
            await until(lambda: probing.to(1))
    sent = server.seen[0].headers
    assert (sent["host"], sent["tenant"], sent["authorization"]) == ("chat.internal", "a", "Bearer secret")


@pytest.mark.anyio
async def test_what_comes_before_the_first_replica_is_nothing_and_the_end_is_clean() -> None:
    probing = Probing()
    async with probing.running(spec()):
        await anyio.sleep(0.1)
    assert list(probing) == []


@pytest.mark.anyio
async def test_a_request_in_flight_is_read_to_its_end_when_its_replica_leaves() -> None:
    held = anyio.Event()

    async def slow(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await conversation.events(TOKEN)
        await held.wait()
        await conversation.events(DONE, '{"choices":[],"usage":{"completion_tokens":1}}', "[DONE]")
        await conversation.write(LAST_CHUNK)

    probing = Probing()
    async with serve(slow) as server:
        async with probing.running(spec()):
            probing.replicas.set([at(server, 1)])
            await until(lambda: probing.headers)
            probing.replicas.set([])
            held.set()
            await until(lambda: probing.life(1)[-1] == "left")
    (only,) = probing.requests
    assert only.outcome == Outcome.COMPLETE


# --- before it serves ----------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_closed_port_is_knocked_at_without_a_request_until_it_listens() -> None:
    port = free_port()
    probing = Probing()
    waiting = Replica(id="uid-1", number=1, name="chat-1", host="127.0.0.1", port=port, up=False)
    async with probing.running(spec()):
        probing.replicas.set([waiting])
        await anyio.sleep(0.3)
        assert probing.life(1) == ["joined"]
        assert not probing.sent
        async with serve(whole, port=port):
            await until(lambda: probing.to(1))
            probing.replicas.set([])
            await until(lambda: probing.life(1)[-1] == "left")
    assert {row.outcome for row in probing.requests} == {Outcome.COMPLETE}


@pytest.mark.anyio
async def test_what_a_replica_refuses_that_says_it_serves_is_a_failure() -> None:
    probing = Probing()
    closed = Replica(id="uid-1", number=1, name="chat-1", host="127.0.0.1", port=free_port(), up=False)
    async with probing.running(spec()):
        probing.replicas.set([closed])
        await anyio.sleep(0.15)
        assert not probing.sent
        probing.replicas.set([replace(closed, up=True)])
        await until(lambda: probing.requests)
    assert {row.outcome for row in probing.requests} == {Outcome.CONNECT_REFUSED}
    assert probing.life(1) == ["joined", "listens", "left"]


@pytest.mark.anyio
async def test_a_replica_may_leave_before_it_ever_listened() -> None:
    probing = Probing()
    async with probing.running(spec()):
        probing.replicas.set([Replica("uid-1", 1, "chat-1", "127.0.0.1", free_port(), up=False)])
        await until(lambda: probing.life(1) == ["joined"])
        probing.replicas.set([])
        await until(lambda: probing.life(1) == ["joined", "left"])
    assert not probing.sent


# --- load ----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_schedule_is_everybodys_and_who_comes_late_owes_nothing_of_it() -> None:
    load = OpenLoop((Stage(40.0, 60.0),), arrivals="constant")
    probing = Probing()
    async with serve(whole) as first, serve(whole) as second, probing.running(spec(open=load)):
        probing.replicas.set([at(first, 1)])
        await until(lambda: len(probing.to(1)) >= 20)
        came = probing.clock.now()
        probing.replicas.set([at(first, 1), at(second, 2)])
        await until(lambda: len(probing.to(2)) >= 10)
    late = probing.to(2)
    assert all(row.scheduled is not None and row.scheduled >= came for row in late)
    numbers = sorted(int(row.request.rpartition("-")[2]) for row in late)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] > 20  # it takes the schedule where it is
    assert {row.outcome for row in probing.requests} == {Outcome.COMPLETE}


@pytest.mark.anyio
async def test_several_processes_send_the_same_plan_to_replicas_that_come_later() -> None:
    probing = Probing()
    shapes = (Shape(prompt="hello", max_tokens=8, headers={"x-request-id": "{{ request }}"}),)
    async with serve(whole) as first, serve(whole) as second:
        async with probing.running(spec(workers=2, concurrency=3, shapes=shapes)):
            probing.replicas.set([at(first, 1)])
            await until(lambda: len(probing.to(1)) >= 9)
            probing.replicas.set([at(first, 1), at(second, 2)])
            await until(lambda: len(probing.to(2)) >= 9)
            probing.replicas.set([at(second, 2)])
            await until(lambda: probing.life(1) == ["joined", "listens", "left"])
            asked = len(first.seen)
            before = len(probing.to(2))
            await until(lambda: len(probing.to(2)) >= before + 6)
            assert len(first.seen) <= asked + 3  # the other process may hear of it a little later
    for server, number in ((first, 1), (second, 2)):
        told = sorted(row.request for row in probing.to(number))
        assert told == sorted(conversation.headers["x-request-id"] for conversation in server.seen)
        assert len(set(told)) == len(told)
    assert {row.outcome for row in probing.requests} == {Outcome.COMPLETE}
    assert len({row.pid for row in probing if isinstance(row, timeline.Worker)}) == 2
    assert all(probing.life(number) == ["joined", "listens", "left"] for number in (1, 2))


@pytest.mark.anyio
async def test_a_worker_that_dies_leaves_final_rows_that_name_the_replica() -> None:
    async def never(conversation: Conversation) -> None:
        await conversation.write(OK_SSE)
        await anyio.sleep(60)

    probing = Probing()
    limits = replace(spec().limits, byte_idle=30, token_idle=30, total=60)
    async with serve(never) as server, probing.running(spec(workers=2, concurrency=2, limits=limits)):
        probing.replicas.set([at(server, 7)])
        await until(lambda: len(probing.headers) == 2)
        for row in [row for row in probing if isinstance(row, timeline.Worker) and row.event == "began"]:
            os.kill(row.pid, signal.SIGKILL)
        await until(lambda: len(probing.requests) == 2)
    assert {(row.outcome, row.replica, row.pod) for row in probing.requests} == {
        (Outcome.PROBER_FAULT, "uid-7", "chat-7")
    }


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 60), st.integers(1, 60))
def test_the_users_of_all_replicas_are_spread_evenly_over_the_workers(
    of: int, concurrency: int, replicas: int, arrivals: int
) -> None:
    parts = [[Part(index, of).turned(before * concurrency) for before in range(replicas)] for index in range(of)]
    for of_replica in zip(*parts, strict=True):
        users = [user for part in of_replica for user in part.users(concurrency)]
        assert sorted(users) == list(range(concurrency))
        assert all(sum(part.sends(number) for part in of_replica) == 1 for number in range(1, arrivals + 1))
        assert sum(part.index == 0 for part in of_replica) == 1  # who tells what becomes of it
    load = [sum(len(part.users(concurrency)) for part in of_worker) for of_worker in parts]
    assert max(load) - min(load) <= 1


def test_more_workers_than_one_replica_has_users_are_for_several_replicas() -> None:
    assert spec(workers=4, concurrency=1).workers == 4
    with pytest.raises(UserError, match="workers must be 1 to 2"):
        spec(workers=4, open=OpenLoop((Stage(1.0, 1.0),), max_in_flight=2))


# --- the wire -------------------------------------------------------------------------------------------------------


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.anyio
@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on loopback")
@pytest.mark.parametrize("up", [True, False])
async def test_an_ipv6_address(up: bool) -> None:
    probing = Probing()
    async with serve(whole, host="::1") as server:
        replica = replace(at(server, 1, up=up), host="::1")
        async with probing.running(spec(connection="new")):
            probing.replicas.set([replica])
            await until(lambda: len(probing.to(1)) >= 3)
    assert {(row.outcome, row.remote) for row in probing.requests} == {(Outcome.COMPLETE, replica.address)}
    assert replica.address == f"[::1]:{replica.port}"


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `cert` and `key` for gateway.example, and for no address."""
    folder = tmp_path_factory.mktemp("certificate")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    extra = ["-addext", "subjectAltName=DNS:gateway.example", "-keyout", str(folder / "key"), "-out"]
    subprocess.run([*command.split(), *extra, str(folder / "cert")], check=True, capture_output=True)
    return folder


@pytest.mark.anyio
@pytest.mark.parametrize(("host", "outcome"), [("gateway.example", Outcome.COMPLETE), ("127.0.0.1", Outcome.TLS_ERROR)])
async def test_the_certificate_of_a_replica_has_the_endpoints_name(
    certified: Path, host: str, outcome: Outcome
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified / "cert", certified / "key")
    named: list[str | None] = []
    context.sni_callback = lambda _, name, __: named.append(name)
    probing = Probing()
    async with serve(whole, tls=context) as server:
        async with probing.running(spec(url=f"https://{host}:8443", ca=str(certified / "cert"))):
            probing.replicas.set([at(server, 1, up=False)])
            await until(lambda: probing.to(1))
    assert {row.outcome for row in probing.requests} == {outcome}
    if outcome == Outcome.COMPLETE:
        assert set(named) - {None} == {"gateway.example"}
        assert server.seen[0].headers["host"] == "gateway.example:8443"


# --- the list -------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_reader_that_was_busy_sees_only_the_latest() -> None:
    replicas = Replicas()
    one, two = (Replica(f"u{n}", n, f"p{n}", "10.0.0.1", n) for n in (1, 2))
    seen: list[tuple[Replica, ...]] = []

    async def read(end: Callable[[], bool]) -> None:
        known: tuple[Replica, ...] = ()
        while not end():
            known = await replicas.other_than(known)
            seen.append(known)

    async with anyio.create_task_group() as group:
        group.start_soon(read, lambda: bool(seen) and seen[-1] == (two,))
        await anyio.lowlevel.checkpoint()
        replicas.set([one])
        replicas.set([one])
        replicas.set([one, two])
        await anyio.sleep(0.01)
        replicas.set([two])
    assert seen == [(one, two), (two,)]
