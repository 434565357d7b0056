"""What a machine must have for a real lab. What can be tried in a throw-away namespace is tried, not looked up."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from chaosrunner.errors import UserError
from chaosrunner.lab.real import binaries, cgroups

_EXTRA = "run `pip install 'chaosrunner[real]'`"

_TOOLS = {
    "ip": "iproute2",
    "ldd": "libc-bin",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "runc": "runc",
    "unshare": "util-linux",
}
"""Programs that are called, each with Debian's package of it."""

_SYSTEM = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where systems keep such programs; root's shell without a login (`su`, `sudo`, cron) may not look there."""

_KERNEL = (5, 13)
"""What kube-proxy asks for in nftables mode (`NFTablesKubeProxyKernelVersion`)."""

_CONTROLLERS_1 = {"cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids"}
"""Control groups that kubelet and runc ask for with version 1."""

_STATE_BYTES = 3 * 10**9
_BUILD_BYTES = 8 * 10**9
"""The Go tool's caches, mostly: modules and objects. What remains in our own cache is 0.4 GB."""

_TRIALS = {
    "network interfaces of type veth": "ip link add veth0 type veth peer name veth1",
    "network interfaces of type bridge": "ip link add bridge0 type bridge",
    "forwarding between network namespaces (a writable /proc/sys/net)": "echo 1 > /proc/sys/net/ipv4/ip_forward",
    # One rule of each kind that kube-proxy has.
    "nftables with connection tracking, NAT and maps": """nft -f - <<'END'
table ip t {
  set addresses { type ipv4_addr; }
  map services {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 10.0.0.1 . tcp . 80 : goto service }
  }
  chain endpoint { meta l4proto tcp dnat to 10.0.0.2:80; }
  chain service { ip saddr != 10.0.0.0/8 mark set mark or 0x4000; numgen random mod 1 vmap { 0 : goto endpoint }; }
  chain forward { type filter hook forward priority -110; ct state new ip daddr @addresses reject; }
  chain output { type nat hook output priority -100; ip daddr . meta l4proto . th dport vmap @services; }
  chain postrouting { type nat hook postrouting priority srcnat; mark and 0x4000 != 0 masquerade fully-random; }
  chain nodeport { type nat hook prerouting priority dstnat; fib daddr type local ip daddr != 127.0.0.0/8 return; }
}
END""",
}
"""What the kernel must do in a network namespace: name and shell command."""


def search_path() -> str:
    """PATH, and behind it the folders of system programs that it does not have."""
    given = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    return os.pathsep.join([*given, *(folder for folder in _SYSTEM if folder not in given)])


def missing(state: Path) -> list[str]:
    """What this machine lacks for a lab with its files in `state`, a line each with how to mend it. Changes nothing."""
    if sys.platform != "linux":
        return [f"a real lab runs on Linux only, and this is {platform.system()}"]
    found = [*_machine(), *_packages()]
    # Another user may not even look at the folder.
    return found if os.geteuid() != 0 else [*found, *_disk(state), *_tried(state)]


def _machine() -> Iterator[str]:
    if platform.machine() not in ("x86_64", "aarch64"):
        yield f"a real lab needs a processor of type x86_64 or aarch64, and this one is {platform.machine()}"
    if os.geteuid() != 0:
        yield "a real lab makes namespaces, mounts and control groups, which only root may: run it with sudo"
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            yield f"the program `{tool}` is not there: run `apt-get install {package}`, or what this system has"
    if shutil.which("runc") and "libseccomp" not in _output("runc", "--version"):
        yield "runc was built without seccomp, which every Pod's sandbox uses: run `apt-get install runc`"
    release = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
    if release < _KERNEL:
        yield f"kernel {platform.release()} is too old: kube-proxy's nftables mode needs {_KERNEL[0]}.{_KERNEL[1]}"
    if not os.access("/dev/kmsg", os.R_OK):
        yield "/dev/kmsg cannot be read, and kubelet needs it: run the lab on the machine, not in a container"
    yield from _control_groups()


def _control_groups() -> Iterator[str]:
    if cgroups.is_unified():
        wanted, found = cgroups.CONTROLLERS, set((cgroups.ROOT / "cgroup.controllers").read_text().split())
    else:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        found = {option for _, _, kind, options, *_ in mounts if kind == "cgroup" for option in options.split(",")}
        wanted = _CONTROLLERS_1
    if lacking := sorted(wanted - found):
        where = "enabled in" if cgroups.is_unified() else "mounted below"
        lacks = ", ".join(lacking)
        yield f"control groups for {lacks} are not {where} {cgroups.ROOT}: the kernel's command line may say why"


def _packages() -> Iterator[str]:
    if find_spec("cryptography") is None:
        yield f"the Python package cryptography is not installed: {_EXTRA}"
    if binaries.kubectl() is None:
        yield f"kubectl is neither installed as a package nor in PATH: {_EXTRA}"
    if binaries.cached() is None:
        try:
            binaries.toolchain()
        except UserError as error:
            yield str(error)


def _disk(state: Path) -> Iterator[str]:
    """Room on each file system that is written to."""
    uses = {state: (_STATE_BYTES, "the lab's files")}
    if binaries.cached() is None:
        uses[binaries.cache()] = (_BUILD_BYTES, "the build of its programs")
    wanted: dict[int, list[tuple[Path, int, str]]] = {}
    for folder, (size, what) in uses.items():
        existing = _existing(folder)
        wanted.setdefault(existing.stat().st_dev, []).append((existing, size, what))
    for entries in wanted.values():
        folder, need = entries[0][0], sum(size for _, size, _ in entries)
        free = shutil.disk_usage(folder).free
        if free < need:
            what = " and ".join(what for _, _, what in entries)
            yield f"{folder} has {free / 1e9:.1f} GB free, and {what} may take {need / 1e9:.0f} GB"


def _tried(state: Path) -> Iterator[str]:
    """What the kernel must do, tried in namespaces that end with the trial, as far as the tools for it are there."""
    if not shutil.which("unshare"):
        return
    if said := _failure("unshare", "--pid", "--fork", "--mount", "--net", "true"):
        yield f"this kernel or container does not let namespaces be made ({said})"
        return
    for what, command in _TRIALS.items():
        if shutil.which(command.split()[0]) and (said := _failure("unshare", "--net", "sh", "-c", command)):
            yield f"the kernel does not offer {what} ({said})"
    # Layers of images are laid over one another there; not every file system can be a layer.
    with tempfile.TemporaryDirectory(prefix=".chaosrunner-", dir=_existing(state)) as folder:
        for name in ("lower", "upper", "work", "merged"):
            Path(folder, name).mkdir()
        options = "lowerdir=lower,upperdir=upper,workdir=work"
        command = f"cd {folder!r} && mount -t overlay overlay -o {options} merged && touch merged/file"
        if shutil.which("mount") and (said := _failure("unshare", "--mount", "sh", "-c", command)):
            yield f"{_existing(state)} cannot hold layers of images: name another folder with --state ({said})"


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def _failure(*command: str) -> str:
    """The first line of what a command that fails says, or empty when it does not fail."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == 0:
        return ""
    return (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[0]


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
