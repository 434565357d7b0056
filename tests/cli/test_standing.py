"""Labs that stand: found, chosen, asked, ended. Against an embedded one that `lab up` keeps."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from chaosrunner.cli import lab_process, lab_status, labs, real_lab
from chaosrunner.cli.labs import Lab
from chaosrunner.cli.main import _run
from chaosrunner.errors import Refused, UserError
from chaosrunner.journal import process
from tests.cli.command import ROOT, chaosrunner

HERE = process.current()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without labs: the machine's own may stand."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(real_lab, "STATE", tmp_path / "real")
    return tmp_path


def note(home: Path, keeper: process.Process, **fields: Any) -> Path:
    folder = home / "chaosrunner" / "labs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.json"
    given = {"kind": "embedded", "state": "/s", "kubeconfig": "/s/kubeconfig", "context": "lab"} | fields
    path.write_text(
        json.dumps(given | {"process": {"pid": keeper.pid, "started": keeper.started, "host": keeper.host}})
    )
    return path


def test_notes_of_dead_labs_are_removed_and_others_left(home: Path) -> None:
    alive = note(home, HERE)
    dead = note(home, process.Process(pid=HERE.pid, started="long ago", host=HERE.host))
    elsewhere = note(home, process.Process(pid=1, started="x", host=HERE.host + "-elsewhere"))
    torn = note(home, HERE)
    torn.write_text('{"kind": "emb')
    assert [lab.state for lab in labs.standing()] == ["/s"]
    assert [path.exists() for path in (alive, dead, elsewhere, torn)] == [True, False, True, False]


def test_a_lab_is_noted_for_as_long_as_it_is_kept(home: Path) -> None:
    lab = Lab(kind="embedded", state="/s", kubeconfig="/s/kubeconfig", context="lab", process=HERE)
    with labs.noted(lab):
        assert labs.standing() == [lab]
        (path,) = (home / "chaosrunner" / "labs").iterdir()
        assert path.stat().st_mode & 0o077 == 0
    assert labs.standing() == []


def test_a_lab_is_kept_where_no_note_can_be_written(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "chaosrunner").write_text("in the way")
    with labs.noted(Lab(kind="embedded", state="/s", kubeconfig="k", context="lab", process=HERE)):
        assert capsys.readouterr().err.startswith("other commands will not find this lab: ")


def test_status_tells_what_a_killed_rehearsal_left(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = home / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "contexts": [{"name": "real", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    told: dict[str, Any] = {"state": "/x", "kubeconfig": str(kubeconfig), "context": "real", "nodes": []}
    for abandoned, line in ((["lab-1", "lab-2"], True), ([], False)):
        monkeypatch.setattr(real_lab, "status", lambda state, left=abandoned: told | {"abandoned": left})
        lab_status.status(None, None, "text")
        assert ("left behind" in (shown := capsys.readouterr().out)) == line
        assert ("namespace lab-1, lab-2: its rehearsal was killed" in shown) == line


def test_which_lab_is_meant(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"^no lab stands; start one with: chaosrunner lab up --real or chaosrunner lab"
    ):
        labs.chosen(None, None)
    with pytest.raises(UserError, match=r"^no embedded lab stands at /x; start one with: chaosrunner lab up$"):
        labs.chosen("embedded", Path("/x"))
    note(home, HERE)
    assert labs.chosen(None, None).state == "/s"
    note(home, HERE, state="/t")
    with pytest.raises(UserError, match=r"^2 labs stand: say which by --state: /s, /t$"):
        labs.chosen(None, None)
    assert labs.chosen(None, Path("/t")).state == "/t"
    told = {"state": "/var/lib/x", "kubeconfig": "k", "context": "real", "pid": 1, "nodes": ["node1"], "cut": ["node1"]}
    monkeypatch.setattr(real_lab, "status", lambda state: told)
    with pytest.raises(UserError, match=r"^an embedded lab and a real one stand: say which by --embedded or --real$"):
        labs.chosen(None, None)
    monkeypatch.setattr(real_lab, "check_machine", lambda: None)
    real = labs.chosen("real", None)
    assert (real.kind, real.nodes, real.cut) == ("real", ["node1"], ["node1"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lab", "exec", "ls"], "no lab stands"),
        (["lab", "cut-node", "node1"], "no lab stands"),
        (["lab", "heal-node", "node1"], "no lab stands"),
        (["lab", "exec"], "Missing argument 'COMMAND...'"),
        (["lab", "up", "--nodes", "0"], "'--nodes': 0 is not in the range 1<=x<=50"),
        (["rehearse", "lab-drain-node", "--state", "/x"], "--state is about the real lab: give --real too"),
    ],
)
def test_a_mistake_gets_one_clear_error(
    home: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["lab", "up", "--real"], ["lab", "exec", "--real", "ls"], ["lab", "cut-node", "--real", "node1"],
        ["lab", "kill-component", "etcd"], ["lab", "down", "--real"], ["rehearse", "--real", "lab-drain-node"],
    ],
)  # fmt: skip
@pytest.mark.parametrize(("user", "message"), [(1000, "a real lab needs root"), (0, "a real lab needs Linux")])
def test_a_real_lab_is_for_root_on_linux(
    home: Path, arguments: list[str], user: int, message: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(sys, "platform", "linux" if user else "darwin")
    assert _run(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_down_without_a_lab_is_no_mistake(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["lab", "down"]) == 0
    assert _run(["lab", "status"]) == 0
    assert capsys.readouterr().out == "no lab stands\nno lab stands\n"
    assert _run(["lab", "status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


# --- what a program says ------------------------------------------------------------------------------------

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the real lab's program is started on Linux only")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of the real lab's program."""

    def put(script: str) -> None:
        monkeypatch.setattr(real_lab, "command", lambda verb, state, *rest: ["sh", "-c", script, verb, *rest])

    return put


@on_linux
def test_progress_is_told_while_it_goes_on(program: Callable[[str], None]) -> None:
    program("echo network >&2; sleep 0.6; echo nodes >&2; echo '{\"pid\": 1}'")
    told: list[tuple[str, float]] = []
    began = time.monotonic()
    answer = real_lab.call("up", None, tell=lambda line: told.append((line, time.monotonic() - began)))
    assert answer == {"pid": 1}
    assert [line for line, _ in told] == ["network", "nodes"]
    assert told[0][1] < 0.6  # before the program ended


@on_linux
@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("echo nodes >&2; echo no runc: install it >&2; exit 2", UserError, "no runc: install it"),
        ("echo nodes >&2; echo etcd ended with code 1 >&2; exit 1", Refused, "the lab failed: etcd ended with code 1"),
        ("echo nodes >&2; kill -KILL $$", Refused, "the lab failed: nodes"),
        ("exit 1", Refused, "the lab failed: it said nothing"),
    ],
)
def test_an_error_is_told_once(
    program: Callable[[str], None], script: str, kind: type[UserError], message: str
) -> None:
    program(script)
    told: list[str] = []
    with pytest.raises(UserError) as caught:
        real_lab.call("up", None, tell=told.append)
    assert (type(caught.value), str(caught.value)) == (kind, message)
    assert told == ["nodes"] * (message != "the lab failed: nodes" and "nodes" in script)


@on_linux
def test_an_interruption_ends_the_program_in_order(program: Callable[[str], None], tmp_path: Path) -> None:
    program(f"trap 'sleep 0.3; touch {tmp_path}/ended; exit 1' TERM; echo begun >&2; while :; do sleep 0.05; done")

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        real_lab.call("up", None, tell=interrupt)
    assert (tmp_path / "ended").exists()


# --- an embedded lab ----------------------------------------------------------------------------------------

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The command line of somebody whose lab stands, kept by a process of its own."""
    home = tmp_path_factory.mktemp("home")
    environ = {"XDG_STATE_HOME": str(home), "TMPDIR": str(home)}

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return chaosrunner(*arguments, **environ)

    up = [sys.executable, "-m", "chaosrunner", "lab", "up", "--nodes", "2", "-o", "json"]
    with subprocess.Popen(
        up, cwd=ROOT, env=os.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as lab:
        try:
            assert lab.stdout is not None
            assert json.loads(lab.stdout.readline())["namespace"] == "lab"
            yield call
        finally:
            down = call("lab", "down", "--embedded")
            assert (down.returncode, lab.wait(20)) == (0, 0), down.stderr
    assert call("lab", "down", "--embedded").stdout == "no lab stands\n"
    assert list(home.glob("chaosrunner-lab-*")) == []
    assert list(home.glob("chaosrunner/labs/*")) == []


@pytest.mark.lab
def test_exec_passes_on_what_the_command_does(command: Command) -> None:
    done = command("lab", "exec", "--embedded", "--", "kubectl", "get", "nodes", "-o", "name")
    assert (done.returncode, done.stdout.split()) == (0, ["node/infra", "node/node1", "node/node2"]), done.stderr
    assert command("lab", "exec", "--embedded", "sh", "-c", "exit 7").returncode == 7
    assert command("lab", "exec", "--embedded", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    done = command("lab", "exec", "--embedded", "sh", "-c", "yes | head -1")
    assert (done.stdout, done.stderr) == ("y\n", "")  # a broken pipe ends a command, as it does in a shell
    done = command("lab", "exec", "--embedded", "no-such-program")
    assert (done.returncode, done.stderr) == (2, "error: no such command: no-such-program\n")


@pytest.mark.lab
def test_exec_gives_the_terminal_to_the_command(command: Command) -> None:
    mine, theirs = pty.openpty()
    environ = os.environ | {"XDG_STATE_HOME": str(_state_home(command))}
    line = [
        sys.executable,
        "-m",
        "chaosrunner",
        "lab",
        "exec",
        "--embedded",
        "sh",
        "-c",
        "tty && read x && echo got $x",
    ]
    with subprocess.Popen(line, cwd=ROOT, env=environ, stdin=theirs, stdout=theirs, stderr=theirs) as shell:
        os.write(mine, b"hello\n")
        assert shell.wait(60) == 0
    said = ""
    while "got hello" not in said:  # a terminal gives it in pieces
        said += os.read(mine, 4096).decode()
    os.close(mine)
    os.close(theirs)
    assert "/dev/pts/" in said


def _state_home(command: Command) -> str:
    """Where the lab of `command` is noted."""
    return command("lab", "exec", "--embedded", "sh", "-c", "printf %s $XDG_STATE_HOME").stdout


@pytest.mark.lab
@pytest.mark.slow
def test_a_node_is_cut_off_and_healed(command: Command) -> None:
    def ready() -> dict[str, bool]:
        (lab,) = json.loads(command("lab", "status", "--embedded", "-o", "json").stdout)
        return {node["name"]: node["ready"] for node in lab["node_states"]}

    def wait_for(expected: bool) -> None:
        deadline = time.monotonic() + 30
        while ready() != {"node1": True, "node2": expected, "infra": True}:
            assert time.monotonic() < deadline, ready()

    wait_for(True)
    assert command("lab", "cut-node", "--embedded", "node2").stdout == "node2 cut off\n"
    wait_for(False)
    text = command("lab", "status", "--embedded").stdout
    assert text.startswith("embedded lab, Kubernetes v1.")
    assert "  node2           not Ready\n" in text
    assert command("lab", "heal-node", "node2", "--embedded").stdout == "node2 healed\n"
    wait_for(True)
    done = command("lab", "cut-node", "--embedded", "node9")
    assert (done.returncode, done.stderr) == (2, "error: no node 'node9'; there are node1, node2, infra\n")


@pytest.mark.lab
def test_the_commands_of_a_drill_find_its_lab(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable that a rehearsal sets for them; cutting off twice changes no more than once."""

    def cut(verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        return chaosrunner("lab", verb, "node1", *options, XDG_STATE_HOME=str(home))

    def noted(log: str) -> list[str]:
        said = [json.loads(line)["what"] for line in Path(log).read_text().splitlines()]
        return [what for what in said if what in ("cut", "healed")]

    async def run() -> str:
        async with lab_process.running_lab({"replicas": 0, "nodes": 1}) as (ready, state):
            here = os.environ[labs.OF_REHEARSAL]
            assert here == ready.state == str(state.resolve())
            for verb, said in (("cut-node", "node1 cut off\n"), ("heal-node", "node1 healed\n")):
                for _ in range(2):
                    done = await to_thread.run_sync(cut, verb)
                    assert (done.returncode, done.stdout) == (0, said), done.stderr
                for asked in ("cut-node", "heal-node"):
                    is_so = await to_thread.run_sync(cut, asked, "--check")
                    assert is_so.returncode == int(asked != verb), is_so.stderr
            assert (await to_thread.run_sync(cut, "cut-node", "--state", here)).returncode == 0
            assert noted(ready.log) == ["cut", "healed", "cut"]
            return here

    gone = anyio.run(run)
    assert labs.OF_REHEARSAL not in os.environ
    monkeypatch.setenv(labs.OF_REHEARSAL, gone)
    done = cut("cut-node")
    assert (done.returncode, done.stderr.startswith(f"error: no lab stands at {gone}; ")) == (2, True), done.stderr


def test_what_a_killed_lab_left_in_its_folder_is_no_lab(home: Path) -> None:
    told = {"kind": "embedded", "state": str(home), "kubeconfig": "k", "context": "lab"}
    (home / labs.READY).write_text(json.dumps(told))
    assert labs.standing("embedded", home) == []
    ledger = home / labs.LEDGER
    ledger.touch()
    assert labs.standing("embedded", home) == []
    with ledger.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [lab.state for lab in labs.standing("embedded", home)] == [str(home)]


@pytest.mark.lab
def test_nodes_are_offered_by_the_shell(command: Command) -> None:
    done = chaosrunner(
        _CHAOSRUNNER_COMPLETE="bash_complete", COMP_WORDS="chaosrunner lab cut-node --embedded n", COMP_CWORD="4",
        XDG_STATE_HOME=_state_home(command),
    )  # fmt: skip
    assert done.stdout.split() == ["plain,node1", "plain,node2"]


@pytest.mark.lab
@pytest.mark.slow
def test_a_state_folder_holds_one_lab(command: Command) -> None:
    (lab,) = json.loads(command("lab", "status", "--embedded", "-o", "json").stdout)
    done = command("lab", "up", "--state", lab["state"])
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: a lab stands at {lab['state']} already; end it with: ")
