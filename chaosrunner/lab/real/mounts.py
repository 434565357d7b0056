"""What the lab's programs see of the machine: its files and settings, but a view of them that ends with the lab.

kubelet and the CNI library have folders that no option moves (device plugins below /var/lib/kubelet, results below
/var/lib/cni, links below /var/log/containers), and kubelet sets parameters of the kernel for good. On the machine
itself, which may be a node of another cluster, that would break something or stay behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chaosrunner.lab.real import syscalls

_COVERED = (Path("/var/lib"), Path("/var/log"))
"""What is written there goes to memory, unless it goes to one of the lab's own folders."""

SETTINGS = {
    "kernel/keys/root_maxbytes": 25_000_000,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
}
"""Parameters as kubelet wants them (kubelet/pkg/cm, setupKernelTunables): where it reads these it sets none."""

_RUN = Path("/run")

TEMPORARY = _RUN / "tmp"
"""For what the lab's programs put aside: a kubelet that is killed does not clear it."""

_MACHINE = _RUN / "machine"
"""The machine's files with nothing over them."""


def make_private(own: Sequence[Path]) -> None:
    """Give this process, process 1 of new PIDs, mounts of its own; `own`: folders whose changes stay. OSError."""
    syscalls.unshare(syscalls.NEW_MOUNTS)
    syscalls.mount("none", Path("/"), None, syscalls.MS_RECURSIVE | syscalls.MS_PRIVATE)
    # Within the lab it is as on any machine: what a kubelet mounts its containers may see.
    syscalls.mount("none", Path("/"), None, syscalls.MS_RECURSIVE | syscalls.MS_SHARED)
    kept = [folder for folder in own if any(folder.is_relative_to(covered) for covered in _COVERED)]
    syscalls.mount("tmpfs", _RUN, "tmpfs", data="mode=755")
    (_RUN / "netns").mkdir()
    TEMPORARY.mkdir()
    _bind(Path("/"), _made(_MACHINE))
    syscalls.mount("none", _MACHINE, None, syscalls.MS_RECURSIVE | syscalls.MS_PRIVATE)
    for index, folder in enumerate(kept):
        _bind(folder, _made(_RUN / "kept" / str(index)))
    for covered in filter(Path.is_dir, _COVERED):
        upper, work = (_made(_RUN / "covered" / covered.name / part) for part in ("upper", "work"))
        syscalls.mount("overlay", covered, "overlay", data=f"lowerdir={covered},upperdir={upper},workdir={work}")
    for index, folder in enumerate(kept):
        _bind(_RUN / "kept" / str(index), folder)
    syscalls.mount("proc", Path("/proc"), "proc")
    for name, value in SETTINGS.items():
        if (setting := Path("/proc/sys") / name).exists():
            wanted = _made(_RUN / "settings") / name.replace("/", ".")
            wanted.write_text(f"{value}\n")
            _bind(wanted, setting)


def uncovered(path: Path) -> Path:
    """Where a file is, within the lab, in the mount that the machine has it in; hard links need one mount."""
    return _MACHINE / path.relative_to("/")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _bind(source: Path, target: Path) -> None:
    syscalls.mount(str(source), target, None, syscalls.MS_BIND | syscalls.MS_RECURSIVE)
