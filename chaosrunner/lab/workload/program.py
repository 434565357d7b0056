"""What every program of the workload does: it serves until it is told to end."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from chaosrunner.lab.workload.http1 import Server
from chaosrunner.lab.workload.journal import Journal


async def listen(server: Server, options: argparse.Namespace, journal: Journal) -> int | None:
    """Open the program's port and log it; None, and the reason on standard error, where it cannot be had."""
    try:
        port = await server.listen(options.host, options.port)
    except OSError as error:
        sys.stderr.write(f"cannot listen on {options.host}:{options.port}: {error.strerror}\n")
        return None
    journal.write("listening", host=options.host, port=port)
    return port


async def serve(
    server: Server, options: argparse.Namespace, journal: Journal, *jobs: Coroutine[Any, Any, None], **more: Any
) -> int:
    """Serve beside `jobs` until SIGTERM or SIGINT; returns the exit code. `more` is logged with the start."""
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, end.set)
    journal.write("start", pid=os.getpid(), **more)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
        listening = await listen(server, options, journal) is not None
        if listening:
            await end.wait()
        for task in tasks:
            task.cancel()
    await server.close()
    if not listening:
        return 1
    journal.write("exit", code=0)
    return 0
