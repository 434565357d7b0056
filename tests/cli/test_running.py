"""Several drills: which exit code wins, and what CI is told of those that were not run."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from chaosrunner.cli.main import cli
from chaosrunner.cli.running import Results
from chaosrunner.errors import UserError
from tests.cli.command import ROOT
from tests.cli.test_usage import KUBECONFIG


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([], 0), ([0, 0], 0), ([0, 1], 1), ([1, 3], 3), ([3, 2, 1], 2), ([2, 6], 6), ([6, 4, 0], 4), ([5, 4, 6], 5),
    ],
)  # fmt: skip
def test_the_worst_code_wins(codes: list[int], code: int) -> None:
    assert Results(codes=codes).code == code


@pytest.mark.parametrize(("verdict", "code"), [(0, 2), (4, 4), (6, 6)])
def test_a_junit_file_that_could_not_be_written_hides_nothing_worse(verdict: int, code: int) -> None:
    assert Results(codes=[verdict], unwritten=UserError("disk full")).code == code


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)), env={"NO_PROXY": "*"})


@pytest.fixture
def drills(tmp_path: Path) -> Path:
    """Two drills on a cluster that nobody runs."""
    (tmp_path / "config").write_text(KUBECONFIG)
    for name in ("delete-pod", "drain-node"):
        text = (ROOT / "drills" / f"lab-{name}.yaml").read_text()
        text = text.replace("playbook:", "context: c\nplaybook:", 1).replace(
            "endpoint: {", "endpoint: {url: http://127.0.0.1:9, "
        )
        (tmp_path / f"{name}.yaml").write_text(text.replace("prometheus: {interval: 1s}\n", ""))
    return tmp_path


def test_drills_that_cannot_begin(drills: Path) -> None:
    arguments = ["run", drills, "--yes", "--kubeconfig", drills / "config", "--timelines", drills / "t"]
    done = call(*arguments, "--junit", drills / "all.xml", "-o", "json")
    assert done.exit_code == 6
    assert [(one["drill"], one["verdict"], one["exit_code"]) for one in json.loads(done.stdout)] == [
        ("lab-delete-pod", "refused", 6),
        ("lab-drain-node", "refused", 6),
    ]
    suites = ElementTree.parse(drills / "all.xml").getroot()
    assert [suite.get("name") for suite in suites] == ["lab-delete-pod", "lab-drain-node"]
    assert suites.get("errors") == "2"
    done = call(*arguments, "--junit", drills / "first.xml", "-x", "--expect", "passed")
    assert done.exit_code == 6
    assert [suite.get("name") for suite in ElementTree.parse(drills / "first.xml").getroot()] == ["lab-delete-pod"]
    assert json.loads(call(*arguments, "-k", "drain", "-o", "json").stdout) == {
        "drill": "lab-drain-node",
        "verdict": "refused",
        "reason": "the cluster cannot be reached: http://127.0.0.1:9: connection refused",
        "exit_code": 6,
    }
    done = call(*arguments, "-k", "drain")
    assert (done.exit_code, done.stdout) == (6, "")
    assert "lab-delete-pod" not in done.stderr
    assert not (drills / "t").exists()


def test_a_disk_that_is_full_at_the_end_takes_only_the_junit_file(drills: Path) -> None:
    arguments = ["run", drills, "--yes", "--kubeconfig", drills / "config", "--timelines", drills / "t"]
    done = call(*arguments, "--junit", "/dev/full", "-o", "json")
    assert done.exit_code == 6
    assert [one["drill"] for one in json.loads(done.stdout)] == ["lab-delete-pod", "lab-drain-node"]
    assert done.stderr.splitlines()[-1] == "error: --junit /dev/full: No space left on device"
    assert done.stderr.count("/dev/full") == 1
