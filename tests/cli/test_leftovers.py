"""What dead runs left changed: the next run refuses, with the way out; recover tells what it could not judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from chaosrunner.cli.main import cli
from chaosrunner.errors import UserError
from chaosrunner.journal import process
from chaosrunner.journal.journal import Connection, Field, Journal
from chaosrunner.timeline import rows
from tests.cli.recordings import tape, write
from tests.cli.test_running import drills as drills
from tests.cli.test_usage import KUBECONFIG

HERE = process.current()
DEAD = process.Process(pid=HERE.pid, started="long ago", host=HERE.host)
ELSEWHERE = process.Process(pid=1, started="x", host=HERE.host + "-elsewhere")


@pytest.fixture
def left(tmp_path: Path) -> Callable[..., Path]:
    """Writes the recording of a run that left a node cordoned, on a cluster that nobody runs."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)

    def leave(run: str, owner: process.Process, server: str | None = None, **manifest: str) -> Path:
        folder = write(tmp_path / "t", run, tape().rows[:3], end=False, **manifest)
        reach = Connection(kubeconfig=str(tmp_path / "kubeconfig"), context="c", namespace="demo", server=server)
        journal = Journal(folder / "journal.jsonl", run=run, drill="chat", connection=reach)
        journal._owner = owner
        node = rows.Target(kind="Node", name="n2", uid="u")
        cordoned = [Field(path="/spec/unschedulable", previous=None, desired=True)]

        async def intend() -> None:
            await journal.intend(fault="cordon", target=node, resource="/api/v1/nodes/n2", fields=cordoned)

        anyio.run(intend)
        journal.close()
        return folder

    return leave


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)), env={"NO_PROXY": "*"})


def test_a_run_is_refused_while_a_dead_one_left_something_changed(drills: Path, left: Callable[..., Path]) -> None:
    left("dead", DEAD)
    left("alive", HERE)
    left("elsewhere", ELSEWHERE)
    left("rehearsed", DEAD, lab="embedded")  # its lab has gone with it
    arguments = ["run", drills / "delete-pod.yaml", "--kubeconfig", drills / "config", "--timelines", drills / "t"]
    told = "run dead of drill chat died and left node/n2 cordoned; put it back with: chaosrunner recover --timelines "
    for more in ([], ["--yes"]):
        done = call(*arguments, *more)
        assert (done.exit_code, done.stdout) == (6, "")
        assert done.stderr.splitlines()[-1] == f"error: {told}{drills / 't'}"
    document = json.loads(call(*arguments, "--yes", "-o", "json").stdout)
    assert document == {
        "drill": "lab-delete-pod",
        "verdict": "refused",
        "reason": told + str(drills / "t"),
        "exit_code": 6,
    }


def test_a_journal_that_cannot_be_read_is_told_and_stops_no_run(drills: Path, left: Callable[..., Path]) -> None:
    (write(drills / "t", "broken", tape().rows) / "journal.jsonl").mkdir()
    done = call(
        "run", drills / "delete-pod.yaml", "--yes", "--kubeconfig", drills / "config", "--timelines", drills / "t"
    )
    assert "the cluster cannot be reached" in done.stderr.splitlines()[-1]
    done = call("recover", "--yes", "--timelines", drills / "t", "-o", "json")
    assert done.exit_code == 5
    (result,) = json.loads(done.stdout)
    assert (result["run"], result["state"]) == ("broken", "undo_failed")
    assert result["detail"].endswith("journal.jsonl cannot be read: Is a directory")


@pytest.mark.parametrize(("owner", "code", "by_hand"), [(HERE, 0, False), (ELSEWHERE, 3, True), (DEAD, 5, True)])
def test_the_exit_code_of_recover(
    owner: process.Process, code: int, by_hand: bool, left: Callable[..., Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("chaosrunner.journal.undo.PAUSE", 0.01)
    left("r", owner)
    done = call("recover", "--yes", "--timelines", tmp_path / "t")
    assert done.exit_code == code, done.output
    assert ("by hand: kubectl " in done.stdout) == by_hand


def test_nothing_counts_as_undone_on_another_cluster(left: Callable[..., Path], tmp_path: Path) -> None:
    left("dead", DEAD, server="https://another.example:6443")
    done = call("recover", "--yes", "--timelines", tmp_path / "t", "-o", "json")
    assert done.exit_code == 5
    (result,) = json.loads(done.stdout)
    assert result["state"] == "undo_failed"
    assert "the run was on https://another.example:6443" in result["detail"]


def test_nothing_is_to_be_undone_of_a_rehearsal(left: Callable[..., Path], tmp_path: Path) -> None:
    left("r", DEAD, lab="embedded")
    assert call("recover", "--yes", "--timelines", tmp_path / "t").stdout.startswith("nothing to recover")
    (run,) = json.loads(call("runs", "list", "-o", "json", "--timelines", tmp_path / "t").stdout)
    assert run["to_undo"] == 0


def test_what_is_on_a_cluster_that_is_gone_can_be_given_up(
    drills: Path, left: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once more, told with the way to do it by hand, and stands in the way of no other run."""
    monkeypatch.setattr("chaosrunner.journal.undo.PAUSE", 0.01)
    left("dead", DEAD)
    timelines = ["--timelines", drills / "t"]
    arguments = ["run", drills / "delete-pod.yaml", "--yes", "--kubeconfig", drills / "config", *timelines]
    assert "run dead of drill chat died and left node/n2 cordoned" in call(*arguments).stderr
    done = call("recover", "--yes", *timelines)
    assert done.exit_code == 5
    gone = "if its cluster, or its Toxiproxy, is gone for good"
    way_out = f"{gone}: chaosrunner recover --timelines {drills / 't'} --forget dead"
    assert done.stderr.splitlines()[-1] == way_out
    done = call("recover", "--yes", "--forget", "dead", *timelines)
    assert (done.exit_code, way_out in done.stderr) == (0, False)
    assert "forgotten  " in done.stdout
    assert "the cluster cannot be reached" in done.stdout
    assert "by hand: kubectl " in done.stdout
    assert done.stdout.endswith("given up: what run dead left stays as it is, should its cluster be there after all\n")
    assert "the cluster cannot be reached: http" in call(*arguments).stderr.splitlines()[-1]
    assert call("recover", "--yes", *timelines).stdout.startswith("nothing to recover")
    assert call("recover", "--yes", "--forget", "dead", *timelines).stdout == "nothing is left of run dead\n"
    (run,) = json.loads(call("runs", "list", "-o", "json", *timelines).stdout)
    assert run["to_undo"] == 0


def test_only_the_run_that_is_named_is_given_up(
    left: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosrunner.journal.undo.PAUSE", 0.01)
    for run, owner in (("dead", DEAD), ("other", DEAD), ("alive", HERE), ("elsewhere", ELSEWHERE)):
        left(run, owner)
    timelines = ["--timelines", tmp_path / "t", "-o", "json"]

    def states(*arguments: str) -> list[tuple[str, str]]:
        return [
            (one["run"], one["state"]) for one in json.loads(call("recover", "--yes", *arguments, *timelines).stdout)
        ]

    assert states("--forget", "alive") == [("alive", "left_alone")]
    assert states("--forget", "elsewhere") == [("elsewhere", "left_alone")]
    assert states("--forget", "dead") == [("dead", "forgotten")]
    assert states("--forget", "elsewhere", "--foreign") == [("elsewhere", "forgotten")]
    assert set(states()) == {("other", "undo_failed"), ("alive", "left_alone")}
    with pytest.raises(UserError, match="no run deed with a journal below "):
        CliRunner().invoke(cli, ["recover", "--yes", "--forget", "deed"], catch_exceptions=False)
