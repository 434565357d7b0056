"""The agent's image, as `chaosrunner agent build` writes it."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaosrunner.cli.main import cli
from chaosrunner.faults.ephemeral import IMAGE

pytestmark = pytest.mark.timeout(600)


def test_it_is_one_static_program_under_the_name_that_drills_use(agent: Path, tmp_path: Path) -> None:
    made = CliRunner().invoke(cli, ["agent", "build", "--output", str(tmp_path / "agent.tar")])
    assert made.exit_code == 0, made.output
    assert made.stdout == f"{IMAGE}\n"
    with tarfile.open(tmp_path / "agent.tar") as archive:

        def read(name: str) -> bytes:
            file = archive.extractfile(name)
            assert file is not None
            return file.read()

        (manifest,) = json.loads(read("manifest.json"))
        assert manifest["RepoTags"] == [IMAGE]
        assert json.loads(read(manifest["Config"]))["config"]["Entrypoint"] == ["/agent"]
        (layer,) = manifest["Layers"]
        with tarfile.open(fileobj=io.BytesIO(read(layer))) as files:
            assert [each.name for each in files if each.isfile()] == ["agent"]
            files.extractall(tmp_path, filter="tar")
    # In a place without any library.
    done = subprocess.run(["chroot", str(tmp_path), "/agent"], capture_output=True, text=True)
    assert done.returncode == 2
    assert json.loads(done.stdout)["event"] == "refused"
