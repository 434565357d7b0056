"""Where the agent is tried: the network of a Pod with a peer, and a container's processes.

Sockets of either network are made here in the test's own process: a socket stays in the network where it was opened.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

POD, PEER, OTHER = "10.77.0.2", "10.77.0.1", "10.77.0.3"
POD6, PEER6 = "fd77::2", "fd77::1"
CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Running:
    """An agent that runs, and what it tells."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._read = b""

    def event(self, name: str, timeout: float = 10) -> dict[str, Any]:
        """The next event of this name."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            line, found, rest = self._read.partition(b"\n")
            if found:
                self._read = rest
                told: dict[str, Any] = json.loads(line)
                if told["event"] == name:
                    return told
                continue
            assert self.process.stdout is not None
            if select.select([self.process.stdout], [], [], 0.1)[0]:
                more = os.read(self.process.stdout.fileno(), 65536)
                assert more, f"the agent ended without {name}"
                self._read += more
        raise AssertionError(f"no event {name} within {timeout} s")

    def exit(self, timeout: float = 10) -> int:
        return self.process.wait(timeout)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Network:
    """Two network namespaces: a Pod's, with one interface eth0, and its peer's, which has two addresses."""

    def __init__(self, agent: Path) -> None:
        self._agent = agent
        name = secrets.token_hex(3)
        self.pod, self.peer = f"cr-{name}-pod", f"cr-{name}-peer"
        self._agents: list[Running] = []
        self._sockets: list[socket.socket] = []
        for one in (self.pod, self.peer):
            run("ip", "netns", "add", one)
            run("ip", "-n", one, "link", "set", "lo", "up")
        run("ip", "link", "add", "eth0", "netns", self.pod, "type", "veth", "peer", "name", "eth0", "netns", self.peer)
        for one, addresses in ((self.pod, [f"{POD}/24"]), (self.peer, [f"{PEER}/24", f"{OTHER}/24"])):
            for address in addresses:
                run("ip", "-n", one, "addr", "add", address, "dev", "eth0")
            inet6 = POD6 if one == self.pod else PEER6
            run("ip", "-n", one, "addr", "add", f"{inet6}/64", "dev", "eth0", "nodad")
            run("ip", "-n", one, "link", "set", "eth0", "up")

    def close(self) -> None:
        for one in self._agents:
            one.close()
        for opened in self._sockets:
            opened.close()
        for name in (self.pod, self.peer):
            run("ip", "netns", "del", name)

    def start(self, *arguments: str, prefix: tuple[str, ...] = ()) -> Running:
        started = Running(["ip", "netns", "exec", self.pod, *prefix, str(self._agent), *arguments])
        self._agents.append(started)
        return started

    def disturb(self, kind: str, *, duration: float = 30, entry: str = "e1", **spec: Any) -> Running:
        """The agent with a fault that is there."""
        made = {"entry": entry, "kind": kind, "duration": duration, **spec}
        running = self.start("network", json.dumps(made))
        running.event("set")
        return running

    def rules(self) -> str:
        """What is set in the Pod's network that was not there in the beginning."""
        disciplines = run("tc", "-n", self.pod, "qdisc", "show").splitlines()
        set_by_hand = [line for line in disciplines if not line.startswith("qdisc noqueue 0:")]
        return run("ip", "netns", "exec", self.pod, "nft", "list", "ruleset") + "\n".join(set_by_hand)

    @contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        """This thread in another network."""
        with Path("/proc/thread-self/ns/net").open() as own, Path("/run/netns", name).open() as other:
            assert _LIBC.setns(other.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert _LIBC.setns(own.fileno(), CLONE_NEWNET) == 0

    def open(self, where: str, kind: socket.SocketKind, family: int = socket.AF_INET) -> socket.socket:
        with self._inside(where):
            made = socket.socket(family, kind)
        made.settimeout(2)
        self._sockets.append(made)
        return made

    def listen(self, where: str, address: str, port: int, family: int = socket.AF_INET) -> socket.socket:
        listener = self.open(where, socket.SOCK_STREAM, family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        return listener

    def connect(
        self, address: str, port: int, *, where: str | None = None, source: str | None = None, timeout: float = 2
    ) -> socket.socket:
        """A connection to the Pod from its peer, or from elsewhere."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = self.open(where or self.peer, socket.SOCK_STREAM, family)
        if source is not None:
            made.bind((source, 0))
        made.settimeout(timeout)
        made.connect((address, port))
        made.settimeout(2)
        return made

    def accept(self, listener: socket.socket) -> socket.socket:
        made, _ = listener.accept()
        made.settimeout(2)
        self._sockets.append(made)
        return made

    def reaches(self, port: int = 8000, **options: Any) -> bool:
        """Whether the Pod's listener can be connected to within a moment."""
        try:
            self.connect(options.pop("address", POD), port, timeout=0.5, **options).close()
        except TimeoutError:
            return False
        return True
