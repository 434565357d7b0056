"""A process that makes faults, and is killed while it does."""

from __future__ import annotations

import signal
import subprocess
import sys

import anyio


def begun() -> None:
    """Says so: the killing may start."""
    sys.stdout.write("begun\n")
    sys.stdout.flush()


async def kill_after(seconds: float, module: str, *arguments: str) -> None:
    """Runs `victim(*arguments)` of a module of this folder in a process of its own, and sends it SIGKILL so many
    seconds after it began."""
    program = f"import sys, anyio; from tests.faults import {module}; anyio.run({module}.victim, *sys.argv[1:])"
    process = await anyio.open_process([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.receive()
        await anyio.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await process.aclose()
