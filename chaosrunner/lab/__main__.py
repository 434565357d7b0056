"""`python -m chaosrunner.lab --spec SPEC.json --state DIR`: run the embedded lab until told to end.

When the lab serves, one JSON line appears on standard output: kubeconfig, context, state (its folder), nodes,
namespace, url (the gateway), prometheus (the alert source), toxiproxy (Toxiproxy's API for the gateway's links),
gateway (selector and namespace of its Pods), log (the lab's own log of instants), control (see
`chaosrunner.lab.embedded.cluster`), pod_header (by which the gateway names the serving Pod; null where it does not),
pid. For as long as it serves, ready.json in its folder says the same. Everything else goes to standard error. Exit
codes: 0 ended as told, 1 the workload did not become ready, 2 bad spec.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import structlog

from chaosrunner.errors import UserError
from chaosrunner.lab import spec as specs
from chaosrunner.lab.embedded.cluster import run_lab

log = structlog.get_logger()

_READY_SECONDS = 60.0
"""Patience beyond the workload's own start-up time."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaosrunner.lab", description="Run the embedded lab.")
    parser.add_argument("--spec", type=Path, required=True, help="JSON file: a drill's `lab:` section")
    parser.add_argument("--state", type=Path, required=True, help="folder for the lab's files")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end also when standard input ends")
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    _allow_many_files()
    try:
        spec = specs.read(options.spec.read_bytes())
        return anyio.run(_run, spec, options.state, options.until_stdin_closes)
    except (UserError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


async def _run(spec: specs.LabSpec, state: Path, until_stdin_closes: bool) -> int:
    stop = anyio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_closes:
        _await_end_of_input(stop)
    return await _serve(spec, state, stop)


async def _serve(spec: specs.LabSpec, state: Path, stop: anyio.Event) -> int:
    async with run_lab(spec, state) as lab:
        with anyio.move_on_after(spec.startup + _READY_SECONDS) as patience:
            async with anyio.create_task_group() as group:

                async def give_up() -> None:
                    await stop.wait()
                    group.cancel_scope.cancel()

                group.start_soon(give_up)
                await lab.ready()
                await lab.settle()
                group.cancel_scope.cancel()
        if patience.cancelled_caught:
            log.error("the workload did not become ready", seconds=spec.startup + _READY_SECONDS)
            return 1
        if not stop.is_set():
            ready = lab.state / "ready.json"
            ready.write_text(json.dumps({"kind": "embedded"} | lab.ready_line()) + "\n")
            sys.stdout.write(json.dumps(lab.ready_line()) + "\n")
            sys.stdout.flush()
            await stop.wait()
            ready.unlink()
    return 0


def _await_end_of_input(stop: anyio.Event) -> None:
    """A thread waits, as a loop cannot watch every kind of standard input; it dies with the process."""
    loop = asyncio.get_running_loop()

    def wait() -> None:
        while os.read(0, 4096):
            pass
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait, daemon=True).start()


def _allow_many_files() -> None:
    """Each container takes a few descriptors; take as many as the system gives without asking."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS reports no limit where it has one; 10240 is what it grants.
    wanted = 10240 if most == resource.RLIM_INFINITY else most
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


if __name__ == "__main__":
    sys.exit(main())
