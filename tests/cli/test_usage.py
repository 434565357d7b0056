"""Bad usage: one clear error on standard error, nothing on standard output, the right exit code, no traceback."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from chaosrunner.cli.main import cli
from chaosrunner.cli.options import check_target
from chaosrunner.errors import UserError
from tests.cli.command import chaosrunner

EVICT = "lab-evict-one-replica"

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
"""


def wrong(*arguments: str) -> str:
    """The message with which the command refuses these arguments."""
    result: Result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    error = result.exception
    assert isinstance(error, UserError | click.UsageError), (result.output, error)
    assert result.stdout == ""
    assert error.exit_code == 2
    return error.format_message() if isinstance(error, click.UsageError) else str(error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reherse"], "no such command: reherse (did you mean rehearse?)"),
        (["zzz"], "known: rehearse, init, validate"),
        (["runs", "lst"], "did you mean list?"),
        (["rehearse", EVICT.replace("replica", "replca")], f'did you mean "{EVICT}"?'),
        (["rehearse", f"drills/{EVICT}.yml"], f'did you mean "{EVICT}.yaml"?'),
        (["rehearse", "."], ".: no *.yaml in this folder"),
        (["rehearse", EVICT, "-p", "baseline"], "-p baseline: write -p NAME=VALUE"),
        (["rehearse", EVICT, "-p", "hold=1s", "-p", "hold=2s"], "hold is given twice"),
        (["rehearse", EVICT, "-p", "baselin=3s"], 'did you mean "baseline"?'),
        (["rehearse", EVICT, "-p", "baseline=3x"], '"3x" is no duration'),
        (["rehearse", EVICT, "-p", "lab.startp=1s"], 'did you mean "startup"?'),
        (["rehearse", EVICT, "-k", "zzz"], f"-k and -m leave no drill of these: {EVICT}"),
        (["rehearse", EVICT, "-k", "evict and"], "-k 'evict and': ends too early"),
        (["rehearse", EVICT, "--expect", "pased"], 'did you mean "passed"?'),
        (["rehearse", EVICT, "--expect", "failed:los_on_victim"], 'did you mean "loss_on_victim"?'),
        (["rehearse", EVICT, "--junit", "/no/such/folder/x.xml"], "there is no folder /no/such/folder"),
        (["rehearse", EVICT, "--junit", "/proc/x.xml"], "--junit /proc/x.xml: No such file or directory"),
        (["report", "--junit", "/proc/x.xml"], "--junit /proc/x.xml: No such file or directory"),
        (["rehearse", EVICT, "--junit", "README.md/x.xml"], "there is no folder "),
        (["rehearse", EVICT, "--stop-file", "README.md"], "it is there already"),
        (["rehearse", "aibrix-vllm-example"], "has no lab section"),
        (["run", EVICT], "names no endpoint.url"),
        (["plan", "aibrix-vllm-example", "--kubeconfig", "/no/such/file"], "kubeconfig /no/such/file does not exist"),
        (["plan", "x", "--request-timeout", "soon"], '"soon" is no duration'),
        (["report", "--timelines", "/no/such"], "there are no recordings yet"),
        (["runs", "prune"], "say what to remove"),
        (["lab", "up", "-p", "lab.replicas=2"], "give --drill too"),
        (["init", "--service", "x", "-f", "README.md"], "README.md exists already"),
        (["probe"], "nothing to send requests to: give URL, or --drill"),
        (["probe", "http://"], "not an http:// or https:// URL"),
        (["probe", "http://x", "--dialect", "chta"], 'did you mean "chat"?'),
        (["probe", "http://x", "--probe", "chat"], "--probe is about a playbook"),
        (["probe", "--playbook", "evict-one-replica"], "but not where to: give URL too"),
        (["probe", "--playbook", "evict-one-replica", "--drill", EVICT], "exclude each other"),
        (["probe", "--drill", EVICT], "names no endpoint.url: give URL too"),
        (["probe", "http://x", "--drill", EVICT, "--probe", "chst"], 'did you mean "chat"?'),
        (["probe", "http://x", "--drill", EVICT, "-p", "baselin=3s"], 'did you mean "baseline"?'),
        (["probe", "http://x", "--playbook", "evict-one-replica", "-p", "concurency=3"], 'did you mean "concurrency"?'),
        (["probe", "http://x", "--check", "succes_rate > 1"], 'did you mean "success_rate"?'),
        (["probe", "http://x", "--check", "loss_on_victim == 0"], "is about a cluster, and a probe alone has none"),
        (["probe", "http://x", "--check", "goodput > 1"], "goodput needs an SLO: give --slo"),
        (["probe", "http://x", "--slo", "tft=1s"], 'did you mean "ttft"?'),
        (["probe", "http://x", "--slo", "ttft=soon"], "write ttft=TIME, like ttft=500ms"),
        (["probe", "http://x", "--slo", "ttft=0"], "a limit is above 0"),
        (["probe", "http://x", "--limit", "total"], "write total=TIME"),
        (["probe", "http://x", "--stage", "30s"], "write TIME:RATE"),
        (["probe", "http://x", "--stage", "30s:5", "--rps", "5"], "--rps and --stage exclude each other"),
        (["probe", "http://x", "--stage", "30s:5", "-d", "5s"], "--stage says how long"),
        (["probe", "http://x", "--rps", "5", "-c", "5"], "--concurrency is about users who wait"),
        (["probe", "http://x", "--arrivals", "constant"], "give --rps or --stage"),
        (["probe", "http://x", "--rps", "0"], "needs a stage with a rate above 0"),
        (["probe", "http://x", "-H", "nothing"], "-H nothing: write NAME:VALUE"),
        (["probe", "http://x", "--api-key-env", "NO_SUCH_KEY"], "environment variable NO_SUCH_KEY is not set"),
        (["probe", "http://x", "--body", "{"], "--body is not JSON"),
        (["probe", "http://x", "--body", "[1]"], "write a mapping"),
        (["probe", "http://x", "--body", "@/no/such"], "--body @/no/such: cannot be read"),
        (["probe", "http://x", "--dialect", "sse", "--prompt", "x"], "with sse give --body"),
        (["probe", "http://x", "--once", "--rps", "5"], "--rps is about many requests, and --once sends one"),
        (["probe", "http://x", "--raw"], "give --once too"),
        (["probe", "http://x", "--terminal", "eof"], "--terminal is about sse and json_lines"),
        (["probe", "http://x", "--dialect", "sse", "--terminal", "x"], "write data=TEXT, event=NAME or eof"),
        (["probe", "http://x", "--dialect", "json_lines", "--terminal", "fields={"], 'write fields={"done": true}'),
        (["probe", "http://x", "--once", "--raw", "-o", "json"], "leave -o json out"),
        (["probe", "http://x", "--metrics", "x"], "--metrics x: write PORT or HOST:PORT"),
        (["probe", "https://x", "--ca", "/no/such.pem"], "cannot read the CA file /no/such.pem"),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_clear_error(arguments: list[str], message: str) -> None:
    assert message in wrong(*arguments)


@pytest.mark.parametrize("command", [["rehearse", EVICT], ["probe", "http://127.0.0.1:9"]])
def test_a_port_that_is_taken_is_told_before_anything_begins(command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = wrong(*command, "--metrics", address)
    assert said == f"--metrics: cannot listen on {address}: Address already in use"


def test_the_shell_is_offered_what_a_probe_speaks() -> None:
    shell = ShellComplete(cli, {}, "chaosrunner", "_CHAOSRUNNER_COMPLETE")
    assert [item.value for item in shell.get_completions(["probe", "--dialect"], "c")] == ["completions", "chat"]
    options = {item.value for item in shell.get_completions(["probe"], "--m")}
    assert options == {"--model", "--max-tokens", "--method", "--max-in-flight", "--metrics"}


def test_a_look_at_whether_a_file_can_be_written_leaves_it_as_it_was(tmp_path: Path) -> None:
    check_target("--junit", tmp_path / "new.xml")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "link.xml").symlink_to(tmp_path / "new.xml")
    check_target("--junit", tmp_path / "link.xml")
    assert [path.name for path in tmp_path.iterdir()] == ["link.xml"]
    (tmp_path / "old.xml").write_text("old")
    check_target("--junit", tmp_path / "old.xml")
    assert (tmp_path / "old.xml").read_text() == "old"


def test_errors_of_the_process(tmp_path: Path) -> None:
    done = chaosrunner("reherse")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no such command: reherse (did you mean rehearse?)\nsee chaosrunner --help\n"
    done = chaosrunner("report", "nothing", "--timelines", tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("command", ["plan", "run", "init"])
def test_a_cluster_that_cannot_be_reached(tmp_path: Path, command: str) -> None:
    """Exit code 6 with one line, whatever the command."""
    (tmp_path / "config").write_text(KUBECONFIG)
    text = (Path(__file__).parents[2] / "drills" / f"{EVICT}.yaml").read_text()
    text = text.replace("playbook:", "context: c\nplaybook:", 1)
    text = text.replace("endpoint: {", "endpoint: {url: http://127.0.0.1:9, ").replace(
        "{interval: 1s}", "{url: http://127.0.0.1:9}"
    )
    (tmp_path / "d.yaml").write_text(text)
    what = ["--service", "x"] if command == "init" else [tmp_path / "d.yaml"]
    more = ["--yes", "--timelines", tmp_path / "t"] if command == "run" else []
    arguments = [command, *what, "--kubeconfig", tmp_path / "config", *more]
    result = CliRunner().invoke(cli, list(map(str, arguments)), env={"NO_PROXY": "*"})
    said = str(result.exception) if command != "run" else result.stderr.splitlines()[-1]
    assert "the cluster cannot be reached: http://127.0.0.1:9" in said
    assert "\n" not in said
    assert result.stdout == ""
    assert (result.exit_code if command == "run" else getattr(result.exception, "exit_code", None)) == 6


def test_validate(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("apiVersion: chaosrunner.dev/v1\nkind: Drill\nmetadata: {name: x}\nplaybok: evict-one-replica\n")
    result = CliRunner().invoke(cli, ["validate", str(bad), "lab-drain-node"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"{bad}:4:1: " in result.stderr
    assert 'did you mean "playbook"?' in result.stderr
    assert result.stderr.splitlines()[-1].endswith("in 2 files")
    result = CliRunner().invoke(cli, ["validate", "drain-nod"])
    assert result.stderr == 'no such file: drain-nod (did you mean "drain-node"?)\n1 error in 1 file\n'
    result = CliRunner().invoke(cli, ["validate", "lab-drain-node", "drain-node"])
    assert (result.exit_code, result.stdout) == (0, "2 files ok\n")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [path]
    for name, command in group.commands.items():
        found += commands(command, (*path, name)) if isinstance(command, click.Group) else [(*path, name)]
    return found


@pytest.mark.parametrize("path", commands(cli), ids=" ".join)
def test_help(path: tuple[str, ...]) -> None:
    """In 80 columns; every command that does something has examples, and they name that command."""
    result = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80)
    assert result.exit_code == 0
    head, _, examples = result.stdout.partition("\nExamples:\n")
    assert all(len(line) <= 80 for line in head.splitlines())
    assert "..." not in head.partition("\nCommands:")[2]  # summaries fit
    is_group = isinstance(cli.commands.get(path[0]), click.Group) and len(path) == 1 if path else True
    assert bool(examples) is not is_group
    assert is_group or f"  chaosrunner {' '.join(path)}" in examples


def test_help_and_version_load_nothing_of_a_run() -> None:
    script = (
        "import sys; from chaosrunner.cli.main import cli\n"
        "for words in (['--version'], ['--help'], ['run', '--help'], ['timeline', '--help']):\n"
        "    cli.main(words, prog_name='chaosrunner', standalone_mode=False)\n"
        "heavy = {'pandas', 'pyarrow', 'kubernetes', 'aiohttp', 'httpx', 'pydantic', 'anyio', 'structlog', 'rich'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[0] == "chaosrunner 0.1.0"
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        # Tables are for what has been recorded: no run waits for them at its start.
        ("chaosrunner.cli.running", {"pandas", "pyarrow"}),
        # A guardian acts beside a run that died: soon, and without what only the undo of toxics needs.
        ("chaosrunner.journal.undo", {"pandas", "pyarrow", "numpy", "httpx", "chaosrunner.playbook"}),
    ],
)
def test_what_a_command_does_not_need_at_its_start_is_not_loaded(module: str, heavy: set[str]) -> None:
    script = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True, timeout=60).split()
    assert module in loaded
    assert sorted(heavy & set(loaded)) == []


@pytest.mark.parametrize(
    ("words", "cursor", "offered"),
    [
        ("chaosrunner re", 1, {"rehearse", "report", "recover"}),
        ("chaosrunner rehearse lab-d", 2, {"lab-delete-pod", "lab-drain-node"}),
        ("chaosrunner init --playbook dr", 3, {"drain-node"}),
        ("chaosrunner run x -o ", 4, {"text", "json"}),
    ],
)
def test_completion(words: str, cursor: int, offered: set[str]) -> None:
    done = chaosrunner(_CHAOSRUNNER_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(cursor))
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == offered


def test_completion_script() -> None:
    result = CliRunner().invoke(cli, ["completion", "bash"])
    assert result.exit_code == 0
    assert "_CHAOSRUNNER_COMPLETE=bash_complete" in result.stdout
