"""Whose a workload on a standing lab is, and that nobody takes one from a living owner."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaosrunner.lab.real.owners import Owned, abandoned, inherit, owning

HERS = Owned("lab-1", "lab-system-1")
OWNER = """
import sys
from pathlib import Path
from chaosrunner.lab.real.owners import Owned, owning
with owning(Path(sys.argv[1]), Owned(sys.argv[2], sys.argv[3]), left_by=()):
    print("mine", flush=True)
    input()
"""


class Left(Exception):
    """Something of the workload is still there."""


def owner(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OWNER, str(folder), *HERS]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    return process


def test_a_workload_is_abandoned_when_its_owner_is_killed_and_not_before(tmp_path: Path) -> None:
    with owner(tmp_path) as hers:
        assert abandoned(tmp_path) == []
        assert list(inherit(tmp_path)) == []
        hers.kill()
        assert hers.wait() == -signal.SIGKILL
    assert abandoned(tmp_path) == ["lab-1"]
    heirs = inherit(tmp_path)
    assert next(heirs) == HERS
    assert abandoned(tmp_path) == []  # it is being cleared
    assert list(inherit(tmp_path)) == []
    assert list(heirs) == []
    assert list(tmp_path.iterdir()) == []


def test_where_nobody_ever_served_nothing_is_left(tmp_path: Path) -> None:
    nowhere = tmp_path / "owners"
    assert abandoned(nowhere) == []
    assert list(inherit(nowhere)) == []
    with owning(nowhere, HERS, left_by=()):
        assert abandoned(nowhere) == []


def test_what_could_not_be_cleared_is_left_to_the_next(tmp_path: Path) -> None:
    with owner(tmp_path) as hers:
        hers.kill()
    heirs = inherit(tmp_path)
    assert next(heirs) == HERS
    heirs.close()  # as when the clearing raises
    assert abandoned(tmp_path) == ["lab-1"]


@pytest.mark.parametrize(("error", "left"), [(None, []), (KeyboardInterrupt, []), (Left, ["lab-1"])])
def test_an_owner_that_ends_in_order_leaves_nothing_to_the_next(
    tmp_path: Path, error: type[BaseException] | None, left: list[str]
) -> None:
    try:
        with owning(tmp_path, HERS, left_by=(Left,)):
            assert abandoned(tmp_path) == []
            if error is not None:
                raise error
    except (KeyboardInterrupt, Left):
        pass
    assert abandoned(tmp_path) == left
