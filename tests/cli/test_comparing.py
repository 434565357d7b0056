"""`chaosrunner compare` on recordings that a real writer wrote."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from chaosrunner.analysis.comparison import Comparison
from chaosrunner.cli.main import cli
from chaosrunner.errors import UserError
from tests.cli.command import chaosrunner
from tests.cli.recordings import tape, write


@pytest.fixture
def timelines(tmp_path: Path) -> Path:
    root = tmp_path / "timelines"
    write(root, "20261129-170000-aaaa", tape().rows)
    healthy = tape()
    healthy.request(4.1, 5.3, pod="b")
    rows = [row for row in healthy.rows if getattr(row, "outcome", None) != "aborted"]
    write(root, "20261129-180000-bbbb", rows)
    return root


def call(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["compare", *map(str, arguments)], standalone_mode=False, catch_exceptions=False)
    return int(result.return_value or 0), result.stdout


def test_recordings_are_named_as_with_report(timelines: Path) -> None:
    for a, b in (
        ("20261129-170000-aaaa", "latest"),
        (str(timelines / "chat" / "20261129-170000-aaaa"), "chat"),
        ("chat/20261129-170000-aaaa", "chat/20261129-180000-bbbb"),
    ):
        _, text = call(a, b, "--timelines", timelines, "-o", "json")
        found = json.loads(text)
        assert (found["a"]["run"], found["b"]["run"]) == ("20261129-170000-aaaa", "20261129-180000-bbbb")


def test_the_json_is_the_comparison(timelines: Path) -> None:
    _, text = call("20261129-170000-aaaa", "latest", "--timelines", timelines, "-o", "json")
    found = msgspec.json.decode(text, type=Comparison)
    assert (found.same_verdict, found.same_outcomes) == (False, False)


@pytest.mark.parametrize(
    ("names", "flags", "code"),
    [
        (("20261129-170000-aaaa", "20261129-180000-bbbb"), (), 0),
        (("20261129-170000-aaaa", "20261129-180000-bbbb"), ("--exit-code",), 1),
        (("20261129-170000-aaaa", "20261129-170000-aaaa"), ("--exit-code",), 0),
    ],
)
@pytest.mark.parametrize("output", ["text", "json", "markdown"])
def test_exit_codes(timelines: Path, names: tuple[str, str], flags: tuple[str, ...], code: int, output: str) -> None:
    assert call(*names, "--timelines", timelines, "-o", output, *flags)[0] == code


def test_one_that_is_not_there(timelines: Path) -> None:
    with pytest.raises(UserError, match="nonesuch: neither a recording's folder"):
        call("latest", "nonesuch", "--timelines", timelines)
    folder = write(timelines, "20261129-190000-cccc", tape().rows, drill="broken")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("app=chat", "app in (chat"))
    with pytest.raises(UserError, match="cannot be read"):
        call("chat", "broken", "--timelines", timelines)


def test_as_a_process(timelines: Path) -> None:
    result = chaosrunner(
        "compare", "20261129-170000-aaaa", "chat", "--timelines", timelines, "--exit-code", COLUMNS="80"
    )
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.startswith("DIFFERENT: ")
