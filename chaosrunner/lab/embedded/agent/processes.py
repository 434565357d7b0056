"""Local processes with handles of our own: each leads a session, and none outlives the lab."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import anyio

from chaosrunner.errors import UserError
from chaosrunner.lab.embedded.agent import guardian

_POLL_SECONDS = 0.02
_CHUNK = 65536


class Process:
    """One running process, leader of its session and process group.

    It is signalled only through this handle and only until it has been reaped, so its id cannot have been given to
    another process.
    """

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self._gone = anyio.Event()
        self.pid = popen.pid
        self.started = time.time()
        self.finished = 0.0

    @property
    def exit_code(self) -> int | None:
        """The exit code as a container runtime gives it: 128 + n after signal n; None while the process runs."""
        code = self._popen.returncode
        return code if code is None or code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, as a runtime does with the first process of a container."""
        if self._popen.returncode is None:
            self._popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the whole process group."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        await self._gone.wait()
        code = self.exit_code
        assert code is not None
        return code

    def _ended(self) -> bool:
        """Whether the process has ended; its leftover children are killed before its id is given back."""
        if hasattr(os, "waitid"):
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            self.kill()
            self._popen.wait()
        else:
            if self._popen.poll() is None:
                return False
            # Without WNOWAIT (macOS) the id is free already; the group still has it if children are left.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.finished = time.time()
        return True


class Processes:
    """Starts processes and watches over them until `close`. `ledger` names those that run, for the next start."""

    def __init__(self, ledger: Path) -> None:
        self._path = ledger
        self._ledger: IO[str] | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._running: set[Process] = set()
        self._polled: set[Process] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Processes]:
        """Kill what an earlier lab left in this state folder, watch, and leave no process behind.

        UserError when another lab that runs has the folder.
        """
        self._ledger = self._path.open("a+")
        try:
            fcntl.flock(self._ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{self._path.parent}: another lab is running in this folder") from None
        self._ledger.seek(0)
        for pid, expected in guardian.survivors(self._ledger).items():
            guardian.kill_group(pid, expected)
        self._ledger.truncate(0)
        self._guardian = _start_guardian()
        try:
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                for process in list(self._running):
                    process.kill()
                for process in list(self._running):
                    await process.wait()
            self._ledger.close()
            self._path.unlink()
            self._guardian.communicate()

    def start(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, output: Callable[[bytes], None]
    ) -> Process:
        """Start `command` in a session of its own; `output` gets its stdout and stderr, and b"" when they end.

        Raises OSError when the command cannot be started.
        """
        popen = subprocess.Popen(
            list(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        process = Process(popen)
        self._note(f"+ {process.pid} {guardian.identity(process.pid)}")
        self._running.add(process)
        self._follow(popen, output)
        self._watch(process)
        return process

    def _note(self, line: str) -> None:
        assert self._ledger is not None
        assert self._guardian is not None
        assert self._guardian.stdin is not None
        self._ledger.write(line + "\n")
        self._ledger.flush()
        with contextlib.suppress(BrokenPipeError):
            self._guardian.stdin.write(line.encode() + b"\n")
            self._guardian.stdin.flush()

    def _follow(self, popen: subprocess.Popen[bytes], output: Callable[[bytes], None]) -> None:
        assert popen.stdout is not None
        pipe = popen.stdout
        descriptor = pipe.fileno()
        os.set_blocking(descriptor, False)
        loop = asyncio.get_running_loop()

        def readable() -> None:
            try:
                chunk = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return
            output(chunk)
            if not chunk:
                loop.remove_reader(descriptor)
                pipe.close()

        loop.add_reader(descriptor, readable)

    def _watch(self, process: Process) -> None:
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            self._polled.add(process)
            if len(self._polled) == 1:
                loop.call_later(_POLL_SECONDS, self._poll)
            return

        def ended() -> None:
            if process._ended():
                loop.remove_reader(descriptor)
                os.close(descriptor)
                self._forget(process)

        loop.add_reader(descriptor, ended)

    def _poll(self) -> None:
        for process in [process for process in self._polled if process._ended()]:
            self._polled.discard(process)
            self._forget(process)
        if self._polled:
            asyncio.get_running_loop().call_later(_POLL_SECONDS, self._poll)

    def _forget(self, process: Process) -> None:
        self._running.discard(process)
        self._note(f"- {process.pid}")
        process._gone.set()


def _start_guardian() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(guardian.__file__)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
