"""The state folder of a real lab: whose it is, and whether its keeper lives."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaosrunner.errors import UserError
from chaosrunner.lab.real import outside
from chaosrunner.lab.real.state import State

pytestmark = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="a real lab: Linux, as root")


@pytest.fixture
def state() -> Iterator[State]:
    """With a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        yield State(Path(folder) / "lab")


def test_a_folder_with_anything_else_in_it_is_refused_and_never_cleared(state: State) -> None:
    state.folder.mkdir()
    kept = state.folder / "thesis.txt"
    kept.write_text("years of work")
    with pytest.raises(UserError, match="not empty and no lab's"):
        state.claim()
    assert outside.down(state) is False
    assert kept.read_text() == "years of work"


def test_a_new_an_empty_and_a_labs_folder_are_taken(state: State) -> None:
    state.claim()
    state.claim()
    assert state.is_lab()


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too long"):
        State(tmp_path / ("x" * 100)).claim()


def test_a_keeper_lives_for_as_long_as_its_lock_is_held(state: State) -> None:
    state.claim()
    assert not state.is_kept()
    with state.keeper_lock.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock.fileno()])
    try:
        assert state.is_kept()
        assert state.keeper() is None  # it has just begun
        state.note_keeper(keeper.pid)
        assert state.keeper() == keeper.pid
        outside.end(state)
        assert keeper.wait() == -signal.SIGKILL
    finally:
        keeper.kill()
    assert not state.is_kept()
    assert state.keeper() is None


def test_nobody_is_killed_for_having_the_number_of_a_dead_keeper(state: State) -> None:
    state.claim()
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        state.note_keeper(bystander.pid)
        assert outside.down(state) is True
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_two_commands_do_not_work_on_one_lab(state: State) -> None:
    state.claim()
    script = "import sys; from pathlib import Path; from chaosrunner.lab.real import outside; "
    script += "from chaosrunner.lab.real.state import State; "
    script += "lock = outside._alone(State(Path(sys.argv[1]))); lock.__enter__(); print('held', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(state.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdin is not None
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="another command"), outside._alone(state):
            pass
    finally:
        other.kill()
        other.communicate()
    assert outside.down(state) is True  # the lock of the dead is free
    assert not Path(f"/run/{state.name}.lock").exists()


def test_nothing_is_told_of_a_lab_whose_keeper_is_dead(state: State) -> None:
    state.claim()
    state.ready.write_text("{}")
    assert state.told() is None
    with pytest.raises(UserError, match="no lab stands"):
        outside.ask(state, do="status")


def test_what_a_dead_lab_left_is_cleared(state: State) -> None:
    state.claim()
    (state.node("node1") / "containerd").mkdir(parents=True)
    assert outside.down(state) is True
    assert not state.folder.exists()
    assert outside.down(state) is False


def test_labs_in_different_folders_have_different_names(tmp_path: Path) -> None:
    assert State(tmp_path / "one").name != State(tmp_path / "two").name
