"""Cores, priorities and CPU time of processes. Linux."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec


class Cores(msgspec.Struct):
    server: int
    clients: list[int]
    """The others, from the last."""

    @property
    def client(self) -> int:
        return self.clients[0]


def cores() -> Cores:
    """One core for the server, others for the client. Raises SystemExit where there is one only."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        raise SystemExit("two cores are needed: the server must not take its time from the client")
    return Cores(server=first, clients=others[::-1])


def real_time() -> bool:
    """Whether we may give real-time priority to our processes (as root)."""
    try:
        with prioritised(1):
            return True
    except PermissionError:
        return False


@contextmanager
def prioritised(priority: int) -> Iterator[None]:
    """Ourselves ahead of everything of a lower priority."""
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def place(pid: int, cores: set[int], priority: int | None) -> None:
    """Puts a process (of one thread so far) on cores, with real-time priority unless that is None."""
    os.sched_setaffinity(pid, cores)
    if priority is not None:
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(priority))


class Used(msgspec.Struct):
    """CPU seconds so far, at one instant."""

    at: float
    """`time.monotonic()`."""
    server: float
    client: float
    ours: float
    """This process."""
    all: float
    """Everything on the server's core and the client's first."""

    def __sub__(self, earlier: Used) -> Used:
        return Used(*(getattr(self, name) - getattr(earlier, name) for name in self.__struct_fields__))


def used(server: int, client: int, where: Cores) -> Used:
    """Of the processes `server` and `client`, each with its children."""
    return Used(time.monotonic(), _tree(server), _tree(client), _process(os.getpid()), _busy(where))


def _tree(pid: int) -> float:
    return _process(pid) + sum(_tree(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    return [int(child) for path in _tasks(pid) for child in (path / "children").read_text().split()]


def _process(pid: int) -> float:
    return sum(int((path / "schedstat").read_text().split()[0]) for path in _tasks(pid)) / 1e9


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _busy(where: Cores) -> float:
    """Seconds in which the two cores did not idle (user, nice, system, irq, softirq, steal), from /proc/stat."""
    names = {f"cpu{where.server}", f"cpu{where.client}"}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in names:
            ticks += sum(int(fields[index]) for index in (0, 1, 2, 5, 6, 7))
    return ticks / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
