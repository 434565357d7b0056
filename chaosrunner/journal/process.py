"""Which process owns a journal, and whether it still lives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec


class Process(msgspec.Struct, kw_only=True, frozen=True):
    """A process named for good: ids are used again, an id with its start time is not."""

    pid: int
    started: str | None
    """Start time as this system tells it (opaque; compared for equality only), None where it does not tell."""
    host: str


def current() -> Process:
    """The process that calls."""
    return Process(pid=os.getpid(), started=start_time(os.getpid()), host=socket.gethostname())


def liveness(process: Process) -> Literal["alive", "dead", "unknown"]:
    """Whether `process` still runs; unknown if it ran on another host."""
    if process.host != socket.gethostname():
        return "unknown"
    started = start_time(process.pid)
    return "alive" if started is not None and started == process.started else "dead"


def start_time(pid: int) -> str | None:
    """Start time of a running process, None if there is none with this id (a zombie no longer runs).

    Linux: ticks since boot (proc(5), `stat` field 22) with the boot's id. Elsewhere what ps(1) prints, to the second.
    """
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()
        if fields[0] in ("Z", "X"):
            return None
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{fields[19]}"
    ps = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = ps.stdout.strip().partition(" ")
    return started.strip() if started and not state.startswith("Z") else None
