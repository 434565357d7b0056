"""Faults made inside Pods of a real Kubernetes: what a caller sees, how they end, and that nothing of them stays."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from chaosrunner.cluster import ClusterConfig, connect
from chaosrunner.cluster.resources import PODS
from chaosrunner.errors import UserError
from chaosrunner.faults.base import Context, Fault, PlanContext
from chaosrunner.faults.ephemeral import Agent, EphemeralContainer
from chaosrunner.faults.network import Network, NetworkEffect, Peers
from chaosrunner.faults.process import Freeze, Kill, Which
from chaosrunner.journal import injected
from chaosrunner.journal.journal import NAME, Connection, Journal, Reopened
from chaosrunner.journal.undo import undo_all
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from tests.labs import Json, Namespace, RealLab

pytestmark = [pytest.mark.real, pytest.mark.anyio, pytest.mark.timeout(180)]

AGENT = Agent(pull_policy="Never")
PORT = 8000

SERVER = """
import ctypes, mmap, os, socket, threading, time
beats = mmap.mmap(-1, 8)
if os.fork() == 0:
    ctypes.CDLL(None).prctl(15, b"engine-core", 0, 0, 0)
    count = 0
    while True:
        count += 1
        beats[:8] = count.to_bytes(8, "little")
        time.sleep(0.02)

def serve(connection):
    try:
        for line in connection.makefile():
            word, _, number = line.strip().partition(" ")
            if word == "stream":
                while True:
                    connection.sendall(b"x")
                    time.sleep(0.02)
            elif word == "bulk":
                connection.sendall(b"x" * int(number))
            elif word == "beats":
                connection.sendall(beats[:8])
            else:
                connection.sendall(line.encode())
    except OSError:
        pass

def echo():
    packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    packets.bind(("0.0.0.0", 8000))
    while True:
        data, sender = packets.recvfrom(100)
        packets.sendto(data, sender)

threading.Thread(target=echo, daemon=True).start()
listener = socket.create_server(("0.0.0.0", 8000), backlog=100)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@dataclass
class Place:
    """A Pod that serves, and a caller elsewhere: this process, in the lab's network."""

    lab: RealLab
    namespace: Namespace
    name: str
    folder: Path

    def pod(self) -> Json:
        return self.namespace.get(f"pods/{self.name}")

    @property
    def address(self) -> str:
        return str(self.pod()["status"]["podIP"])

    def connect(self, timeout: float = 1.0) -> socket.socket:
        return socket.create_connection((self.address, PORT), timeout)

    def answers(self, timeout: float = 1.0) -> bool:
        try:
            with self.connect(timeout) as made:
                made.sendall(b"hello\n")
                return made.recv(100) == b"hello\n"
        except OSError:
            return False

    def beats(self) -> int:
        """How far the child has counted."""
        with self.connect() as made:
            made.sendall(b"beats\n")
            return int.from_bytes(made.recv(8), "little")

    def process(self, container: str = "main") -> int:
        """A container's first process, as this machine numbers it."""
        status = self.pod()["status"]
        every = status["containerStatuses"] + status.get("ephemeralContainerStatuses", [])
        wanted = next(one["containerID"] for one in every if one["name"] == container).rpartition("/")[2]
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and wanted in (folder / "cgroup").read_text():
                    found.append((int((folder / "stat").read_text().rpartition(")")[2].split()[19]), int(folder.name)))
            except OSError:
                continue
        return min(found)[1]

    def rules(self) -> str:
        """What is set in the Pod's network."""
        enter = ["nsenter", f"--net=/proc/{self.process()}/ns/net"]
        said = [
            subprocess.run([*enter, *command], check=True, capture_output=True, text=True).stdout
            for command in (["nft", "list", "ruleset"], ["tc", "qdisc", "show"])
        ]
        return "".join(said[0] + "\n".join(line for line in said[1].splitlines() if " noqueue 0: " not in line))

    def injected(self) -> list[tuple[str, int | None]]:
        """Ephemeral containers and their exit codes."""
        told = self.pod()["status"].get("ephemeralContainerStatuses", [])
        return [(one["name"], one["state"].get("terminated", {}).get("exitCode")) for one in told]


@pytest.fixture
def place(real_lab: RealLab, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """With a parameter: more of the Pod's spec."""
    namespace = real_lab.namespace("injected")
    probe = {"tcpSocket": {"port": PORT}, "periodSeconds": 1, "failureThreshold": 1}
    container = real_lab.container(["python3", "-c", SERVER], PORT, readinessProbe=probe)
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    spec |= getattr(request, "param", {})
    namespace.create("pods", {"metadata": {"name": "server"}, "spec": spec})
    made = Place(real_lab, namespace, "server", tmp_path)
    namespace.until(lambda: is_ready(made.pod()), 60, "the Pod does not become Ready")
    yield made
    namespace.ask("DELETE", "pods/server", {"gracePeriodSeconds": 0})


def read_on(stream: socket.socket) -> None:
    while stream.recv(1000):
        pass


def is_ready(pod: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


@dataclass
class Run:
    context: Context
    emitted: list[rows.Row]

    def seen(self) -> list[str]:
        return [row.event for row in self.emitted if isinstance(row, rows.Effect)]


@asynccontextmanager
async def running(place: Place) -> AsyncIterator[Run]:
    clock, emitted = Clock(), list[rows.Row]()
    config = ClusterConfig(kubeconfig=str(place.lab.kubeconfig), namespace=place.namespace.name)
    journal = Journal(
        place.folder / NAME, run="r1", drill="d", connection=Connection(kubeconfig=str(place.lab.kubeconfig))
    )
    async with connect(config, clock) as cluster:
        yield Run(Context(cluster, journal, emitted.append, "r1", "d"), emitted)
    journal.close()


def network(place: Place, kind: Any, *, peer: str | None = None, keep_ready: bool = True, **effect: Any) -> Network:
    peers = Peers("everywhere") if peer is None else Peers(peer, (peer,))
    made = NetworkEffect(kind=kind, **{"duration": 60.0, "ports": (PORT,), **effect})
    return Network([place.pod()], made, peers, [EphemeralContainer(AGENT)], keep_ready=keep_ready)


async def begin(run: Run, fault: Fault) -> None:
    preview = await fault.plan(PlanContext(run.context.cluster, []))
    assert preview.problems == []
    assert preview.undo == "restore"
    result = await fault.apply(run.context)
    assert result.result == "ok", result


async def end(run: Run, fault: Fault) -> None:
    assert [one.state for one in await fault.undo(run.context)] == ["undone"]
    assert await fault.verify_undone(run.context)
    assert run.seen()[-1] == "healed"


async def test_a_partition_silences_what_lives_and_is_undone_before_its_time(place: Place) -> None:
    async with running(place) as run:
        with place.connect() as stream:
            stream.sendall(b"stream\n")
            assert stream.recv(100)
            fault = network(place, "partition")
            await begin(run, fault)
            stream.settimeout(1)
            with pytest.raises(TimeoutError):
                read_on(stream)
            assert not place.answers()
            assert (await fault.verify(run.context)).targets[0].bitten
            await anyio.sleep(2)
            assert is_ready(place.pod()), "the kubelet's probes are let through"
            await end(run, fault)
            stream.settimeout(10)
            assert stream.recv(1000), "the connection has outlived it"
        assert place.answers()
        assert place.rules() == ""
        assert [code for _, code in place.injected()] == [0, 0]


async def test_an_isolated_pod_is_not_ready_any_more(place: Place) -> None:
    async with running(place) as run:
        fault = network(place, "partition", keep_ready=False)
        await begin(run, fault)
        place.namespace.until(lambda: not is_ready(place.pod()), 10)
        await end(run, fault)
        place.namespace.until(lambda: is_ready(place.pod()), 10)


async def test_reject_resets_what_lives_and_refuses_what_is_new(place: Place) -> None:
    async with running(place) as run:
        with place.connect() as stream:
            stream.sendall(b"stream\n")
            assert stream.recv(100)
            fault = network(place, "reject")
            await begin(run, fault)
            with pytest.raises(ConnectionResetError):
                read_on(stream)
        with pytest.raises(ConnectionRefusedError):
            place.connect()
        assert (await fault.verify(run.context)).targets[0].bitten
        await end(run, fault)
        assert place.answers()


async def test_loss_is_as_large_as_asked_for(place: Place) -> None:
    async with running(place) as run:
        fault = network(place, "loss", percent=20.0, direction="in")
        await begin(run, fault)
        sent, came = 1000, 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets:
            packets.connect((place.address, PORT))
            packets.settimeout(0.05)
            for _ in range(sent):
                packets.send(b"x")
                try:
                    came += len(packets.recv(10))
                except TimeoutError:
                    pass
        # Six standard deviations of a binomial distribution.
        assert abs(sent - came - 0.2 * sent) <= 6 * math.sqrt(sent * 0.2 * 0.8)
        assert (await fault.verify(run.context)).targets[0].bitten
        await end(run, fault)
        assert place.rules() == ""


async def test_no_more_comes_through_than_the_rate(place: Place) -> None:
    rate, size = 4e6, 1_500_000
    async with running(place) as run:
        fault = network(place, "rate", bits_per_second=rate, direction="out")
        await begin(run, fault)
        with place.connect(10) as made:
            made.sendall(f"bulk {size}\n".encode())
            began, came = time.monotonic(), 0
            while came < size:
                came += len(made.recv(1 << 20))
        assert 0.8 * size * 8 / rate <= time.monotonic() - began <= 1.5 * size * 8 / rate
        assert (await fault.verify(run.context)).targets[0].bitten
        await end(run, fault)


async def test_what_leaves_has_one_fate_and_what_comes_may_have_two(place: Place) -> None:
    async with running(place) as run:
        first = network(place, "rate", bits_per_second=1e6, direction="out")
        await begin(run, first)
        with pytest.raises(UserError, match="server is hit already by rate of the same packets on their way out"):
            await network(place, "partition").apply(run.context)
        second, third = network(place, "loss", percent=20.0, direction="in"), network(place, "partition", ports=(1,))
        for fault in (second, third):
            await begin(run, fault)
        for fault in (first, second, third):
            await end(run, fault)
        assert place.rules() == ""
        assert place.answers()


async def test_a_kernel_without_netem_is_one_clear_error_and_nothing_stays(place: Place) -> None:
    async with running(place) as run:
        fault = network(place, "latency", seconds=0.1)
        result = await fault.apply(run.context)
        if result.result == "ok":
            await end(run, fault)
            pytest.skip("this kernel has netem")
        assert result.result == "failed"
        assert "the node's kernel has no netem (module sch_netem), which this fault needs" in str(result.reason)
        assert run.context.journal.open() == []
        assert await fault.undo(run.context) == []
        assert place.rules() == ""
        assert place.answers()


async def test_it_ends_by_itself_when_nobody_undoes_it(place: Place) -> None:
    async with running(place) as run:
        fault = network(place, "partition", duration=4.0)
        await begin(run, fault)
        began = time.monotonic()
        assert not place.answers()
        place.namespace.until(place.answers, 10)
        assert time.monotonic() - began <= 4 + 2
        # The kubelet has not told of it yet: no second container is put into the Pod for that.
        assert [one.state for one in await fault.undo(run.context)] == ["already_undone"]
        assert [code for _, code in place.injected()] == [0]
        assert place.rules() == ""


async def test_it_ends_by_itself_when_its_agent_is_killed_and_undo_clears_what_is_left(place: Place) -> None:
    async with running(place) as run:
        fault = network(place, "partition", duration=6.0)
        await begin(run, fault)
        began = time.monotonic()
        (name, _) = place.injected()[0]
        os.kill(place.process(name), signal.SIGKILL)
        assert not place.answers(0.5)
        place.namespace.until(lambda: place.injected()[0][1] == 137, 10)
        place.namespace.until(place.answers, 10)
        assert time.monotonic() - began <= 6 + 2
        assert "chaosrunner_" in place.rules()
        assert [one.state for one in await fault.undo(run.context)] == ["undone"]
        assert await fault.verify_undone(run.context)
        assert place.rules() == ""


async def test_undo_finds_the_rules_after_the_container_was_restarted(place: Place) -> None:
    # chaos-mesh/chaos-mesh#4827: the network outlives the container, and so would the fault.
    async with running(place) as run:
        fault = network(place, "partition")
        await begin(run, fault)
        os.kill(place.process(), signal.SIGKILL)
        place.namespace.until(lambda: place.pod()["status"]["containerStatuses"][0]["restartCount"] == 1, 20)
        place.namespace.until(lambda: is_ready(place.pod()), 20)
        assert not place.answers()
        await end(run, fault)
        assert place.answers()


async def test_a_pod_that_is_gone_needs_no_undo(place: Place) -> None:
    # chaos-mesh/chaos-mesh#2449
    async with running(place) as run:
        fault = network(place, "partition")
        await begin(run, fault)
        place.namespace.do("DELETE", "pods/server", {"gracePeriodSeconds": 0})
        place.namespace.until(lambda: place.namespace.ask("GET", "pods/server").status == 404, 20)
        (undone,) = await fault.undo(run.context)
        assert (undone.state, undone.ok) == ("already_undone", True)
        assert "undone_by_removal" in str(undone.detail)
        assert await fault.verify_undone(run.context)


async def test_what_a_killed_run_left_is_found_in_the_journal_and_in_the_pod(place: Place) -> None:
    async with running(place) as run:
        await begin(run, network(place, "partition"))
        (note,) = injected.notes(place.pod())
        (entry,) = run.context.journal.open()
        assert (note.entry, note.made, note.run) == (entry.entry, entry.made, "r1")
    async with running(place) as run:
        ledger = Reopened(place.folder / NAME)
        assert [one.state for one in await undo_all(run.context.cluster, ledger, run.emitted.append)] == ["undone"]
        assert ledger.open() == []
        assert place.answers()
        assert place.rules() == ""


async def test_a_frozen_process_answers_nobody_and_goes_on(place: Place) -> None:
    async with running(place) as run:
        fault = Freeze([place.pod()], Which(), AGENT, duration=30)
        await begin(run, fault)
        assert not place.answers(0.5)
        assert (await fault.verify(run.context)).targets[0].bitten
        await end(run, fault)
        assert place.answers()
        short = Freeze([place.pod()], Which(), AGENT, duration=3)
        await begin(run, short)
        began = time.monotonic()
        place.namespace.until(place.answers, 10)
        assert time.monotonic() - began <= 3 + 2


async def test_a_frozen_child_stands_still_while_its_parent_answers(place: Place) -> None:
    async with running(place) as run:
        fault = Freeze([place.pod()], Which(process="engine-core"), AGENT, duration=30)
        await begin(run, fault)
        counted = place.beats()
        await anyio.sleep(0.3)
        assert place.beats() == counted
        await end(run, fault)
        assert place.beats() > counted


@pytest.mark.parametrize("place", [{"shareProcessNamespace": True}], indirect=True)
async def test_a_pod_that_shares_its_processes_loses_the_named_container_alone(place: Place) -> None:
    async with running(place) as run:
        frozen = Freeze([place.pod()], Which(), AGENT, duration=30)
        await begin(run, frozen)
        assert not place.answers(0.5)
        await end(run, frozen)
        assert place.answers()
        killed = Kill([place.pod()], Which(), AGENT)
        assert (await killed.apply(run.context)).result == "ok"
        assert (await killed.verify(run.context)).targets[0].bitten
        place.namespace.until(place.answers, 20)
        assert place.pod()["status"]["containerStatuses"][0]["restartCount"] == 1


async def test_a_killed_process_takes_its_container_along(place: Place) -> None:
    async with running(place) as run:
        fault = Kill([place.pod()], Which(), AGENT)
        result = await fault.apply(run.context)
        assert result.result == "ok", result
        seen = await fault.verify(run.context)
        assert seen.targets[0].bitten
        assert "exit 137" in str(seen.targets[0].detail)
        place.namespace.until(place.answers, 20)
        assert place.pod()["status"]["containerStatuses"][0]["restartCount"] == 1
        assert await fault.undo(run.context) == []


async def test_a_killed_child_leaves_its_parent_answering(place: Place) -> None:
    async with running(place) as run:
        fault = Kill([place.pod()], Which(process="engine-core"), AGENT)
        assert (await fault.apply(run.context)).result == "ok"
        assert (await fault.verify(run.context)).targets[0].bitten
        counted = place.beats()
        await anyio.sleep(0.2)
        assert place.beats() == counted
        assert place.pod()["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_a_child_that_is_not_there_is_refused_with_the_names_of_those_that_are(place: Place) -> None:
    async with running(place) as run:
        result = await Kill([place.pod()], Which(process="nobody"), AGENT).apply(run.context)
        assert result.result == "failed"
        assert "no child of the main process is called nobody" in str(result.reason)
        assert "engine-core" in str(result.reason)


async def test_pod_security_that_forbids_it_is_found_beforehand(place: Place) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    place.namespace.patch(f"/api/v1/namespaces/{place.namespace.name}", label)
    async with running(place) as run:
        plan = PlanContext(run.context.cluster, [])
        for fault in (network(place, "partition"), Kill([place.pod()], Which(), AGENT)):
            (problem,) = (await fault.plan(plan)).problems
            assert (problem.severity, problem.code) == ("refuse", "pod_security")
            assert "enforce=privileged" in str(problem.how)
    assert "ephemeralContainers" not in place.pod()["spec"]


async def test_an_image_that_no_node_has_is_told_and_nothing_comes_later(place: Place) -> None:
    async with running(place) as run:
        agent = Agent("chaosrunner/agent:nowhere", "Never")
        effect = NetworkEffect(kind="partition", duration=30.0)
        fault = Network([place.pod()], effect, Peers("everywhere"), [EphemeralContainer(agent)])
        result = await fault.apply(run.context)
        assert result.result == "failed"
        assert "ErrImageNeverPull" in str(result.reason)
        (entry,) = run.context.journal.open()
        answer = await run.context.cluster.get(PODS, "server", place.namespace.name)
        assert injected.status(answer.body, f"chaosrunner-{entry.entry}").phase == "waiting"
