"""The command line against real labs."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import anyio
import pytest
import yaml
from click.testing import CliRunner, Result

from chaosrunner.cli.lab_process import PLAIN
from chaosrunner.cli.lab_up import _tell_workload
from chaosrunner.cli.labs import Lab
from chaosrunner.cli.main import cli
from chaosrunner.cluster import Cluster, ClusterConfig, connect
from chaosrunner.cluster.resources import LEASES, NODES, PDBS
from chaosrunner.timeline.clock import Clock
from tests.cli.command import ROOT, chaosrunner
from tests.engine.drills import kill_with_guardian

pytestmark = pytest.mark.lab


@pytest.mark.slow
def test_rehearse(tmp_path: Path) -> None:
    """Standard output is one JSON document, progress is on standard error, JUnit and recording are written."""
    done = chaosrunner(
        "rehearse", "lab-cordon-and-rollback", "-p", "baseline=2s", "-p", "hold=1s", "-p", "lab.startup=500ms",
        "-p", "max_tokens=32", "-o", "json", "--junit", tmp_path / "j.xml", "--timelines", tmp_path / "t",
        "--expect", "passed",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["verdict"], facts["run"]["drill"]) == ("passed", "lab-cordon-and-rollback")
    said = done.stderr.splitlines()
    assert said[0] == "lab-cordon-and-rollback: starting the lab"
    assert any("of 3 replicas ready" in line for line in said)
    assert any("cordon" in line and "accepted" in line for line in said)
    assert said[-1].startswith("lab-cordon-and-rollback passed, as expected: ")
    assert ElementTree.parse(tmp_path / "j.xml").getroot().get("failures") == "0"
    (folder,) = (tmp_path / "t").glob("*/*")
    assert folder.name == facts["run"]["id"]
    assert {"manifest.json", "report.json", "lab.jsonl", "journal.jsonl"} <= {path.name for path in folder.iterdir()}


@dataclass(frozen=True)
class Up:
    """A lab that `lab up` keeps, and the commands of somebody who works on it."""

    ready: dict[str, Any]
    environ: dict[str, str]

    def call(self, *arguments: str | Path) -> Result:
        return CliRunner().invoke(cli, list(map(str, arguments)), env=self.environ)

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "chaosrunner", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen(command, cwd=ROOT, env=os.environ | self.environ, text=True, **pipes)

    def ask(self, task: Callable[[Cluster], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with connect(ClusterConfig(kubeconfig=self.ready["kubeconfig"]), Clock()) as cluster:
                return await task(cluster)

        return anyio.run(run)

    def cordoned(self) -> list[str]:
        nodes = self.ask(lambda cluster: cluster.list(NODES)).items
        return [node["metadata"]["name"] for node in nodes if node["spec"].get("unschedulable")]

    def drill(self, path: Path, *arguments: str) -> Path:
        done = self.call("init", "--service", "model", "--url", self.ready["url"], "-f", path, *arguments)
        assert (done.exit_code, done.stdout) == (0, ""), done.output
        assert self.call("validate", path).exit_code == 0
        return path


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One lab for the tests here, the plain one. Ctrl-C ends it, and nothing stays."""
    temporary = tmp_path_factory.mktemp("lab")
    command = [sys.executable, "-m", "chaosrunner", "lab", "up", "-o", "json"]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"TMPDIR": str(temporary), "XDG_STATE_HOME": str(temporary)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as lab:  # fmt: skip
        try:
            assert lab.stdout is not None
            ready = json.loads(lab.stdout.readline())
            yield Up(ready, {"KUBECONFIG": ready["kubeconfig"]})
        finally:
            lab.send_signal(signal.SIGINT)
            assert lab.wait(60) == 0
        assert lab.stderr is not None
        assert lab.stderr.read().endswith("ending the lab\n")
    assert list(temporary.glob("chaosrunner-lab-*")) == []


def wait_for(what: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)


def test_init_plan_run_and_ctrl_c(up: Up, tmp_path: Path) -> None:
    """A newcomer's way: a drill for what runs on the lab, its plan, a run that Ctrl-C stops."""
    drill = up.drill(tmp_path / "drill.yaml", "--pod-header", up.ready["pod_header"])
    assert yaml.safe_load(drill.read_text())["endpoint"]["pod_header"] == "x-served-by"
    planned = up.call("plan", drill, "-o", "json")
    assert planned.exit_code == 0, planned.output
    plan = json.loads(planned.stdout)
    assert (plan["refused"], plan["problems"], len(plan["candidates"])) == (False, [], 2)
    unanswered = up.call("run", drill, "--timelines", tmp_path / "t")
    assert (unanswered.exit_code, unanswered.stdout) == (6, "")
    assert "give --yes" in unanswered.stderr
    with up.start("run", drill, "--yes", "--timelines", tmp_path / "t", "-o", "json") as run:
        wait_for(lambda: any(path.stat().st_size for path in tmp_path.glob("t/*/*/rows.jsonl")))
        run.send_signal(signal.SIGINT)
        stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == 4, stderr
    assert json.loads(stdout)["verdict"] == "aborted"


def test_a_killed_run_holds_its_target_until_it_is_recovered(up: Up, tmp_path: Path) -> None:
    drill, timelines = up.drill(tmp_path / "drill.yaml"), tmp_path / "t"
    with up.start("run", drill, "--yes", "--timelines", timelines) as run:
        wait_for(lambda: up.ask(lambda cluster: cluster.list(LEASES, "lab")).items)
        kill_with_guardian(run)
    (folder,) = timelines.glob("*/*")
    again = up.call("run", drill, "--yes", "--timelines", timelines)
    assert again.exit_code == 6
    assert again.stderr.splitlines()[-1] == (
        f"error: run {folder.name} of drill model-evict-one-replica died and still holds the lock on this target; "
        f"free it with: chaosrunner recover --timelines {timelines}"
    )
    lease = up.ask(lambda cluster: cluster.list(LEASES, "lab")).items[0]
    up.ask(lambda cluster: cluster.replace(LEASES, lease | {"spec": lease["spec"] | {"holderIdentity": "me"}}, "lab"))
    assert up.call("recover", "--yes", "--timelines", timelines).stdout.startswith("nothing to recover")
    held = up.ask(lambda cluster: cluster.list(LEASES, "lab")).items[0]
    assert held["spec"]["holderIdentity"] == "me"  # somebody else's is left alone
    up.ask(lambda cluster: cluster.replace(LEASES, held | {"spec": lease["spec"]}, "lab"))
    (result,) = json.loads(up.call("recover", "--yes", "--timelines", timelines, "-o", "json").stdout)
    assert (result["target"]["kind"], result["run"], result["state"]) == ("Lease", folder.name, "undone")
    assert up.ask(lambda cluster: cluster.list(LEASES, "lab")).items == []
    assert up.call("recover", "--yes", "--timelines", timelines).stdout.startswith("nothing to recover")


@pytest.mark.slow
def test_the_next_run_offers_to_put_back_what_a_killed_one_left(up: Up, tmp_path: Path) -> None:
    timelines = tmp_path / "t"
    (tmp_path / "t" / "chat" / "broken" / "journal.jsonl").mkdir(parents=True)  # keeps no other from being undone
    drill = up.drill(tmp_path / "drill.yaml", "--playbook", "cordon-and-rollback")
    arguments = ["run", drill, "--timelines", timelines, "-p", "baseline=1s", "-p", "max_tokens=16"]
    with up.start(*arguments, "--yes") as run:
        wait_for(up.cordoned)
        kill_with_guardian(run)
    (node,) = up.cordoned()
    refused = up.call(*arguments, "--yes")
    assert refused.exit_code == 6
    assert (
        f"of drill model-cordon-and-rollback died and left node/{node} cordoned; put it back with: " in refused.stderr
    )
    mine, theirs = pty.openpty()
    with up.start(*arguments, stdin=theirs) as run:
        os.write(mine, b"y\nn\n")
        _, said = run.communicate(timeout=60)
    os.close(mine)
    os.close(theirs)
    assert run.returncode == 6
    assert "Put it back now? [y/N]:" in said
    assert re.search(rf"node/{node} +cordon +\S+ +undone", said)
    assert "Run this drill? [y/N]:" in said
    assert said.endswith("not confirmed; nothing was changed\n")
    assert up.cordoned() == []


def test_init_where_no_budget_protects_the_workload(up: Up, tmp_path: Path) -> None:
    up.ask(lambda cluster: cluster.delete(PDBS, "model", "lab"))
    drill = up.drill(tmp_path / "drill.yaml")
    assert yaml.safe_load(drill.read_text())["parameters"] == {"second_eviction": "accepted"}
    assert "second_eviction: accepted  # no PodDisruptionBudget protects these Pods" in drill.read_text()
    assert "# pod_header: " in drill.read_text()
    planned = json.loads(up.call("plan", drill, "-o", "json").stdout)
    assert not planned["refused"]


def test_lab_up_tells_its_budget_and_its_pod_header(capsys: pytest.CaptureFixture[str]) -> None:
    lab = Lab(
        kind="embedded", state="/s", kubeconfig="k", context="c", namespace="lab", url="http://x",
        pod_header="x-served-by",
    )  # fmt: skip
    _tell_workload(lab, PLAIN)
    said = capsys.readouterr().out
    assert "# Pod header:      x-served-by\n" in said
    assert "# budget:          max_unavailable: 1\n" in said
