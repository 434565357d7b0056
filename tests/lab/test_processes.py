"""Nothing that the lab starts outlives it, and nothing else is ever signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from chaosrunner.errors import UserError
from chaosrunner.lab.embedded.agent import guardian
from chaosrunner.lab.embedded.agent.processes import Process, Processes

SLEEP = ["sleep", "60"]
ENV = {"PATH": os.environ["PATH"]}


def until(holds: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(listed.stdout.strip()) and not listed.stdout.strip().startswith("Z")


@pytest.fixture(params=["watched", "polled"])
def watching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to notice the end of a process: a pidfd where there are any, looking now and then elsewhere."""
    if request.param == "polled":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
        monkeypatch.delattr(os, "waitid", raising=False)
    return str(request.param)


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEP, start_new_session=True)


def start(processes: Processes, command: list[str], tmp_path: Path) -> tuple[Process, list[bytes]]:
    output: list[bytes] = []
    return processes.start(command, ENV, tmp_path, output.append), output


@pytest.mark.anyio
async def test_exit_codes_and_output(tmp_path: Path, watching: str) -> None:
    async with Processes(tmp_path / "ledger").open() as processes:
        ended, output = start(processes, ["sh", "-c", "echo out; echo err >&2; exit 3"], tmp_path)
        assert await ended.wait() == 3
        killed, _ = start(processes, SLEEP, tmp_path)
        killed.signal(signal.SIGTERM)
        assert await killed.wait() == 143
        await anyio.to_thread.run_sync(until, lambda: b"" in output)
        assert b"".join(output) == b"out\nerr\n"
        with pytest.raises(FileNotFoundError):
            start(processes, ["no-such-program"], tmp_path)


@pytest.mark.anyio
async def test_the_children_of_a_process_end_with_it(tmp_path: Path, watching: str) -> None:
    async with Processes(tmp_path / "ledger").open() as processes:
        process, output = start(processes, ["sh", "-c", "sleep 60 & echo $!; exit 0"], tmp_path)
        await process.wait()
        await anyio.to_thread.run_sync(until, lambda: b"" in output)
        child = int(b"".join(output))
        await anyio.to_thread.run_sync(until, lambda: not is_alive(child))


@pytest.mark.anyio
async def test_closing_leaves_nothing_behind(tmp_path: Path) -> None:
    async with Processes(tmp_path / "ledger").open() as processes:
        stubborn, _ = start(processes, ["sh", "-c", "trap '' TERM; sleep 60"], tmp_path)
        assert is_alive(stubborn.pid)
    assert not is_alive(stubborn.pid)
    assert not (tmp_path / "ledger").exists()


@pytest.mark.anyio
async def test_a_process_that_has_ended_is_not_signalled(tmp_path: Path) -> None:
    async with Processes(tmp_path / "ledger").open() as processes:
        process, _ = start(processes, ["true"], tmp_path)
        await process.wait()
        process.signal(signal.SIGKILL)
        process.kill()
        assert process.exit_code == 0


HOLDER = """
import anyio, os, sys
from pathlib import Path
from chaosrunner.lab.embedded.agent.processes import Processes

async def main(folder):
    async with Processes(folder / "ledger").open() as processes:
        command = ["sh", "-c", "sleep 60 & exec sleep 60"]
        process = processes.start(command, {"PATH": os.environ["PATH"]}, folder, lambda chunk: None)
        print(process.pid, flush=True)
        await anyio.sleep_forever()

anyio.run(main, Path(sys.argv[1]))
"""


def test_a_killed_lab_takes_its_processes_along(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    listed = subprocess.run(["ps", "-o", "pid=", "-g", str(pid)], capture_output=True, text=True, check=False)
    group = [int(word) for word in listed.stdout.split()]
    assert pid in group
    holder.kill()
    holder.wait()
    until(lambda: not any(map(is_alive, group)))
    assert f"+ {pid} " in (tmp_path / "ledger").read_text()


@pytest.mark.anyio
async def test_the_next_start_cleans_up_by_start_time(tmp_path: Path) -> None:
    """A process of the ledger is killed only if it is the one that was started, not another with the same id."""
    left, other = _sleeper(), _sleeper()
    try:
        ledger = tmp_path / "ledger"
        ledger.write_text(f"+ {left.pid} {guardian.identity(left.pid)}\n+ {other.pid} 12345\n+ 999999999 1\n")
        async with Processes(ledger).open():
            await anyio.to_thread.run_sync(until, lambda: not is_alive(left.pid))
            assert is_alive(other.pid)
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


@pytest.mark.anyio
async def test_a_folder_belongs_to_one_lab(tmp_path: Path) -> None:
    async with Processes(tmp_path / "ledger").open() as processes:
        process, _ = start(processes, SLEEP, tmp_path)
        with pytest.raises(UserError, match="another lab"):
            async with Processes(tmp_path / "ledger").open():
                pass
        assert is_alive(process.pid)


def test_process_one_is_never_signalled() -> None:
    identity = guardian.identity(1)
    assert identity is not None
    assert guardian.kill_group(1, identity) is False


def test_an_identity_is_that_of_one_process() -> None:
    with subprocess.Popen(["sleep", "5"]) as process:
        identity = guardian.identity(process.pid)
        assert identity
        assert identity == guardian.identity(process.pid)
        process.kill()
    assert guardian.identity(process.pid) != identity
