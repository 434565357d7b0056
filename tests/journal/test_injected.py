"""Undo of what an ephemeral container makes: every way in which its Pod, its agent and the healing one can be found."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from chaosrunner.cluster.actions import target_of
from chaosrunner.cluster.resources import PODS
from chaosrunner.faults.ephemeral import Agent
from chaosrunner.faults.process import Freeze, Which
from chaosrunner.journal import fields, injected
from chaosrunner.journal.journal import Entry, Injected, State
from chaosrunner.journal.undo import UndoResult, undo_entry
from tests.faults.world import NAMESPACE, World, running

pytestmark = pytest.mark.anyio

Object = dict[str, Any]
CONTAINER = "chaosrunner-e1"
ENDED = '{"event":"ended","entry":"e1","text":"time limit reached"}\n'


def terminated(code: int, message: str = "") -> Object:
    return {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": message}}


class Place:
    """A Pod of which the test is the kubelet, and an entry that announces a container in it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pod = world.pod("p")

    async def entry(self, *, target: str | None = "engine", state: State = "applied", age: float = 0.0) -> Entry:
        self.context = self.world.context()
        made = await self.context.journal.intend(
            fault="freeze",
            target=target_of(self.pod),
            resource=PODS.path(NAMESPACE, "p"),
            made=Injected(container=CONTAINER, image="chaosrunner/agent:1", target_container=target),
            ends=time.time() + 60,
            name="e1",
        )
        if state != "intent":
            await self.context.journal.mark(made, state)
        return msgspec.structs.replace(made, wall=made.wall - age)

    def put(self, name: str = CONTAINER, state: Object | None = None) -> None:
        added = injected.container(name, ["freeze"], image="chaosrunner/agent:1", pull_policy="Never")
        self.change(lambda obj: obj["spec"].setdefault("ephemeralContainers", []).append(added), "ephemeralcontainers")
        if state is not None:
            self.told(name, state)

    def told(self, name: str, state: Object) -> None:
        """As the kubelet tells of a container."""

        def change(obj: Object) -> None:
            told = [one for one in obj["status"].get("ephemeralContainerStatuses", []) if one["name"] != name]
            obj["status"]["ephemeralContainerStatuses"] = [*told, {"name": name, "state": state}]

        self.change(change, "status")

    def change(self, how: Callable[[Object], None], subresource: str) -> None:
        self.world.store.mutate("pods", "p", NAMESPACE, how, subresource=subresource)

    def names(self) -> list[str]:
        spec = self.world.store.get("pods", "p", NAMESPACE)["spec"]
        return [one["name"] for one in spec.get("ephemeralContainers", [])]

    def kubelet(self, *, heals: bool, delay: float = 0.05) -> None:
        """Runs each healer that comes: it ends the first container, or fails."""

        async def run(name: str) -> None:
            await anyio.sleep(delay)
            if heals:
                self.told(CONTAINER, terminated(0, ENDED))
            self.told(name, terminated(0 if heals else 1))

        known: set[str] = set()

        def changed(kind: str, pod: Object, old: Object | None) -> None:
            for one in pod["spec"].get("ephemeralContainers", []):
                if "-heal" in one["name"] and one["name"] not in known:
                    known.add(one["name"])
                    self.world.tasks.start_soon(run, one["name"])

        self.world.store.subscribe("pods", changed)

    async def undo(self, entry: Entry) -> UndoResult:
        return await undo_entry(self.world.cluster, self.context.journal, entry, self.world.emitted.append)


Case = Callable[[Place], Awaitable[None]]


async def on(folder: Path, case: Case) -> None:
    async with running(folder) as world:
        await case(Place(world))


async def test_a_second_container_ends_it_and_undoing_twice_changes_nothing(tmp_path: Path) -> None:
    async def case(place: Place) -> None:
        entry = await place.entry()
        place.put(state={"running": {}})
        place.kubelet(heals=True)
        assert (await place.undo(entry)).state == "undone"
        assert place.names() == [CONTAINER, f"{CONTAINER}-heal"]
        healer = place.world.store.get("pods", "p", NAMESPACE)["spec"]["ephemeralContainers"][1]
        assert healer["args"] == ["heal", "--entry", "e1"]
        assert healer["targetContainerName"] == "engine"
        assert (await place.undo(entry)).state == "already_undone"
        assert len(place.names()) == 2

    await on(tmp_path, case)


@pytest.mark.parametrize(
    ("state", "target", "wanted", "detail"),
    [
        (terminated(0, ENDED), None, "already_undone", "time limit reached (exit 0)"),
        (terminated(2, '{"event":"refused","text":"no netem"}'), None, "not_applied", "no netem (exit 2)"),
        (terminated(137), "engine", "already_undone", "the kernel lets go what it held"),
    ],
)
async def test_what_has_ended_by_itself_is_left_alone(
    tmp_path: Path, state: Object, target: str | None, wanted: str, detail: str
) -> None:
    async def case(place: Place) -> None:
        entry = await place.entry(target=target)
        place.put(state=state)
        undone = await place.undo(entry)
        assert undone.state == wanted
        assert detail in str(undone.detail)
        assert place.names() == [CONTAINER]

    await on(tmp_path, case)


async def test_a_call_that_was_never_sent_has_nothing_to_undo(tmp_path: Path) -> None:
    async def case(place: Place) -> None:
        entry = await place.entry(state="intent")
        began = anyio.current_time()
        assert (await place.undo(entry)).state == "not_applied"
        assert anyio.current_time() - began >= injected.LATE, "it may have been on its way"
        assert place.names() == []

    await on(tmp_path, case)


async def test_a_call_that_arrives_after_its_sender_died_is_undone(tmp_path: Path) -> None:
    async def case(place: Place) -> None:
        async def arrive() -> None:
            await anyio.sleep(injected.LATE / 2)
            place.put(state={"running": {}})

        entry = await place.entry(state="intent")
        place.kubelet(heals=True)
        place.world.tasks.start_soon(arrive)
        assert (await place.undo(entry)).state == "undone"

    await on(tmp_path, case)


async def test_a_pod_that_is_gone_or_another_by_now_needs_no_undo(tmp_path: Path) -> None:
    # chaos-mesh/chaos-mesh#2449
    async def case(place: Place) -> None:
        entry = await place.entry()
        place.put(state={"running": {}})
        place.world.store.delete("pods", "p", NAMESPACE, grace=0)
        for _ in ("gone", "another"):
            undone = await place.undo(entry)
            assert undone.state == "already_undone"
            assert "undone_by_removal" in str(undone.detail)
            if not place.world.store.find("pods", "p", NAMESPACE):
                place.world.pod("p")

    await on(tmp_path, case)


async def test_a_container_that_never_started_does_nothing_once_it_is_too_late(tmp_path: Path) -> None:
    async def case(place: Place) -> None:
        entry = await place.entry(age=injected.START + 1)
        place.put(state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
        undone = await place.undo(entry)
        assert undone.state == "not_applied"
        assert "ImagePullBackOff: no such image" in str(undone.detail)

    await on(tmp_path, case)


async def test_one_that_is_about_to_start_is_healed_once_it_has(tmp_path: Path) -> None:
    async def case(place: Place) -> None:
        async def start() -> None:
            await anyio.sleep(3 * injected.POLL)
            assert place.names() == [CONTAINER], "a healer that comes first finds nothing"
            place.told(CONTAINER, {"running": {}})

        entry = await place.entry()
        place.put(state={"waiting": {"reason": "ContainerCreating"}})
        place.kubelet(heals=True)
        place.world.tasks.start_soon(start)
        assert (await place.undo(entry)).state == "undone"
        assert len(place.names()) == 2

    await on(tmp_path, case)


async def test_a_healer_that_fails_is_tried_anew_and_then_a_person_is_told_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # chaos-mesh/chaos-mesh#4827: an undo that fails must not pass for one that did not.
    monkeypatch.setattr(injected, "POLL", 0.02)

    async def case(place: Place) -> None:
        entry = await place.entry()
        place.put(state={"running": {}})
        place.kubelet(heals=False, delay=0.0)
        undone = await place.undo(entry)
        assert (undone.state, undone.ok) == ("undo_failed", False)
        assert "the one that ends it" in str(undone.detail)
        assert undone.command == (
            f"kubectl debug -n {NAMESPACE} p --image=chaosrunner/agent:1 --profile=general --target=engine "
            "--attach=false -- /agent heal --entry e1"
        )
        assert len(place.names()) == 1 + 3 * injected.HEALERS

    await on(tmp_path, case)


async def test_where_no_container_may_be_put_a_person_is_told_what_to_type(tmp_path: Path) -> None:
    async def case(place: Place) -> None:
        entry = await place.entry(target=None)
        place.put(state={"running": {}})
        undone = await place.undo(entry)  # this API server takes no container with NET_ADMIN
        assert undone.state == "undo_failed"
        assert "HTTP 403" in str(undone.detail)
        assert undone.command is not None
        assert "--profile=netadmin" in undone.command

    await on(tmp_path, case)


async def test_the_pod_itself_tells_how_to_undo(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        pod = world.pod("p")
        context = world.context()
        fault = Freeze([pod], Which(), Agent("chaosrunner/agent:1"), duration=5)

        def changed(kind: str, obj: Object, old: Object | None) -> None:
            for one in obj["spec"].get("ephemeralContainers", []):
                if "ephemeralContainerStatuses" not in obj["status"]:
                    told = [{"name": one["name"], "state": terminated(0, '{"event":"ended","text":"over"}')}]
                    world.tasks.start_soon(tell, told)

        async def tell(told: list[Object]) -> None:
            world.store.mutate(
                "pods",
                "p",
                NAMESPACE,
                lambda obj: obj["status"].update(ephemeralContainerStatuses=told),
                subresource="status",
            )

        world.store.subscribe("pods", changed)
        assert (await fault.apply(context)).result == "ok"
        (entry,) = context.journal.open()
        (note,) = injected.notes(world.store.get("pods", "p", NAMESPACE))
        found = fields.entry(note, entry.target, entry.resource, entry.connection)
        assert found == entry
