"""The command line against a real lab: two short ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from chaosrunner.cli.main import cli
from tests.cli.command import ROOT, chaosrunner

pytestmark = pytest.mark.lab


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


def test_lab_up_init_plan_run_and_ctrl_c(tmp_path: Path) -> None:
    """A newcomer's way: a lab, a drill for what runs on it, its plan, a run that Ctrl-C stops, the lab's end."""
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "chaosrunner", "lab", "up", "-o", "json"]
    command += ["--drill", "lab-evict-one-replica", "-p", "lab.startup=500ms"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as lab:
        try:
            assert lab.stdout is not None
            ready = json.loads(lab.stdout.readline())
            drill = tmp_path / "drill.yaml"
            reach = {"KUBECONFIG": ready["kubeconfig"]}

            def call(*arguments: str | Path) -> Result:
                return CliRunner().invoke(cli, list(map(str, arguments)), env=reach)

            done = call("init", "--service", "model", "--url", ready["url"], "-f", drill)
            assert (done.exit_code, done.stdout) == (0, ""), done.output
            assert call("validate", drill).exit_code == 0
            planned = call("plan", drill, "-o", "json")
            assert planned.exit_code == 0, planned.output
            plan = json.loads(planned.stdout)
            assert (plan["refused"], plan["problems"], len(plan["candidates"])) == (False, [], 3)
            unanswered = call("run", drill, "--timelines", tmp_path / "t")
            assert (unanswered.exit_code, unanswered.stdout) == (6, "")
            assert "give --yes" in unanswered.stderr
            _interrupted_run(drill, tmp_path / "t", reach)
        finally:
            lab.send_signal(signal.SIGINT)
            assert lab.wait(20) == 0
        assert lab.stderr is not None
        assert lab.stderr.read().endswith("ending the lab\n")
    assert list(tmp_path.glob("chaosrunner-lab-*")) == []


def _interrupted_run(drill: Path, timelines: Path, reach: dict[str, str]) -> None:
    command = [sys.executable, "-m", "chaosrunner", "run", drill, "--yes", "--timelines", timelines, "-o", "json"]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | reach, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        deadline = time.monotonic() + 20
        while not list(timelines.glob("*/*/rows.jsonl")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1.0)
        run.send_signal(signal.SIGINT)
        stdout, stderr = run.communicate(timeout=20)
    assert run.returncode == 4, stderr
    assert json.loads(stdout)["verdict"] == "aborted"
