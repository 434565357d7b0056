"""An engine core as a process beside the server, as vLLM has one: it can be stopped or killed alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable

from chaosrunner.lab.workload import core_process

NAME = "VLLM::EngineCore"
"""The process's name, as vLLM's is called; a system that keeps 15 bytes of a name cuts it off."""


class EngineCore:
    """Owns the time of the engine's steps: while its process is stopped, no step ends; `on_end` hears of its death."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._over = asyncio.Event()
        self._steps, theirs = socket.socketpair()
        self._steps.setblocking(False)
        command = [NAME, "-S", str(core_process.__file__), str(theirs.fileno()), NAME]
        # By its own name Python does not find its library.
        environment = os.environ | {"PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"}
        with theirs:
            self._process = subprocess.Popen(
                command, executable=sys.executable, env=environment, pass_fds=[theirs.fileno()]
            )
        asyncio.get_running_loop().add_reader(self._steps, self._readable)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def step(self, seconds: float) -> None:
        """Wait until a step of that length is over: for ever if the process is dead."""
        self._over.clear()
        with contextlib.suppress(OSError):  # its death is heard of by reading
            self._steps.send(struct.pack("d", max(0.0, seconds)))
        await self._over.wait()

    def _readable(self) -> None:
        try:
            said = self._steps.recv(64)
        except ConnectionError:
            said = b""
        if said:
            self._over.set()
        else:
            self.close()
            self._on_end()

    def close(self) -> None:
        """End the process, also a stopped one."""
        asyncio.get_running_loop().remove_reader(self._steps)
        self._steps.close()
        self._process.kill()
        self._process.wait()
