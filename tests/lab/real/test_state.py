"""The state folder of a real lab: whose it is, and whether its keeper lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaosrunner.errors import UserError
from chaosrunner.lab.real import outside
from chaosrunner.lab.real.state import State


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "lab")


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


def test_the_keeper_is_told_from_another_process_with_its_number(state: State) -> None:
    state.claim()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        state.note_keeper(process.pid)
        assert state.keeper() == process.pid
        note = state.folder / "keeper.json"
        note.write_text(json.dumps(json.loads(note.read_text()) | {"started": 1}))
        assert state.keeper() is None
        state.note_keeper(process.pid)
    finally:
        process.kill()
    # A zombie until somebody waits for it.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert state.keeper() is None
    process.wait()
    assert state.keeper() is None


def test_nothing_is_told_of_a_lab_whose_keeper_is_dead(state: State) -> None:
    state.claim()
    state.ready.write_text("{}")
    state.note_keeper(2**22 + 1)  # no process has such a number (man 5 proc, pid_max)
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
