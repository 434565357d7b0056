"""The guardian beside a run: what it undoes when the runner cannot, and that it is gone when it is not needed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from chaosrunner.journal import guardian as guardians
from tests.engine import drills
from tests.engine.drills import BASELINE, hold
from tests.engine.lab import Lab, wait_for
from tests.engine.proxy import Proxy
from tests.engine.test_endings import CORDON
from tests.engine.test_recovery import cordon_recorded

pytestmark = pytest.mark.lab

FOREVER = {"wait": {"until": "restarts > 0", "timeout": "60s"}}

RUNNER = Path(__file__).with_name("runner.py")


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start(drill: Path, kubeconfig: str, lab: Lab, folder: Path, loop: str, **settings: float) -> subprocess.Popen[str]:
    command = [sys.executable, str(RUNNER), str(drill), kubeconfig, lab.context, str(folder)]
    with (folder / "stderr").open("w") as errors:
        return subprocess.Popen([*command, json.dumps(settings), loop], text=True, stderr=errors)


def told(folder: Path) -> list[dict[str, Any]]:
    """What the guardian of the only run below `folder` did."""
    return [json.loads(line) for file in folder.glob(f"*/*/{guardians.NAME}") for line in file.read_text().splitlines()]


def events(folder: Path) -> list[str]:
    return [line["event"] for line in told(folder)]


def test_a_guardian_undoes_what_a_killed_process_group_left_and_frees_its_target(lab: Lab, tmp_path: Path) -> None:
    # litmuschaos/litmus-go#520, chaostoolkit/chaostoolkit#176: a node stays cordoned when the tool goes first.
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(60)])
    before = lab.nodes()
    process = drills.start(drill, lab.kubeconfig, tmp_path, start_new_session=True)
    wait_for(lambda: cordon_recorded(tmp_path))
    guardian = drills.guardian_of(process)
    os.killpg(process.pid, signal.SIGKILL)
    wait_for(lambda: not guardian.is_running() or guardian.status() == psutil.STATUS_ZOMBIE)
    assert lab.nodes() == before
    assert lab.leases() == []
    assert events(tmp_path) == ["took_over", "undone", "ended"]
    assert told(tmp_path)[-1] | {"left": 0, "freed": True} == told(tmp_path)[-1]
    code, out, _ = drills.invoke("recover", "--timelines", str(tmp_path), "-o", "json")
    assert (code, json.loads(out)) == (0, [])
    _, out, _ = drills.invoke("report", "latest", "--timelines", str(tmp_path))
    assert re.search(r"\nits guardian took over: the runner died; node/\S+ undone; its target was freed\n", out)
    _, out, _ = drills.invoke("runs", "list", "--timelines", str(tmp_path))
    assert "crashed, put back by its guardian" in out


def test_the_guardian_of_a_run_that_ends_goes_with_it_and_leaves_no_trace(lab: Lab, tmp_path: Path) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(0.2)])
    seen: list[psutil.Process] = []

    def on_row(row: object) -> None:
        if not seen:
            mine = psutil.Process().children()
            seen.extend(child for child in mine if "chaosrunner.journal.guardian" in child.cmdline())

    ran = drills.run(drill, lab, tmp_path, on_row=on_row)
    assert ran.facts.verdict == "passed"
    (guardian,) = seen
    assert not guardian.is_running()
    assert not (ran.folder / guardians.NAME).exists()


def test_a_busy_event_loop_does_not_outlive_the_deadline(
    lab: Lab, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, FOREVER], limits={"max_nodes": 3, "deadline": "3s"})
    before = lab.nodes()
    started.append(start(drill, lab.kubeconfig, lab, tmp_path, "stuck", silence=1.0, grace=0.5))
    wait_for(lambda: "ended" in events(tmp_path), 30)
    assert started[0].wait(5) == -signal.SIGKILL
    assert events(tmp_path) == ["terminated", "killed", "took_over", "undone", "ended"]
    assert "no sign of life" in told(tmp_path)[0]["reason"]
    assert lab.nodes() == before
    assert lab.leases() == []


def test_a_guardian_waits_for_an_api_server_that_is_away(
    lab: Lab, proxy: Proxy, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(60)])
    assert proxy.kubeconfig is not None
    before = lab.nodes()
    started.append(start(drill, proxy.kubeconfig, lab, tmp_path, "free"))
    wait_for(lambda: cordon_recorded(tmp_path))
    proxy.cut()
    started[0].kill()
    wait_for(lambda: "took_over" in events(tmp_path))
    assert lab.nodes() != before
    proxy.restore()
    wait_for(lambda: "ended" in events(tmp_path), 30)
    assert lab.nodes() == before


def test_what_a_guardian_cannot_undo_is_told_with_the_command_that_does_it(
    lab: Lab, proxy: Proxy, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, FOREVER], limits={"max_nodes": 3, "deadline": "5s"})
    assert proxy.kubeconfig is not None
    started.append(start(drill, proxy.kubeconfig, lab, tmp_path, "free", least=1.0))
    wait_for(lambda: cordon_recorded(tmp_path))
    proxy.cut()
    started[0].kill()
    (node,) = lab.cordoned()
    wait_for(lambda: "ended" in events(tmp_path), 30)
    assert events(tmp_path) == ["took_over", "undo_failed", "ended"]
    (by_hand,) = tmp_path.glob(f"*/*/{guardians.BY_HAND}")
    assert f"patch node {node} --type=merge" in by_hand.read_text()
