"""The command line of the real lab, as its user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psutil import process_iter

from chaosrunner.journal.process import start_time
from tests.cli.command import ROOT
from tests.engine.drills import kill_with_guardian

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

QUICK = ("-p", "baseline=3s", "-p", "hold=2s", "-p", "lab.startup=1s", "-p", "max_tokens=32")
OUTSIDE = ("nsenter", f"--net=/proc/{os.getpid()}/fd/{os.open('/proc/self/ns/net', os.O_RDONLY)}", "--")
"""Other tests move this process into a lab's network, when this module is imported already; a user begins in the
machine's own."""


def line(*arguments: str | Path) -> list[str]:
    return [*OUTSIDE, sys.executable, "-m", "chaosrunner", *map(str, arguments)]


def call(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(ROOT), "HTTPS_PROXY": "http://127.0.0.1:9"}
    done = subprocess.run(
        line(*arguments), cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def wait_for(what: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a lab with two nodes that `lab up --real` brought up, with its workload."""
    folder = tmp_path_factory.mktemp("lab") / "state"
    try:
        done = call("lab", "up", "--real", "--nodes", "2", "--state", folder)
        first, second, *rest = done.stdout.splitlines()
        assert first == f"chaosrunner lab exec --state {folder} -- kubectl get pods -n lab -o wide"
        assert second == f"chaosrunner rehearse --real --state {folder} lab-evict-one-replica"
        assert "# nodes:           node1, node2, infra" in rest
        assert done.stderr.endswith(f"the lab stays until: chaosrunner lab down --state {folder}\n")
        yield folder
    finally:
        assert call("lab", "down", "--state", folder).stdout == f"the lab at {folder} has ended\n"
    assert not folder.exists()
    assert call("lab", "down", "--state", folder).stdout == "no lab stands\n"


def status(state: Path) -> dict[str, Any]:
    (lab,) = json.loads(call("lab", "status", "--state", state, "-o", "json").stdout)
    return dict(lab)


def ready(state: Path) -> dict[str, bool]:
    return {node["name"]: node["ready"] for node in status(state)["node_states"]}


def test_exec_is_inside(state: Path) -> None:
    done = call("lab", "exec", "--state", state, "--", "kubectl", "get", "nodes", "-o", "name")
    assert done.stdout.split() == ["node/infra", "node/node1", "node/node2"]
    url = status(state)["url"]
    fetch = f"import urllib.request as r; print(r.urlopen('{url}/v1/models').status)"
    assert call("lab", "exec", "--state", state, sys.executable, "-c", fetch).stdout == "200\n"
    call("lab", "exec", "--state", state, "sh", "-c", "exit 7", code=7)
    done = call("lab", "exec", "--state", state, "sh", "-c", "yes | head -1")
    assert (done.stdout, done.stderr) == ("y\n", "")
    assert "no-such-program" in call("lab", "exec", "--state", state, "no-such-program", code=2).stderr


def test_status_tells_what_was_taken_away(state: Path) -> None:
    whole = status(state)
    assert (whole["pods"], whole["pods_ready"], whole["cut"]) == (2, 2, [])
    assert ready(state) == {"node1": True, "node2": True, "infra": True}
    assert call("lab", "cut-node", "--state", state, "node2").stdout == "node2 cut off\n"
    wait_for(lambda: not ready(state)["node2"])
    assert "  node2           not Ready, cut off\n" in call("lab", "status", "--state", state).stdout
    call("lab", "heal-node", "--state", state, "node2")
    wait_for(lambda: ready(state)["node2"])
    assert call("lab", "kill-component", "--state", state, "kube-apiserver").stdout == "kube-apiserver killed\n"
    text = call("lab", "status", "--state", state).stdout
    assert text.startswith("real lab\n")
    assert "  kube-apiserver  killed\n" in text
    assert "its API server does not answer: " in text
    assert call("lab", "start-component", "--state", state, "kube-apiserver").stdout == "kube-apiserver started\n"
    wait_for(lambda: status(state)["version"])


def test_mistakes(state: Path) -> None:
    for arguments, message in (
        (["up", "--real"], "a real lab stands at "),
        (["cut-node", "node9"], "no node 'node9'; there are node1, node2, infra"),
        (["kill-component", "kube-scheduller"], "no component 'kube-scheduller'; there are "),
    ):
        done = call("lab", *arguments, "--state", state, code=2)
        assert done.stderr.splitlines()[-1].startswith(f"error: {message}")


def test_a_rehearsal_on_the_lab_that_stands(state: Path, tmp_path: Path) -> None:
    """It has namespaces of its own, which go with it, and is recorded as one."""
    done = call(
        "rehearse", "--real", "--state", state, "lab-evict-one-replica-graceful", *QUICK, "-o", "json",
        "--timelines", tmp_path, "--expect", "passed",
    )  # fmt: skip
    facts = json.loads(done.stdout)
    assert facts["verdict"] == "passed", done.stderr
    (folder,) = tmp_path.glob("*/*")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["lab"], manifest["server"]) == ("real", "https://10.200.0.1:6443")
    assert manifest["workload"]["namespace"].startswith("lab-")
    assert (folder / "lab.jsonl").stat().st_size > 0
    names = call("lab", "exec", "--state", state, "--", "kubectl", "get", "namespaces", "-o", "name").stdout.split()
    assert [name for name in names if "lab" in name] == ["namespace/lab", "namespace/lab-system"]


def test_what_a_killed_rehearsal_left_is_put_back_by_the_next(state: Path, tmp_path: Path) -> None:
    """The lab outlives the run, so that its nodes would stay cordoned."""
    arguments = ["rehearse", "--real", "--state", state, "lab-cordon-and-rollback", "--timelines", tmp_path]
    quick = ["-p", "baseline=2s", "-p", "lab.startup=1s", "-p", "max_tokens=32"]

    def cordoned() -> list[str]:
        return [node["name"] for node in status(state)["node_states"] if not node["schedulable"]]

    with subprocess.Popen(
        line(*arguments, *quick, "-p", "hold=60s"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        wait_for(lambda: cordoned() or run.poll() is not None, 120)
        kill_with_guardian(run)
    (node,) = cordoned()
    done = call(*arguments, *quick, "-p", "hold=2s", "--expect", "passed")
    assert f"{node} of run " in done.stderr
    assert cordoned() == []


@pytest.mark.slow
def test_a_rehearsal_on_a_lab_of_its_own_that_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The lab ends with it, and `lab down` clears what is left."""
    folder = tmp_path_factory.mktemp("own")
    arguments = ["rehearse", "--real", "--state", folder / "s", "lab-evict-one-replica", *QUICK]
    with subprocess.Popen(
        line(*arguments, "--timelines", folder / "t"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as run:
        wait_for(lambda: list(folder.glob("t/*/*/rows.jsonl")) or run.poll() is not None, 120)
        keeper = json.loads((folder / "s" / "ready.json").read_text())["pid"]
        run.send_signal(signal.SIGKILL)
    wait_for(lambda: start_time(keeper) is None)
    call("lab", "down", "--state", folder / "s")
    assert not (folder / "s").exists()
    done = call("run", "lab-drain-node", "--timelines", folder / "t", code=2)
    assert "names no endpoint.url" in done.stderr  # nothing that the rehearsal left is in the way


def test_a_lab_that_is_coming_up_ends_with_its_command(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Else the program that brings it up would go on, and meet with whatever stands there next."""
    folder = tmp_path_factory.mktemp("up") / "s"
    arguments = line("lab", "up", "--real", "--nodes", "1", "--state", folder)
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as up:
        assert up.stderr is not None
        assert any(said.startswith("creating the workload") for said in up.stderr)
        up.kill()
    wait_for(lambda: not any(str(folder) in " ".join(one.info["cmdline"] or ()) for one in process_iter(["cmdline"])))
    call("lab", "down", "--state", folder)
    assert not folder.exists()
