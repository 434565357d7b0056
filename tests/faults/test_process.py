"""freeze and kill on the embedded lab, by the same code as on any cluster."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from chaosrunner.cluster import ClusterConfig, connect
from chaosrunner.faults.base import Context, PlanContext
from chaosrunner.faults.ephemeral import Agent, EphemeralContainer
from chaosrunner.faults.network import Network, NetworkEffect, Peers
from chaosrunner.faults.process import Freeze, Kill, Which
from chaosrunner.journal.journal import NAME, Connection, Journal
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from tests.labs import Json, Lab, Namespace, embedded_lab

__all__ = ["embedded_lab"]

pytestmark = [pytest.mark.lab, pytest.mark.anyio]

AGENT = Agent()

PROGRAM = """
import ctypes, os, sys, time
def beat(file):
    while True:
        with open(file, "a") as beats:
            beats.write(".")
        time.sleep(0.02)
if os.fork() == 0:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(15, b"engine-core", 0, 0, 0)
    beat(sys.argv[1] + ".child")
beat(sys.argv[1])
"""


class Place:
    """A Pod whose main process and child each write a dot every 20 ms."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.namespace: Namespace = lab.namespace("process")
        command = ["python3", "-c", PROGRAM, str(folder / "beats")]
        spec = {"containers": [lab.container(command)], "terminationGracePeriodSeconds": 1}
        self.namespace.create("pods", {"metadata": {"name": "p"}, "spec": spec})
        self.namespace.until(lambda: self.beats() and self.beats(".child"), 20)

    def pod(self) -> Json:
        return self.namespace.get("pods/p")

    def beats(self, whose: str = "") -> int:
        try:
            return (self.folder / f"beats{whose}").stat().st_size
        except FileNotFoundError:
            return 0

    def alive(self, whose: str = "") -> bool:
        before = self.beats(whose)
        time.sleep(0.3)
        return self.beats(whose) > before

    @asynccontextmanager
    async def context(self) -> AsyncIterator[tuple[Context, list[rows.Row]]]:
        kubeconfig, emitted = str(self.lab.kubeconfig), list[rows.Row]()
        journal = Journal(self.folder / NAME, run="r1", drill="d", connection=Connection(kubeconfig=kubeconfig))
        config = ClusterConfig(kubeconfig=kubeconfig, namespace=self.namespace.name)
        async with connect(config, Clock()) as cluster:
            yield Context(cluster, journal, emitted.append, "r1", "d"), emitted
        journal.close()


@pytest.fixture
def place(embedded_lab: Lab, tmp_path: Path) -> Iterator[Place]:
    made = Place(embedded_lab, tmp_path)
    yield made
    made.namespace.ask("DELETE", "pods/p", {"gracePeriodSeconds": 1})


async def test_a_frozen_process_stands_still_until_undone(place: Place) -> None:
    async with place.context() as (context, emitted):
        fault = Freeze([place.pod()], Which(), AGENT, duration=60)
        assert (await fault.plan(PlanContext(context.cluster, []))).problems == []
        assert (await fault.apply(context)).result == "ok"
        assert not place.alive()
        assert place.alive(".child")
        assert (await fault.verify(context)).targets[0].bitten
        assert [one.state for one in await fault.undo(context)] == ["undone"]
        assert place.alive()
        assert await fault.verify_undone(context)
        assert [row.event for row in emitted if isinstance(row, rows.Effect)] == ["bitten", "healed"]
        assert await fault.undo(context) == []


async def test_a_frozen_child_goes_on_by_itself(place: Place) -> None:
    async with place.context() as (context, _):
        fault = Freeze([place.pod()], Which(process="engine-core"), AGENT, duration=2)
        began = time.monotonic()
        assert (await fault.apply(context)).result == "ok"
        assert not place.alive(".child")
        assert place.alive()
        place.namespace.until(lambda: place.alive(".child"), 10)
        assert time.monotonic() - began <= 10
        await anyio.sleep(1)
        assert [one.state for one in await fault.undo(context)] == ["already_undone"]


async def test_a_killed_main_process_takes_its_container_along(place: Place) -> None:
    async with place.context() as (context, _):
        fault = Kill([place.pod()], Which(), AGENT)
        assert (await fault.apply(context)).result == "ok"
        seen = await fault.verify(context)
        assert seen.targets[0].bitten
        assert "exit 137" in str(seen.targets[0].detail)
        assert await fault.undo(context) == []


async def test_a_child_that_is_not_there_is_refused(place: Place) -> None:
    async with place.context() as (context, _):
        for fault in (
            Freeze([place.pod()], Which(process="nobody"), AGENT, duration=60),
            Kill([place.pod()], Which(process="nobody"), AGENT),
        ):
            result = await fault.apply(context)
            assert result.result == "failed"
            assert "no child of the main process is called nobody" in str(result.reason)
        assert context.journal.open() == []


async def test_a_container_that_is_not_there_is_told_by_the_plan(place: Place) -> None:
    async with place.context() as (context, _):
        plan = await Kill([place.pod()], Which("sidecar"), AGENT).plan(PlanContext(context.cluster, []))
        assert [(one.severity, one.code) for one in plan.problems] == [("refuse", "no_such_container")]


async def test_rules_in_pods_without_a_network_of_their_own_are_refused_by_the_plan(place: Place) -> None:
    effect = NetworkEffect(kind="partition", duration=5.0)
    async with place.context() as (context, _):
        fault = Network([place.pod()], effect, Peers("everywhere"), [EphemeralContainer(AGENT)])
        plan = await fault.plan(PlanContext(context.cluster, []))
        assert "pod_security" in [one.code for one in plan.problems if one.severity == "refuse"]
    assert "ephemeralContainers" not in place.pod()["spec"]
