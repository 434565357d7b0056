"""The real lab itself: what it is made of, how it ends, and what is left when it is killed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaosrunner.lab.real import cgroups
from chaosrunner.lab.real.state import State
from tests.labs import RealLab, real_lab_command

pytestmark = pytest.mark.real

PROGRAM = [sys.executable, "-m", "chaosrunner.lab.real"]


def refused(*arguments: str, state: Path) -> str:
    """The one error that a verb ends with, for the user to mend."""
    command = [*PROGRAM, *arguments, "--state", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    return done.stderr.strip()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A state folder with a path short enough for sockets; what stands in it is ended after the test."""
    with tempfile.TemporaryDirectory(prefix="lab-") as made:
        state = Path(made) / "lab"
        yield state
        real_lab_command("down", state=state)


def test_all_components_run_under_their_own_names(real_lab: RealLab) -> None:
    found = real_lab_command("status", state=real_lab.state)
    expected = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
    expected |= {
        f"{name}@{node}"
        for name in ("containerd", "kubelet", "kube-proxy")
        for node in ("node1", "node2", "node3", "infra")
    }
    assert found["components"].keys() == expected
    assert all(found["components"].values())
    assert found["cut"] == []


def test_what_is_asked_of_it_wrongly(real_lab: RealLab, tmp_path: Path) -> None:
    state = real_lab.state
    assert "a lab stands already" in refused("up", state=state)
    assert "there are node1, node2, node3, infra" in refused("cut", "node9", state=state)
    assert "no component 'kubelet'" in refused("kill", "kubelet", state=state)
    assert "kube-scheduler runs already" in refused("start", "kube-scheduler", state=state)
    assert "no running container" in refused("signal", "nobody", state=state)
    assert "no lab stands" in refused("status", state=tmp_path / "nowhere")
    assert "between 1 and 100" in refused("up", "--nodes", "0", state=tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_an_account_without_rights(real_lab: RealLab) -> None:
    def kubectl(*arguments: str) -> subprocess.CompletedProcess[str]:
        account = ["--kubeconfig", str(State(real_lab.state).account_kubeconfig)]
        command = [*PROGRAM, "exec", "--state", str(real_lab.state), "--", "kubectl", *account, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert "system:serviceaccount:default:chaosrunner" in kubectl("auth", "whoami").stdout
    assert "forbidden" in kubectl("get", "pods").stderr


def test_nothing_is_left_of_a_killed_keeper_when_the_next_is_up_nor_of_that_when_it_is_ended(folder: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    names = sorted(Path("/run/netns").glob("*"))
    told = real_lab_command("up", "--nodes", "1", state=folder)
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert sorted(Path("/run/netns").glob("*")) == names
    state = State(folder)
    inside = str(Path(told["network"]).readlink())
    ended = os.pidfd_open(told["pid"])
    os.kill(told["pid"], signal.SIGKILL)
    select.select([ended], [], [])
    os.close(ended)
    assert inside not in networks()
    assert state.ready.exists()
    assert "no lab stands" in refused("status", state=folder)
    told = real_lab_command("up", "--nodes", "1", state=folder)
    assert real_lab_command("status", state=folder)["pid"] == told["pid"]
    inside = str(Path(told["network"]).readlink())
    assert real_lab_command("down", state=folder) == {"ended": True}
    assert inside not in networks()
    assert not folder.exists()
    assert [one for one, _, _ in os.walk(cgroups.ROOT) if state.name in one] == []
    assert real_lab_command("down", state=folder) == {"ended": False}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_instants_of_a_workload_that_stays_are_noted_for_as_long_as_the_lab_stands(
    folder: Path, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"nodes": 1, "replicas": 1, "startup": "200ms"}))
    told = real_lab_command("up", "--spec", str(spec), state=folder)
    kubectl = [*PROGRAM, "exec", "--state", str(folder), "--", "kubectl", "-n", told["namespace"]]
    subprocess.run([*kubectl, "delete", "pod", "-l", "app=model"], check=True, timeout=60, stdout=subprocess.DEVNULL)
    began = time.time()
    real_lab_command("cut", "node1", state=folder)
    real_lab_command("heal", "node1", state=folder)
    time.sleep(1)
    rows = [json.loads(line) for line in Path(told["log"]).read_text().splitlines()]
    gone = next(row["uid"] for row in rows if row["what"] == "deleting")
    victim = [row["what"] for row in rows if row.get("uid") == gone]
    assert victim.index("ready") < victim.index("deleting") < victim.index("deleted")
    cut, healed = [row for row in rows if row["what"] in ("cut", "healed")]
    assert (cut["node"], healed["node"]) == ("node1", "node1")
    assert began <= cut["wall"] <= healed["wall"]


def networks() -> set[str]:
    """The network namespaces of all processes."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(str((process / "ns" / "net").readlink()))
        except OSError:
            continue
    return found
