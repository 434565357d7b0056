"""Network namespaces: a real lab's addresses are those of its own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaosrunner.errors import Refused

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of sched.h."""

NO_PROXY = {"NO_PROXY": "*", "no_proxy": "*"}
"""For the environment of those in a lab's network: no proxy of the machine's is reached from there."""


@contextmanager
def within(network: str | None) -> Iterator[None]:
    """The calling thread is in this network namespace for the length of the block, and so is every thread and process
    that it starts there; a path such as `/proc/PID/ns/net`, None for the one that it is in already.

    Threads that are there before stay where they are, so none of them may use the network on its behalf. Sockets stay
    in the namespace that they were made in. Raises Refused where it cannot be entered.
    """
    if network is None:
        yield
        return
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    before = dict(os.environ)
    try:
        _enter(network)
        os.environ |= NO_PROXY
        try:
            yield
        finally:
            for name in NO_PROXY:
                del os.environ[name]
            os.environ |= {name: before[name] for name in NO_PROXY if name in before}
            _set(own, "the machine's own")
    finally:
        os.close(own)


def _enter(network: str) -> None:
    try:
        descriptor = os.open(Path(network), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"the lab's network {network} cannot be entered: {error.strerror}") from error
    try:
        _set(descriptor, network)
    finally:
        os.close(descriptor)


def _set(descriptor: int, name: str) -> None:
    # `os.setns` is there from Python 3.12 on.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, NEW_NETWORK) != 0:
        raise Refused(f"network {name} cannot be entered: {os.strerror(ctypes.get_errno())}")
