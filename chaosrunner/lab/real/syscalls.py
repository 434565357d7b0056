"""The few Linux system calls for namespaces that Python 3.11 does not have. Source: man 2 unshare, setns, mount."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NEW_MOUNTS = 0x00020000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000

MS_BIND = 0x1000
MS_RECURSIVE = 0x4000
MS_PRIVATE = 0x40000
MS_SHARED = 0x100000

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Give the calling process namespaces of its own; a new PID namespace begins with its next child. OSError."""
    _check(_libc.unshare(flags), "unshare")


def enter_network(namespace: Path) -> None:
    """Move the calling thread into a network namespace, such as `/proc/PID/ns/net`. OSError."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, NEW_NETWORK), f"setns {namespace}")
    finally:
        os.close(descriptor)


def mount(source: str, target: Path, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    """Mount `source` of file system `kind` on `target`. OSError."""
    encoded = [value.encode() if value is not None else None for value in (source, str(target), kind)]
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), data.encode() if data else None), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
