"""Images of a real lab: what is in them, and whether the programs in them run, with nothing else of the machine."""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

import chaosrunner
from chaosrunner.errors import UserError
from chaosrunner.lab.real import images, layers
from chaosrunner.lab.real.binaries import Binaries
from chaosrunner.lab.real.images import Image

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a real lab runs on Linux only")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the root folder")


class Unpacked:
    """An image as a container's root, its configuration and its layers' digests."""

    def __init__(self, image: Image, root: Path) -> None:
        self.root = root
        with tarfile.open(image.tar) as tar:
            [manifest] = json.load(_member(tar, "manifest.json"))
            self.tags: list[str] = manifest["RepoTags"]
            configuration = json.load(_member(tar, manifest["Config"]))
            self.config: dict[str, Any] = configuration["config"]
            self.layers: list[str] = configuration["rootfs"]["diff_ids"]
            for name, digest in zip(manifest["Layers"], self.layers, strict=True):
                assert hashlib.file_digest(_member(tar, name), "sha256").hexdigest() == digest.removeprefix("sha256:")
                with tarfile.open(fileobj=_member(tar, name)) as layer:
                    layer.extractall(root, filter="fully_trusted")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the image's environment and no other files than the image's."""
        environment = dict(entry.split("=", 1) for entry in self.config["Env"])
        return subprocess.run(
            ["/usr/sbin/chroot", self.root, *command], capture_output=True, text=True, env=environment, check=False
        )


def _member(tar: tarfile.TarFile, name: str) -> Any:
    found = tar.extractfile(name)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _use(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(scope="module")
def workload(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return Unpacked(images.workload(), tmp_path_factory.mktemp("workload"))


@needs_root
@pytest.mark.parametrize("module", ["model_server", "gateway", "alert_source"])
def test_the_workloads_programs_run_with_nothing_but_the_image(workload: Unpacked, module: str) -> None:
    ended = workload.run("python3", "-m", f"chaosrunner.lab.workload.{module}", "--help")
    assert ended.returncode == 0, ended.stderr
    assert f"usage: python -m chaosrunner.lab.workload.{module}" in ended.stdout


@needs_root
def test_all_extension_modules_find_their_libraries(workload: Unpacked) -> None:
    names = sorted(file.name.partition(".")[0] for file in workload.root.rglob("lib-dynload/*.so"))
    assert "_ssl" in names
    assert "_tkinter" not in names
    ended = workload.run("python3", "-c", f"import {', '.join(names)}, yaml; assert yaml.__with_libyaml__")
    assert ended.returncode == 0, ended.stderr


@needs_root
def test_certificates_are_where_tls_looks_for_them(workload: Unpacked) -> None:
    ended = workload.run(
        "python3", "-c", "import ssl; print(ssl.create_default_context().cert_store_stats()['x509_ca'])"
    )
    assert int(ended.stdout) > 50


@needs_root
def test_no_container_compiles_python_again(workload: Unpacked) -> None:
    ended = workload.run("python3", "-v", "-c", "import asyncio, yaml, chaosrunner.lab.workload.model_server")
    assert "code object from" not in re.sub(r"code object from '[^']*\.pyc'", "", ended.stderr)
    assert ended.stderr.count("code object from '") > 50


@needs_root
def test_tools_and_places_that_a_pod_expects(workload: Unpacked) -> None:
    script = "sleep 0.01; kill -0 $$; cat /etc/passwd; command -v sh python python3; id_=$(cat /etc/group)"
    ended = workload.run("sh", "-ec", script)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("root:x:0:0:")
    assert workload.run("/bin/sleep", "0").returncode == 0
    assert (workload.root / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert "Entrypoint" not in workload.config


def test_the_image_is_small_enough_for_every_node(workload: Unpacked) -> None:
    # It is unpacked on each node of each lab; tests, Tk and the like would double it.
    assert sum(file.stat().st_size for file in workload.root.rglob("*") if file.is_file()) < 150e6
    assert not list(workload.root.rglob("test_*.py"))


def test_an_image_is_made_once_and_always_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = images.workload()
    made = first.tar.stat().st_ino
    assert images.workload() == first
    assert first.tar.stat().st_ino == made
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    again = images.workload()
    assert again.reference == first.reference
    assert again.tar.read_bytes() == first.tar.read_bytes()
    assert [each.name for each in again.tar.parent.iterdir()] == [again.tar.name]


def test_other_code_makes_another_image_on_the_same_base(
    workload: Unpacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = images.workload()
    copy = tmp_path / "chaosrunner"
    shutil.copytree(Path(chaosrunner.__file__).parent, copy, ignore=shutil.ignore_patterns("sources", "__pycache__"))
    monkeypatch.setattr(images, "_PACKAGE", copy)
    (copy / "engine" / "run.py").write_text("")
    assert images.workload() == before  # no workload's code
    (copy / "lab" / "workload" / "flags.py").write_text("")
    after = Unpacked(images.workload(), tmp_path / "root")
    assert after.tags != [before.reference]
    assert after.layers[0] == workload.layers[0]
    assert after.layers[1] != workload.layers[1]


def test_an_image_of_one_program(tmp_path: Path) -> None:
    for name in ("pause", "coredns"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    made = [images.pause(Binaries(tmp_path)), images.coredns(Binaries(tmp_path))]
    for name, image in zip(("pause", "coredns"), made, strict=True):
        unpacked = Unpacked(image, tmp_path / f"root-{name}")
        assert unpacked.tags == [image.reference]
        assert re.fullmatch(rf"localhost/chaosrunner/{name}:[0-9a-f]{{16}}", image.reference)
        assert unpacked.config["Entrypoint"] == [f"/{name}"]
        assert os.access(unpacked.root / name, os.X_OK)
    (tmp_path / "pause").write_text("#!/bin/sh\nexit 1\n")
    assert images.pause(Binaries(tmp_path)) != made[0]


def test_images_that_nobody_asks_for_any_more_go(tmp_path: Path) -> None:
    program, made = tmp_path / "pause", list[Path]()
    for content in ("one", "two", "three"):
        program.write_text(content)
        made.append(images.pause(Binaries(tmp_path)).tar)
        if content == "one":
            an_hour_ago = time.time() - 3700
            os.utime(made[0], (an_hour_ago, an_hour_ago))
    assert [tar.exists() for tar in made] == [False, True, True]


def test_a_tool_that_the_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="`sh`"):
        images.workload()


def test_stale_bytecode_is_not_taken(tmp_path: Path) -> None:
    source = tmp_path / "mod.py"
    source.write_text("x = 1\n")
    py_compile.compile(str(source))
    fresh = layers.bytecode(source, source.read_bytes())
    source.write_text("x = 22\n")
    changed = layers.bytecode(source, source.read_bytes())
    assert fresh is not None
    assert changed is not None
    assert fresh[16:] != changed[16:]
    (tmp_path / "sourceless.pyc").write_bytes(changed)
    run = "import sourceless; print(sourceless.x)"
    ended = subprocess.run([images._python(), "-c", run], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout == "22\n"
    assert layers.bytecode(source, b"this is no Python") is None


def test_the_closure_has_all_that_chaosrunner_requires() -> None:
    names = {each.name.lower() for each in images._closure(("chaosrunner",))}
    assert {"aiohttp", "httpx", "kubernetes", "pandas", "numpy", "pyarrow", "pydantic-core", "yarl"} <= {
        name.replace("_", "-") for name in names
    }
    # What is for developers, or for a real lab, is not.
    assert not {"pytest", "mypy", "cryptography"} & names


@pytest.mark.real  # An image of half a gigabyte, twice on the disk.
@needs_root
def test_the_runners_image_runs_chaosrunner(workload: Unpacked, tmp_path: Path) -> None:
    runner = Unpacked(images.runner(), tmp_path)
    assert runner.layers[0] == workload.layers[0]
    [command] = runner.config["Entrypoint"]
    assert runner.run(command, "--version").stdout == f"chaosrunner {chaosrunner.__version__}\n"
    ended = runner.run("chaosrunner", "validate", "lab-evict-one-replica", "evict-one-replica")
    assert ended.returncode == 0, ended.stderr
    script = """
import importlib, io, pkgutil
import chaosrunner, numpy.testing, pandas, pyarrow.dataset
for found in pkgutil.walk_packages(chaosrunner.__path__, "chaosrunner."):
    # A lab within the lab it is not.
    if not found.name.startswith("chaosrunner.lab.real") and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
table = pandas.DataFrame({"when": pandas.to_datetime(["2026-01-01", "2026-01-02"]), "what": ["a", "b"]})
table.to_parquet(stored := io.BytesIO())
assert pandas.read_parquet(stored).equals(table)
"""
    ended = runner.run("python3", "-c", script)
    assert ended.returncode == 0, ended.stderr
