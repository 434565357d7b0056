"""Undo after a crash: real processes, killed at chosen instants, against the lab's API server."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import msgspec
import pytest

from chaosrunner.faults.cordon import POINTER, Cordon
from chaosrunner.journal import fields, journal, process
from chaosrunner.journal.finding import annotated
from chaosrunner.journal.journal import Field, Journal
from chaosrunner.journal.recover import recover, recover_annotated
from chaosrunner.journal.undo import undo_all
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from tests.faults.world import Object, World, opener, running

VICTIM = Path(__file__).with_name("victim.py")


def start(world: World, nodes: list[rows.Target], kill: str, run: str = "run-1") -> subprocess.Popen[str]:
    """A process that cordons `nodes` and dies, by its own SIGKILL, where `kill` says."""
    folder = world.folder / "timelines" / "drill" / run
    folder.mkdir(parents=True)
    assert world.connection.kubeconfig is not None
    targets = [f"{node.name}={node.uid}" for node in nodes]
    command = [sys.executable, str(VICTIM), world.connection.kubeconfig, str(folder / journal.NAME), run, kill]
    return subprocess.Popen([*command, *targets], stdout=subprocess.PIPE, text=True)


async def killed(process: subprocess.Popen[str]) -> None:
    assert await anyio.to_thread.run_sync(process.wait) == -signal.SIGKILL
    if process.stdout:
        process.stdout.close()


async def died(world: World, nodes: list[rows.Target], run: str = "run-1") -> None:
    """A run that cordoned `nodes`, whose process is no more (by its journal's word; nothing was killed)."""
    context = world.context(run)
    context.journal._owner = msgspec.structs.replace(process.current(), started="long ago")
    await Cordon(nodes).apply(context)


def journals(world: World) -> list[Path]:
    return journal.find_journals(world.folder / "timelines")


@pytest.mark.anyio
@pytest.mark.parametrize("kill", ["before-call", "after-answer", "after-all"])
async def test_recover_after_sigkill_restores_what_was_and_a_second_one_does_nothing(tmp_path: Path, kill: str) -> None:
    # litmuschaos/litmus-go#520, #667, krkn-chaos/krkn#33: n1 was schedulable, n2 cordoned by an operator before.
    async with running(tmp_path) as world:
        n1, n2 = world.node("n1"), world.node("n2", unschedulable=True)
        before = {name: world.store.get("nodes", name) for name in ("n1", "n2")}
        await killed(start(world, [n1, n2], kill))
        assert world.unschedulable("n1") is (None if kill == "before-call" else True)
        (entry,) = journal.open_entries(journals(world)[0])
        assert entry.target.name == "n1"  # the cordon of a cordoned node changed nothing: nothing to undo

        (result,) = await recover(journals(world), opener)

        assert result.ok
        assert result.state == ("not_applied" if kill == "before-call" else "undone")
        for name, node in before.items():
            now = world.store.get("nodes", name)
            assert (now["spec"], now["metadata"].get("annotations")) == (
                node["spec"],
                node["metadata"].get("annotations"),
            )
        version = world.store.resource_version
        assert await recover(journals(world), opener) == []
        assert world.store.resource_version == version


@pytest.mark.anyio
async def test_a_process_killed_while_the_answer_is_on_its_way_is_recovered(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        n1 = world.node("n1")
        victim = start(world, [n1], "never")

        def changed(kind: str, node: Object, old: Object | None) -> None:
            if "unschedulable" in node["spec"]:
                victim.kill()  # the server has carried the patch out and has not answered yet

        world.store.subscribe("nodes", changed)
        await killed(victim)
        assert world.unschedulable("n1") is True
        assert [state for _, state in journal.read(journals(world)[0])] == ["intent"]
        (result,) = await recover(journals(world), opener)
        assert result.state == "undone"
        assert world.unschedulable("n1") is None


@pytest.mark.anyio
async def test_what_somebody_changed_in_between_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        nodes = [world.node(name) for name in ("n1", "n2", "n3")]
        await died(world, nodes)
        world.schedule("n1", False)  # an operator brought it back
        for wanted in (False, True):  # another one wants the same, and wrote it last
            world.schedule("n2", wanted)
        # Stripped of what tells of us; the API server still names us as the field's only writer.
        world.store.mutate("nodes", "n3", None, lambda node: node["metadata"]["annotations"].clear())

        results = await recover(journals(world), opener)

        assert [(r.target.name, r.state) for r in results] == [
            ("n3", "undone"),
            ("n2", "changed_by_others"),
            ("n1", "already_undone"),
        ]
        assert [world.unschedulable(n) for n in ("n1", "n2", "n3")] == [False, True, None]
        assert fields.notes_of(world.store.get("nodes", "n1")) == []


@pytest.mark.anyio
async def test_an_operators_cordon_between_intent_and_call_is_not_ours_to_undo(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await killed(start(world, [world.node("n1")], "before-call"))
        world.schedule("n1", True)
        (result,) = await recover(journals(world), opener)
        assert result.state == "not_applied"
        assert world.unschedulable("n1") is True


@pytest.mark.anyio
async def test_a_live_run_is_left_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        victim = start(world, [world.node("n1")], "sleep")
        try:
            assert victim.stdout is not None
            while await anyio.to_thread.run_sync(victim.stdout.readline) != "cordoned\n":
                pass
            (result,) = await recover(journals(world), opener)
            assert (result.state, result.ok) == ("left_alone", False)
            assert world.unschedulable("n1") is True
        finally:
            victim.kill()
        await killed(victim)
        assert [r.state for r in await recover(journals(world), opener)] == ["undone"]


@pytest.mark.anyio
async def test_one_cluster_that_cannot_be_reached_does_not_keep_the_others_from_being_undone(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        n1, n2 = world.node("n1"), world.node("n2")
        await died(world, [n1], run="a")
        await died(world, [n2], run="b")
        lost = journals(world)[1]
        text = lost.read_text()
        assert world.connection.kubeconfig is not None
        lost.write_text(text.replace(world.connection.kubeconfig, str(tmp_path / "no-such-file")))

        results = {r.target.name: r for r in await recover(journals(world), opener)}

        assert results["n1"].state == "undone"
        assert results["n2"].state == "undo_failed"
        # chaos-mesh/chaos-mesh#4827: the person who must do it is told how, exactly.
        assert results["n2"].command is not None
        assert "patch node n2 --type=merge" in results["n2"].command
        lost.write_text(text)
        assert [(r.target.name, r.state) for r in await recover(journals(world), opener)] == [("n2", "undone")]


@pytest.mark.anyio
async def test_a_node_that_is_gone_or_made_anew_is_undone_by_removal(tmp_path: Path) -> None:
    # chaos-mesh/chaos-mesh#4827, #2449: a vanished target is no failed undo.
    async with running(tmp_path) as world:
        await died(world, [world.node("n1"), world.node("n2")])
        world.store.delete("nodes", "n1")
        world.store.delete("nodes", "n2")
        world.node("n2", unschedulable=True)
        results = await recover(journals(world), opener)
        assert [r.state for r in results] == ["already_undone", "already_undone"]
        assert all((r.detail or "").startswith("undone_by_removal") for r in results)
        assert world.unschedulable("n2") is True


@pytest.mark.anyio
async def test_the_annotation_is_enough_where_the_journal_is_lost(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await died(world, [world.node("n1"), world.node("n2")])
        known = {entry.entry for entry in journal.open_entries(journals(world)[0])}
        found, unseen = await annotated(world.cluster, world.connection)
        assert unseen == []
        assert {e.entry for e in found} == known
        assert await recover_annotated(world.cluster, world.connection, known=known) == []
        journals(world)[0].unlink()

        results = await recover_annotated(world.cluster, world.connection)

        assert [(r.target.name, r.state) for r in results] == [("n2", "undone"), ("n1", "undone")]
        assert [world.unschedulable(n) for n in ("n1", "n2")] == [None, None]
        assert await annotated(world.cluster, world.connection) == ([], [])


@pytest.mark.anyio
async def test_a_run_on_another_host_is_left_alone_unless_somebody_knows_that_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as world:
        await died(world, [world.node("n1")])
        elsewhere = process.current().host + "-elsewhere"
        monkeypatch.setattr(process.socket, "gethostname", lambda: elsewhere)
        (left,) = await recover(journals(world), opener)
        assert left.state == "left_alone"
        assert world.unschedulable("n1") is True
        (done,) = await recover(journals(world), opener, foreign=True)
        assert done.state == "undone"


@pytest.mark.anyio
async def test_a_run_that_dies_of_an_error_rolls_back_in_its_own_process(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        n1, n2 = world.node("n1"), world.node("n2", unschedulable=True)
        context = world.context()
        applied = await Cordon([n1, n2]).apply(context)
        assert [t.answer for t in applied.targets] == ["accepted", "unchanged"]
        results = await undo_all(world.cluster, context.journal, context.emit)
        assert [(r.target.name, r.state) for r in results] == [("n1", "undone")]
        assert (world.unschedulable("n1"), world.unschedulable("n2")) == (None, True)
        assert await undo_all(world.cluster, context.journal, context.emit) == []
        undo = [row for row in world.actions() if row.undo]
        assert [(row.action, row.target.name) for row in undo] == [("undo_cordon", "n1")]
        assert world.states() == ["intent", "applied", "undone"]


@pytest.mark.anyio
async def test_an_undo_that_fails_is_tried_three_times_then_told_and_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosrunner.journal.undo.PAUSE", 0.01)
    async with running(tmp_path) as world:
        context = world.context()
        await Cordon([world.node("n1")]).apply(context)
    # The cluster is away now.
    async with opener(world.connection) as gone:
        (result,) = await undo_all(gone, context.journal, context.emit)
    assert (result.state, result.ok) == ("undo_failed", False)
    assert result.command is not None
    assert [e.target.name for e in journal.open_entries(context.journal.path)] == ["n1"]


def test_opening_a_journal_in_a_folder_that_cannot_be_written_fails_before_anything_is_changed(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        Journal(tmp_path / "nowhere" / journal.NAME, run="r", drill="d", connection=journal.Connection(), clock=Clock())


@pytest.mark.anyio
async def test_a_call_that_arrives_after_the_undo_looked_is_refused(tmp_path: Path) -> None:
    """Its answer never came, the node was unchanged, and the connection delivers it all the same, later."""
    async with running(tmp_path) as world:
        node = world.node("n1")
        before = world.store.get("nodes", "n1")
        context = world.context()
        changed = [Field(path=POINTER, previous=None, desired=True)]
        entry = await context.journal.intend(fault="cordon", target=node, resource="/api/v1/nodes/n1", fields=changed)
        late = fields.change(before, entry)
        (result,) = await undo_all(world.cluster, context.journal, context.emit)
        assert result.state == "not_applied"
        answer = await world.cluster.request(
            "PATCH", "/api/v1/nodes/n1", body=late, content_type="application/json-patch+json"
        )
        assert answer.status in (409, 422)
        now = world.store.get("nodes", "n1")
        assert (now["spec"], now["metadata"].get("annotations")) == (
            before["spec"],
            before["metadata"].get("annotations"),
        )
