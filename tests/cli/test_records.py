"""report, timeline and runs on recordings that a real writer wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from chaosrunner.cli.filters import KINDS
from chaosrunner.cli.main import cli
from chaosrunner.errors import UserError
from chaosrunner.journal import process
from chaosrunner.journal.journal import Connection, Journal
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.manifest import Check, Host
from tests.cli.command import ROOT
from tests.cli.recordings import tape, write


@pytest.fixture
def timelines(tmp_path: Path) -> Path:
    root = tmp_path / "timelines"
    write(root, "20261129-170000-aaaa", tape().rows)
    write(root, "20261129-180000-bbbb", tape().rows)
    write(root, "20261129-190000-cccc", tape().rows, drill="other")
    return root


def call(*arguments: str | Path, root: Path) -> Result:
    result = CliRunner().invoke(cli, [*map(str, arguments), "--timelines", str(root)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_a_recording_is_found_by_drill_run_id_folder_or_as_the_latest(timelines: Path) -> None:
    for name, run in (
        ("latest", "20261129-190000-cccc"),
        ("chat", "20261129-180000-bbbb"),
        ("20261129-170000-aaaa", "20261129-170000-aaaa"),
        ("chat/20261129-170000-aaaa", "20261129-170000-aaaa"),
        (str(timelines / "chat" / "20261129-170000-aaaa"), "20261129-170000-aaaa"),
    ):
        assert json.loads(call("report", name, "-o", "json", root=timelines).stdout)["run"]["id"] == run


def test_report(timelines: Path, tmp_path: Path) -> None:
    text = call("report", "chat", root=timelines).stdout
    assert text.startswith("FAILED: loss_on_victim == 0\n")
    assert text.endswith(f"recording: {timelines / 'chat' / '20261129-180000-bbbb'}\n")
    assert "\x1b" not in text
    document = call("report", "chat", "-o", "markdown", "--junit", tmp_path / "j.xml", root=timelines).stdout
    assert document.startswith("# chat 20261129-180000-bbbb\n\n**FAILED: loss\\_on\\_victim == 0**\n")
    assert ElementTree.parse(tmp_path / "j.xml").getroot().get("failures") == "1"


def test_a_full_disk_takes_only_the_junit_file(timelines: Path) -> None:
    arguments = ["report", "--timelines", str(timelines)]
    done = CliRunner().invoke(cli, [*arguments, "--junit", "/dev/full"], standalone_mode=False)
    assert (done.return_value, done.stderr) == (2, "error: --junit /dev/full: No space left on device\n")
    assert done.stdout == CliRunner().invoke(cli, arguments).stdout != ""


def test_a_half_recording_still_gives_a_report(tmp_path: Path) -> None:
    write(tmp_path, "r", tape().rows[:6], end=False)
    assert call("report", root=tmp_path).stdout.startswith("INCONCLUSIVE: the recording has no end")


def test_broken_recordings(tmp_path: Path) -> None:
    bad = write(tmp_path, "a", tape().rows)
    (bad / "manifest.json").write_text("{")
    unreadable = write(tmp_path, "b", tape().rows, checks=[Check(expression="loss_on <")])
    lost = write(tmp_path, "c", tape().rows)
    (lost / "rows.jsonl").unlink()
    for arguments, message in (
        (["report", bad], "not a manifest"),
        (["report", unreadable], "the manifest's checks or selector cannot be read"),
        (["timeline", lost], "rows.jsonl is missing"),
        (["report", tmp_path], "neither a recording's folder"),
    ):
        result = CliRunner().invoke(cli, [*map(str, arguments), "--timelines", str(tmp_path / "none")])
        assert isinstance(result.exception, UserError)
        assert message in str(result.exception)
        assert result.stdout == ""
    result = call("runs", "list", root=tmp_path)
    assert "skipped: " in result.stderr
    assert len(result.stdout.splitlines()) == 3


def test_timeline(timelines: Path) -> None:
    lines = call("timeline", root=timelines).stdout.splitlines()
    assert lines[0] == "    0.100  pod              listed a: Running, Ready=True  #1"
    assert [float(line.split()[0]) for line in lines] == sorted(float(line.split()[0]) for line in lines)
    assert "17:00:05.000Z  action           evict a: sent  #" in call("timeline", "--wall", root=timelines).stdout


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--kind", "action"], ["sent", "accepted 201"]),
        (["--kind", "action,run", "--from", "5.005"], ["accepted 201", "ended"]),
        (["--to", "0.5"], ["listed a: Running, Ready=True", "listed b: Running, Ready=True"]),
        (["--lost"], ["aborted, HTTP 200, on a, took 1.20 s, finish_reason abort"]),
        (["--request", "chat-1"], ["chat-1: sent", "complete"]),
        (["--pod", "b", "--kind", "pod"], ["listed b: Running, Ready=True"]),
        (["--grep", "^pod .*deleted"], ["deleted a"]),
        (["--notable"], ["sent", "accepted 201", "aborted", "deleted a", "ended"]),
    ],
)
def test_filters(timelines: Path, filters: list[str], expected: list[str]) -> None:
    lines = call("timeline", *filters, root=timelines).stdout.splitlines()
    assert len(lines) == len(expected)
    assert all(text in line for line, text in zip(lines, expected, strict=True))
    decoded = [
        json.loads(line) for line in call("timeline", *filters, "-o", "json", root=timelines).stdout.splitlines()
    ]
    assert [row["id"] for row in decoded] == [int(line.rpartition("#")[2]) for line in lines]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (["--kind", "acton"], "did you mean action?"),
        (["--grep", "("], "not a regular expression"),
        (["--from", "9", "--to", "3"], "--from 9 is after --to 3"),
    ],
)
def test_filters_that_make_no_sense(timelines: Path, filters: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["timeline", *filters, "--timelines", str(timelines)])
    assert message in str(result.exception)


def test_the_help_names_every_kind() -> None:
    text = " ".join(CliRunner().invoke(cli, ["timeline", "--help"], terminal_width=300).stdout.split())
    assert f"Only these kinds: {', '.join(KINDS)}." in text


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    many = tape()
    for number in range(5000):
        many.request(5.0 + number / 2000, 8.0)
    write(tmp_path, "r", many.rows)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m chaosrunner timeline --timelines {tmp_path} | head -1"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_list(timelines: Path) -> None:
    listed = json.loads(call("runs", "list", "-o", "json", root=timelines).stdout)
    assert [run["run"] for run in listed] == ["20261129-190000-cccc", "20261129-180000-bbbb", "20261129-170000-aaaa"]
    assert (listed[0]["state"], listed[0]["requests"], listed[0]["to_undo"]) == ("ended", 2, 0)
    result = call("runs", "list", root=timelines / "empty")
    assert (result.stdout, result.stderr) == ("", f"no recordings below {timelines / 'empty'}\n")
    assert json.loads(call("runs", "list", "-o", "json", root=timelines / "empty").stdout) == []


def names(root: Path) -> set[str]:
    return {path.name for path in root.glob("*/*")}


def test_prune_keeps_the_newest_of_each_drill(timelines: Path) -> None:
    before = names(timelines)
    told = call("runs", "prune", "--keep", "1", "--dry-run", root=timelines).stdout
    assert told == f"would remove {timelines / 'chat' / '20261129-170000-aaaa'}\n"
    assert names(timelines) == before
    removed = json.loads(call("runs", "prune", "--keep", "1", "-o", "json", root=timelines).stdout)
    assert removed == {"removed": [str(timelines / "chat" / "20261129-170000-aaaa")], "dry_run": False}
    assert names(timelines) == before - {"20261129-170000-aaaa"}
    assert call("runs", "prune", "--keep", "1", root=timelines).stderr == "nothing to remove\n"


def test_prune_by_age(timelines: Path) -> None:
    write(timelines, "old", tape().rows, anchor=1_000_000_000.0)
    call("runs", "prune", "--older-than", "3650d", root=timelines)
    assert "old" not in names(timelines)
    assert len(names(timelines)) == 3


@pytest.mark.anyio
async def test_prune_keeps_what_lives_and_what_is_to_be_undone(tmp_path: Path) -> None:
    here = process.current()
    host = Host(hostname=here.host, pid=here.pid, started=here.started)
    write(tmp_path, "alive", tape().rows[:3], end=False, host=host)
    dead = write(
        tmp_path, "dead", tape().rows[:3], end=False, host=Host(hostname=here.host, pid=2**22 + 1, started="x")
    )
    dirty = write(tmp_path, "dirty", tape().rows)
    journal = Journal(
        dirty / "journal.jsonl", run="dirty", drill="chat", clock=Clock(), emit=lambda row: None,
        connection=Connection(kubeconfig=None, context="c", namespace="n"),
    )  # fmt: skip
    node = rows.Target(kind="Node", name="n1", uid="u")
    await journal.intend(fault="cordon", target=node, resource="nodes", fields=[])
    journal.close()
    listed = {run["run"]: run for run in json.loads(call("runs", "list", "-o", "json", root=tmp_path).stdout)}
    assert {run: row["state"] for run, row in listed.items()} == {
        "alive": "running",
        "dead": "crashed",
        "dirty": "ended",
    }
    assert listed["dirty"]["to_undo"] == 1
    assert "crashed" in call("runs", "list", root=tmp_path).stdout
    call("runs", "prune", "--keep", "0", root=tmp_path)
    assert names(tmp_path) == {"alive", "dirty"}
    assert not dead.exists()


def test_recover_with_nothing_to_do(timelines: Path) -> None:
    assert call("recover", "--yes", root=timelines).stdout == f"nothing to recover below {timelines}\n"
    assert json.loads(call("recover", "--yes", "-o", "json", root=timelines).stdout) == []
