"""Addresses for Pods on loopback: one of 127.x.y.z each where the system has them, else one port each."""

from __future__ import annotations

import random
import socket
from typing import Literal, Protocol

AddressMode = Literal["per_pod", "shared"]

_LOCK_PORT = 10250
_POD_SUBNETS = range(1, 251)
_HOSTS = range(1, 255)


class Addresses(Protocol):
    """Gives nodes and Pods their addresses. `port`: the wanted port for the lab's own programs, or a free one."""

    def node(self, index: int) -> str: ...

    def pod(self) -> str: ...

    def port(self, wanted: int) -> int: ...

    def close(self) -> None: ...


class PerPod:
    """127.N.y.z for one lab: N is taken by holding a socket on 127.N.0.1, so that two labs never share an address."""

    def __init__(self) -> None:
        for second in random.sample(range(2, 251), 249):
            self._lock = socket.socket()
            try:
                self._lock.bind((f"127.{second}.0.254", _LOCK_PORT))
            except OSError:
                self._lock.close()
                continue
            self._prefix = f"127.{second}"
            self._given = 0
            return
        raise OSError("no free block of addresses below 127.0.0.0/8")

    @staticmethod
    def available() -> bool:
        """Whether the system takes all of 127.0.0.0/8 as its own (Linux does, macOS has 127.0.0.1 only)."""
        with socket.socket() as probe:
            try:
                probe.bind(("127.251.0.1", 0))
            except OSError:
                return False
        return True

    def node(self, index: int) -> str:
        return f"{self._prefix}.0.{index}"

    def pod(self) -> str:
        subnet, host = divmod(self._given, len(_HOSTS))
        self._given += 1
        return f"{self._prefix}.{_POD_SUBNETS[subnet % len(_POD_SUBNETS)]}.{_HOSTS[host]}"

    def port(self, wanted: int) -> int:
        """A program of this machine that listens on all addresses takes its port away from the lab."""
        for port in (wanted, 0):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self.node(1), port))
                except OSError:
                    continue
                return int(probe.getsockname()[1])
        raise OSError("no free port")

    def close(self) -> None:
        self._lock.close()


class Shared:
    """127.0.0.1 for all; a container's port is a free one of the system's choice."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def node(self, index: int) -> str:
        return "127.0.0.1"

    def pod(self) -> str:
        return "127.0.0.1"

    def port(self, wanted: int) -> int:
        return self.free_port()

    def free_port(self) -> int:
        """A port that was free a moment ago and that this lab has not given away before."""
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            if port not in self._given:
                self._given.add(port)
                return port

    def close(self) -> None:
        pass


def addresses(mode: AddressMode | None) -> PerPod | Shared:
    """The addresses of a lab; by default an address a Pod where the system has them."""
    if mode == "shared" or (mode is None and not PerPod.available()):
        return Shared()
    return PerPod()
