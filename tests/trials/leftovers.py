"""`python -m tests.trials.leftovers`: what a real lab leaves behind on its machine, which must be nothing.

It brings labs up, runs a drill on each, and ends them; kills the commands that do so at random moments, and ends what
they left with `chaosrunner lab down`. After each round the machine's processes, mounts, network namespaces, control
groups, files and kernel parameters are compared with those before. It needs root and a machine on which little else
happens; what other programs begin meanwhile shows as left behind. A round takes about a minute.

Exit code 1 if something was left, with what it was.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from chaosrunner.lab.real.binaries import cache
from chaosrunner.lab.real.mounts import SETTINGS

COMMAND = [sys.executable, "-m", "chaosrunner"]
SHORT = ["-p", "baseline=3s", "-p", "hold=2s", "-p", "lab.startup=1s", "-p", "lab.warmup=null"]
DRILL = "lab-evict-one-replica-graceful"
PLACES = ("/etc", "/opt", "/root", "/run", "/tmp", "/usr/libexec", "/usr/local", "/var")
"""Folders in which programs of a lab could write."""
KILLED_AFTER = (0.2, 30.0)
"""Between how many seconds a command is killed: from its first steps to a drill that runs."""


@dataclass(frozen=True)
class Machine:
    """What there is on the machine that a lab could add to, one text a piece."""

    processes: frozenset[str]
    mounts: frozenset[str]
    networks: frozenset[str]
    control_groups: frozenset[str]
    files: frozenset[str]
    settings: frozenset[str]
    """Parameters of the kernel that a kubelet would set, with their values."""

    def beyond(self, before: Machine) -> list[str]:
        """What is here and was not before."""
        return [
            f"{field.name.replace('_', ' ')}: {one}"
            for field in fields(self)
            for one in sorted(getattr(self, field.name) - getattr(before, field.name))
        ]


def look(ignored: Path) -> Machine:
    """The machine as it is now, but for the files below `ignored` and in the cache of the lab's programs."""
    skipped = {str(ignored), str(cache())}
    return Machine(
        processes=frozenset(_processes()),
        mounts=frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        networks=frozenset({str(path) for path in Path("/run/netns").glob("*")} | set(_namespaces())),
        control_groups=frozenset(folder for folder, _, _ in os.walk("/sys/fs/cgroup")),
        files=frozenset(path for place in PLACES for path in _files(place, skipped)),
        settings=frozenset(f"{name} = {Path('/proc/sys', name).read_text().strip()}" for name in SETTINGS),
    )


def _processes() -> Iterator[str]:
    for process in psutil.process_iter(["pid", "cmdline", "create_time", "status"]):
        # A process of the kernel has no command line.
        if process.info["cmdline"] and process.info["status"] != psutil.STATUS_ZOMBIE:
            yield f"{process.info['pid']} {' '.join(process.info['cmdline'])[:120]}"


def _namespaces() -> Iterator[str]:
    for process in psutil.pids():
        try:
            yield str(Path(f"/proc/{process}/ns/net").readlink())
        except OSError:
            continue


def _files(place: str, skipped: set[str]) -> Iterator[str]:
    for folder, folders, names in os.walk(place):
        folders[:] = [name for name in folders if f"{folder}/{name}" not in skipped and name != "__pycache__"]
        yield from (f"{folder}/{name}" for name in [*folders, *names])


def run(*arguments: str, killed_after: float | None = None) -> int:
    """Run chaosrunner; kill it after so many seconds, if it still runs. Returns its exit code."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=killed_after)
    except subprocess.TimeoutExpired:
        process.kill()
        # Children of it may hold its output for as long as they live.
        process.wait()
        return -signal.SIGKILL
    if process.returncode:
        sys.stdout.write(
            f"  chaosrunner {' '.join(arguments[:3])} … ended with {process.returncode}: {output[-800:]}\n"
        )
    return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="rounds of up, drill, down (%(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="rounds with a kill, of each command (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="chaosrunner-trial-") as folder:
        here = Path(folder)
        recordings = ["--timelines", str(here / "timelines")]
        rehearse = ["rehearse", "--real", DRILL, *SHORT, *recordings]
        # The cache is filled first: what is built once stays.
        run("lab", "build")
        run("lab", "up", "--real")
        run("lab", "down")
        before = look(here)

        def compare(what: str, began: float, wrong: list[str]) -> None:
            nonlocal failed
            left = look(here).beyond(before)
            failed += bool(left or wrong)
            sys.stdout.write(
                f"{what}: {time.monotonic() - began:.1f} s, {'; '.join([*wrong, *left]) or 'nothing left'}\n"
            )
            sys.stdout.flush()

        for number in range(1, options.runs + 1):
            began = time.monotonic()
            codes = [run("lab", "up", "--real"), run(*rehearse), run("lab", "down")]
            compare(f"run {number}", began, [] if codes == [0, 0, 0] else [f"exit codes {codes}"])
        for command in (["lab", "up", "--real"], rehearse):
            for number in range(1, options.kills + 1):
                began = time.monotonic()
                moment = chance.uniform(*KILLED_AFTER)
                run(*command, killed_after=moment)
                code = run("lab", "down")
                what = f"{' '.join(command[:2])} {number}, killed after {moment:.1f} s"
                compare(what, began, [] if code == 0 else [f"lab down ended with {code}"])
    sys.stdout.write(f"{failed} rounds left something\n" if failed else "no round left anything\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
