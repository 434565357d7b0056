"""Kills what a dead lab left behind. Run as a script with the standard library alone, one per lab.

The lab writes `+ PID IDENTITY` and `- PID` lines to the guardian's standard input. When the input ends, the lab is
gone, by whatever signal, and the guardian kills the process groups that are still listed. A process is known by its id
*and* its start time, so that a recycled id is never signalled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def identity(pid: int) -> str | None:
    """The start time of a process as the system tells it, without blanks; None when there is no such process.

    Linux: field 22 of /proc/PID/stat (clock ticks since boot); elsewhere `ps -o lstart=`.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return "_".join(listed.stdout.split()) or None
    except ProcessLookupError:
        return None
    # The command name (field 2) may hold blanks and parentheses; the rest follows its last closing parenthesis.
    return stat[stat.rindex(b")") + 2 :].split()[19].decode()


def kill_group(pid: int, expected: str) -> bool:
    """SIGKILL the process group that `pid` leads, if that process still is the one that was started."""
    if pid <= 1 or identity(pid) != expected:
        return False
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def survivors(lines: Iterable[str]) -> dict[int, str]:
    """The processes that a ledger of `+` and `-` lines leaves open, with their identities."""
    found: dict[int, str] = {}
    for line in lines:
        match line.split():
            case ["+", pid, expected]:
                found[int(pid)] = expected
            case ["-", pid]:
                found.pop(int(pid), None)
    return found


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for pid, expected in survivors(sys.stdin).items():
        kill_group(pid, expected)


if __name__ == "__main__":
    main()
