"""What is said of a machine that lacks something for a real lab. Machines are made to lack it, in namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaosrunner.lab.real import requirements

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a real lab runs on Linux only")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces")


def missing_after(setting_up: str, state: Path) -> list[str]:
    """What is missing once a shell script has changed mounts, which only the check sees."""
    check = "import json, sys; from pathlib import Path; from chaosrunner.lab.real import requirements as r; "
    check += "print(json.dumps(r.missing(Path(sys.argv[1]))))"
    script = f'{setting_up}\nexec "$@"'
    command = ["unshare", "--mount", "sh", "-ec", script, "sh", sys.executable, "-c", check, str(state)]
    return list(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


def lines(found: list[str], *words: str) -> list[str]:
    return [line for line in found if all(word in line for word in words)]


def test_programs_that_are_missing_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = requirements.missing(tmp_path / "state")
    for program, package in {"ip": "iproute2", "nft": "nftables", "runc": "runc", "unshare": "util-linux"}.items():
        [line] = lines(found, f"`{program}`")
        assert f"apt-get install {package}" in line
    assert all("\n" not in line for line in found)


@pytest.mark.skipif(not os.access("/usr/sbin/nft", os.X_OK), reason="nft is elsewhere here")
def test_system_programs_are_found_where_a_shell_without_a_login_does_not_look(tmp_path: Path) -> None:
    own = tmp_path / "mount"  # what PATH has goes before it
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    script = (
        "import json, shutil; from pathlib import Path; from chaosrunner.lab.real import requirements as r, __main__;"
        f"here = Path({str(tmp_path)!r}); before = r.missing(here);"
        "code = __main__.main(['status', '--state', str(here)]);"
        "print(json.dumps([before, code, r.missing(here), shutil.which('nft'), shutil.which('mount')]))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, stdout=subprocess.PIPE, check=True)
    before, code, after, nft, mount = json.loads(done.stdout)
    assert lines(before, "`nft`")
    assert code == 2  # no lab stands
    assert not lines(after, "`nft`")
    assert (nft, mount) == ("/usr/sbin/nft", str(own))


def test_a_runc_without_seccomp_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runc = tmp_path / "runc"
    runc.write_text("#!/bin/sh\necho 'runc version 1.5.3'\necho 'go: go1.26.8'\n")
    runc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert lines(requirements.missing(tmp_path), "runc was built without seccomp")
    runc.write_text("#!/bin/sh\necho 'runc version 1.5.3'\necho 'libseccomp: 2.5.4'\n")
    assert not lines(requirements.missing(tmp_path), "seccomp")


@needs_root
def test_without_root_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/nonexistent")
    os.seteuid(65534)
    try:
        found = requirements.missing(Path("/root/lab"))
    finally:
        os.seteuid(0)
    assert lines(found, "only root may")
    assert not lines(found, "kernel does not offer")


@needs_root
def test_a_full_disk_is_told_in_figures(tmp_path: Path) -> None:
    tmp_path.joinpath("state").mkdir()
    found = missing_after(f"mount -t tmpfs -o size=10m tmpfs {tmp_path}/state", tmp_path / "state" / "lab")
    [line] = lines(found, "GB free")
    assert line == f"{tmp_path}/state has 0.0 GB free, and the lab's files may take 3 GB"


@needs_root
def test_room_for_a_build_is_wanted_only_until_it_is_made(tmp_path: Path) -> None:
    small = f"mount -t tmpfs -o size=10m tmpfs {tmp_path}; export XDG_CACHE_HOME={tmp_path}/cache"
    [line] = lines(missing_after(small, tmp_path), "GB free")
    assert line.endswith("has 0.0 GB free, and the lab's files and the build of its programs may take 11 GB")


@needs_root
def test_a_file_system_that_cannot_hold_layers_is_named(tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "state"):
        (tmp_path / name).mkdir()
    # A container's root is often such a one: an overlay cannot be laid over another.
    mount = f"cd {tmp_path}; mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work state"
    [line] = lines(missing_after(mount, tmp_path / "state"), "layers")
    assert line.startswith(f"{tmp_path}/state cannot hold layers of images: name another folder with --state (mount: ")
    assert list((tmp_path / "upper").iterdir()) == []


@needs_root
def test_a_kernel_that_may_not_forward_is_named(tmp_path: Path) -> None:
    read_only = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys"
    assert lines(missing_after(read_only, tmp_path), "forwarding between network namespaces")


@needs_root
def test_control_groups_that_are_not_there_are_named(tmp_path: Path) -> None:
    [line] = lines(
        missing_after("umount -R /sys/fs/cgroup; mount -t tmpfs tmpfs /sys/fs/cgroup", tmp_path), "control groups"
    )
    assert "cpu, cpuacct, cpuset, devices, freezer, memory, pids are not mounted" in line


@needs_root
@pytest.mark.real  # Where a real lab is to run, nothing may be missing.
def test_nothing_is_missing_and_nothing_is_left_behind(tmp_path: Path) -> None:
    assert requirements.missing(tmp_path / "state") == []
    assert list(tmp_path.iterdir()) == []
