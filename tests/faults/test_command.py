"""The user's own commands as a fault: what they are told, what becomes of those that fail, hang or outlive us."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from chaosrunner.cluster import ClusterConfig, connect
from chaosrunner.faults.base import Context, PlanContext
from chaosrunner.faults.command import Command, Commands
from chaosrunner.journal import process, ran
from chaosrunner.journal.journal import NAME, Connection, Journal, Ran, Reopened
from chaosrunner.journal.undo import undo_all
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from tests.faults.killed import begun, kill_after
from tests.faults.world import World, running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path) as world:
        yield world


def sh(text: str) -> tuple[str, ...]:
    return ("sh", "-c", text)


def switch(file: Path) -> Commands:
    """A change that is a file."""
    return Commands(
        apply=("touch", f"{file}-{{{{ pod }}}}"),
        verify=("test", "-e", f"{file}-{{{{ pod }}}}"),
        undo=("rm", "-f", f"{file}-{{{{ pod }}}}"),
        verify_undone=("test", "!", "-e", f"{file}-{{{{ pod }}}}"),
    )


def effects(world: World) -> list[tuple[str, str]]:
    return [(row.event, row.by) for row in world.emitted if isinstance(row, rows.Effect)]


async def comes(condition: Callable[[], bool], within: float = 3.0) -> bool:
    with anyio.move_on_after(within):
        while True:
            if condition():
                return True
            await anyio.sleep(0.02)
    return False


async def gone(pid: int, within: float = 3.0) -> bool:
    return await comes(lambda: process.start_time(pid) is None, within)


def names(folder: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


async def test_commands_make_look_at_and_undo_a_change(world: World, tmp_path: Path) -> None:
    context, file = world.context(), tmp_path / "changed"
    fault = Command([world.pod("chat-1"), world.pod("chat-2")], switch(file))
    preview = await fault.plan(PlanContext(world.cluster, []))
    assert (preview.problems, preview.undo) == ([], "restore")
    assert [touch.reason for touch in preview.touches] == [f"touch {file}-chat-1", f"touch {file}-chat-2"]
    assert preview.stays is not None
    applied = await fault.apply(context)
    assert (applied.result, [target.expected for target in applied.targets]) == ("ok", [True, True])
    assert names(tmp_path, "changed-*") == ["changed-chat-1", "changed-chat-2"]
    verified = await fault.verify(context)
    assert [target.bitten for target in verified.targets] == [True, True]
    assert [result.state for result in await fault.undo(context)] == ["undone", "undone"]
    assert await fault.verify_undone(context)
    assert names(tmp_path, "changed-*") == []
    assert await fault.undo(context) == []
    assert effects(world) == [("bitten", "verify")] * 2 + [("healed", "verify_undone")] * 2
    calls = [(row.action, row.undo, row.ok) for row in world.actions("answered")]
    assert calls == [("command_apply", False, True)] * 2 + [("command_undo", True, True)] * 2


async def test_a_command_is_told_what_it_is_about(world: World, tmp_path: Path) -> None:
    out = tmp_path / "said"
    words = ("{{ pod }}", "{{node}}", "{{ ip }}", "{{ namespace }}", "{{ context }}", "{{ kubeconfig }}", "$HOME; *")
    script = "import json, os, sys; json.dump([sys.argv[2:], dict(os.environ)], open(sys.argv[1], 'w'))"
    fault = Command(
        [world.pod("chat-1", node="n7")],
        Commands(apply=(sys.executable, "-c", script, str(out), *words), environment={"REGION": "eu"}),
    )
    await fault.apply(world.context())
    told, variables = json.loads(out.read_text())
    kubeconfig = world.connection.kubeconfig
    # No shell has read it.
    assert told == ["chat-1", "n7", "127.0.0.9", "demo", "lab", kubeconfig, "$HOME; *"]
    assert (variables["REGION"], variables[ran.VERB]) == ("eu", "apply")
    assert len(variables[ran.ENTRY]) == 12


async def test_what_has_no_undo_is_not_undone(world: World, tmp_path: Path) -> None:
    context = world.context()
    fault = Command([world.pod("chat-1")], Commands(apply=("touch", str(tmp_path / "x"))))
    assert (await fault.plan(PlanContext(world.cluster, []))).undo == "none"
    assert (await fault.apply(context)).result == "ok"
    assert [target.bitten for target in (await fault.verify(context)).targets] == [None]
    assert await fault.undo(context) == []
    assert await fault.verify_undone(context)
    assert (tmp_path / "x").exists()


async def test_a_command_that_fails_is_undone_all_the_same(world: World, tmp_path: Path) -> None:
    context, file = world.context(), tmp_path / "half"
    commands = Commands(apply=sh(f"touch {file}; echo no such machine >&2; exit 3"), undo=("rm", str(file)))
    fault = Command([world.pod("chat-1"), world.pod("chat-2")], commands)
    result = await fault.apply(context)
    assert result.result == "failed"
    assert result.reason == "apply for chat-1: exit code 3: no such machine"
    assert len(result.targets) == 1
    assert [each.state for each in await fault.undo(context)] == ["undone"]
    assert not file.exists()


async def test_a_command_that_cannot_start_changed_nothing(world: World) -> None:
    context = world.context()
    fault = Command([world.pod("chat-1")], Commands(apply=("no-such-program", "x"), undo=("true",)))
    assert [each.code for each in (await fault.plan(PlanContext(world.cluster, []))).problems] == ["no_such_program"]
    result = await fault.apply(context)
    assert result.reason == "apply for chat-1: no-such-program cannot be started: No such file or directory"
    assert await fault.undo(context) == []
    assert world.states() == ["intent", "not_applied"]


async def test_a_plan_knows_what_can_be_filled_in(world: World) -> None:
    pod = world.pod("chat-1", node="")
    commands = Commands(apply=("true", "{{ node }}"), undo=("true", "{{ zone }}"))
    problems = (await Command([pod, pod], commands).plan(PlanContext(world.cluster, []))).problems
    assert [(each.severity, each.code) for each in problems] == [
        ("refuse", "nothing_to_fill_in"),
        ("refuse", "unknown_template"),
    ]


async def test_where_orphans_cannot_be_found_plan_and_undo_say_so(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: a command that outlives its runner is nobody's to end there."""
    context, fault = world.context(), Command([world.pod("chat-1")], switch(tmp_path / "changed"))
    begun_only = Ran(undo=("true",), timeout=5.0, folder=str(tmp_path))
    target, told = rows.Target(kind="Pod", name="chat-1"), []
    (tmp_path / "linux" / "self").mkdir(parents=True)
    (tmp_path / "linux" / "self" / "environ").touch()
    for proc in ("linux", "none"):
        monkeypatch.setattr(ran, "PROC", tmp_path / proc)
        await context.journal.intend(fault="command", target=target, made=begun_only)
        (result,) = await undo_all(world.cluster, context.journal, world.emitted.append)
        planned = await fault.plan(PlanContext(world.cluster, []))
        told.append((result.state, result.detail, [(each.severity, each.text) for each in planned.problems]))
    assert told == [("undone", None, []), ("undone", ran.UNSEEN, [("warn", ran.UNSEEN)])]
    bare = Command(fault.pods, Commands(apply=("true",)))
    assert (await bare.plan(PlanContext(world.cluster, []))).problems == []


async def test_a_command_that_hangs_is_killed_with_its_children(world: World, tmp_path: Path) -> None:
    context, child = world.context(), tmp_path / "child"
    commands = Commands(
        apply=sh(f"trap '' TERM; sleep 60 & echo $! > {child}; echo waiting; wait"), undo=("true",), timeout=0.5
    )
    fault = Command([world.pod("chat-1")], commands)
    began = anyio.current_time()
    result = await fault.apply(context)
    assert anyio.current_time() - began < 5
    assert result.reason == "apply for chat-1: killed after 0.5 s: waiting"
    assert await gone(int(child.read_text()))
    assert [each.state for each in await fault.undo(context)] == ["undone"]


async def test_an_abort_ends_the_command_and_what_it_did(world: World, tmp_path: Path) -> None:
    context, file, child = world.context(), tmp_path / "on", tmp_path / "child"
    commands = Commands(apply=sh(f"touch {file}; echo $$ > {child}; sleep 60"), undo=("rm", "-f", str(file)))
    fault = Command([world.pod("chat-1")], commands)
    async with anyio.create_task_group() as group:
        group.start_soon(fault.apply, context)
        assert await comes(lambda: child.exists() and child.read_text() != "")
        group.cancel_scope.cancel()
    assert await gone(int(child.read_text()))
    assert [each.state for each in await fault.undo(context)] == ["undone"]
    assert not file.exists()


async def test_a_process_that_a_command_leaves_does_not_keep_it(world: World, tmp_path: Path) -> None:
    """A child holds the output open; whatever it is, it is the user's."""
    child = tmp_path / "child"
    commands = Commands(apply=sh(f"sleep 60 & echo $! > {child}; echo done"), undo=sh(f"kill $(cat {child})"))
    fault, context = Command([world.pod("chat-1")], commands), world.context()
    began = anyio.current_time()
    result = await fault.apply(context)
    assert anyio.current_time() - began < 5
    assert (result.result, result.targets[0].detail) == ("ok", "exit code 0: done")
    assert not await gone(int(child.read_text()), 0.1)
    assert [each.state for each in await fault.undo(context)] == ["undone"]
    assert await gone(int(child.read_text()))


async def test_undo_is_tried_again(world: World, tmp_path: Path) -> None:
    count = tmp_path / "count"
    commands = Commands(apply=("true",), undo=sh(f"echo x >> {count}; test $(wc -l < {count}) -ge 3"))
    fault, context = Command([world.pod("chat-1")], commands), world.context()
    await fault.apply(context)
    assert [each.state for each in await fault.undo(context)] == ["undone"]
    assert len(count.read_text().split()) == 3


async def test_an_undo_that_fails_says_so_and_how_to_do_it(world: World, tmp_path: Path) -> None:
    file = tmp_path / "on"
    commands = Commands(
        apply=("touch", str(file)),
        undo=("true",),
        verify_undone=("test", "!", "-e", str(file)),
        environment={"A": "b c"},
    )
    fault, context = Command([world.pod("chat-1")], commands), world.context()
    await fault.apply(context)
    (result,) = await fault.undo(context)
    assert (result.state, result.detail) == ("undo_failed", "verify_undone: exit code 1")
    assert result.command is not None
    assert result.command.endswith("CHAOSRUNNER_VERB=undo 'A=b c' true")
    assert (await anyio.run_process(["sh", "-c", result.command], check=False)).returncode == 0
    assert not await fault.verify_undone(context)
    assert effects(world) == [("not_healed", "verify_undone")]


async def test_a_fault_that_did_not_bite_is_inconclusive(world: World) -> None:
    fault = Command([world.pod("chat-1")], Commands(apply=("true",), verify=sh("echo still up; exit 1")))
    context = world.context()
    await fault.apply(context)
    result = await fault.verify(context)
    assert result.result == "inconclusive"
    assert result.reason == "the fault did not bite: verify for chat-1: exit code 1: still up"
    assert effects(world) == [("not_bitten", "verify")]


async def test_what_a_command_prints_is_kept_without_credentials(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_API_KEY", "sesame-open-up")
    says = 'echo "using $CLOUD_API_KEY, Authorization: Bearer abc.def.ghi"; exit 1'
    fault, context = Command([world.pod("chat-1")], Commands(apply=sh(says), undo=("true",))), world.context()
    result = await fault.apply(context)
    assert result.reason == "apply for chat-1: exit code 1: using [redacted], Authorization: Bearer [redacted]"
    await fault.undo(context)
    assert "sesame" not in context.journal.path.read_text()


async def test_only_the_end_of_much_output_is_kept(world: World) -> None:
    fault = Command([world.pod("chat-1")], Commands(apply=sh("yes x | head -c 3000000; echo the end; exit 1")))
    result = await fault.apply(world.context())
    detail = result.targets[0].detail
    assert detail is not None
    assert detail.endswith("the end")
    assert len(detail) < ran.TAIL + 100


async def victim(kubeconfig: str, folder: str, slow: str) -> None:
    """Makes a change that takes its time."""
    async with connect(ClusterConfig(kubeconfig=kubeconfig, context="lab"), Clock()) as cluster:
        connection = Connection(kubeconfig=kubeconfig, context="lab")
        journal = Journal(Path(folder) / NAME, run="r", drill="d", connection=connection)
        context = Context(cluster=cluster, journal=journal, emit=lambda _: None, run="r", drill="d")
        pod = {"metadata": {"name": "chat-1", "namespace": "demo", "uid": "u"}}
        commands = Commands(apply=sh(f"sleep {slow}; touch {folder}/on"), undo=("rm", "-f", f"{folder}/on"))
        begun()
        await Command([pod], commands).apply(context)
        await anyio.sleep_forever()


@pytest.mark.skipif(not ran.sees_orphans(), reason="orphans are known by /proc")
@pytest.mark.parametrize(
    ("slow", "after"),
    [
        ("2", 0.5),
        pytest.param("0", 0.5, marks=pytest.mark.slow),
        pytest.param("0.3", 0.0, marks=pytest.mark.slow),
        ("0.3", 0.05),
        pytest.param("0.3", 0.3, marks=pytest.mark.slow),
    ],
)
async def test_what_a_killed_run_began_is_ended_and_undone_by_another_process(
    world: World, tmp_path: Path, slow: str, after: float
) -> None:
    folder = tmp_path / "killed"
    folder.mkdir()
    await kill_after(after, "test_command", str(world.connection.kubeconfig), str(folder), slow)
    results = await undo_all(world.cluster, Reopened(folder / NAME), world.emitted.append)
    assert [result.state for result in results] in (["undone"], [])
    await anyio.sleep(float(slow))
    assert not (folder / "on").exists()
