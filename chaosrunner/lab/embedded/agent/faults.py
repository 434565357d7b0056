"""What image `chaosrunner/agent` does to the processes of a container, done to local processes: a program of its own.

    python -m chaosrunner.lab.embedded.agent.faults freeze --entry ID --for SECONDS [--start-by UNIX] [--process NAME]
    python -m chaosrunner.lab.embedded.agent.faults kill --entry ID [--signal NUMBER] [--start-by UNIX] [--process NAME]
    python -m chaosrunner.lab.embedded.agent.faults heal --entry ID

It tells what happens as one JSON object a line on standard output; the last one is also its termination message. Exit
codes: 0 the fault is over, 2 it cannot be made here, 1 something of it may be left.

What is frozen is written down before it is stopped, and goes on at the time limit, at SIGTERM, when the agent of the
node finds that this program has ended, or by `heal`. Processes are known by id and start time, as in `guardian`. The
standard library alone: it is started for one fault.

Environment: LAB_TARGET, id and start time of the container's main process (empty where no container is aimed at);
LAB_FAULTS, the Pod's folder of what is frozen; LAB_TERMINATION_LOG, the file of the termination message.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from chaosrunner.lab.embedded.agent.guardian import identity

LOOK = 0.1
"""Seconds between two looks whether what is frozen was ended meanwhile."""
_PATIENCE = 5.0
"""Seconds that another agent has to let go what it froze, once it was told to."""
_NAME_BYTES = 15
"""Longest name of a process (TASK_COMM_LEN without the zero at its end)."""


class Refusal(Exception):
    """The fault cannot be made here; nothing of it is left."""


@dataclass(frozen=True)
class Found:
    """A process: its id, its parent's, its name and the words of its command line."""

    pid: int
    parent: int
    name: str
    words: tuple[str, ...]

    def is_called(self, name: str) -> bool:
        """By its name, which may have been cut off, or by a word of its command line or the end of one."""
        short = len(name) > _NAME_BYTES and self.name == name[:_NAME_BYTES]
        return self.name == name or short or any(name in (word, Path(word).name) for word in self.words)

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


def processes() -> Iterator[Found]:
    """All processes that can be seen."""
    if not Path("/proc/self/stat").exists():
        yield from _listed()
        return
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
            command = (entry / "cmdline").read_text(errors="replace")
        except OSError:
            continue
        state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
        if state not in "ZX":
            name = stat[stat.index("(") + 1 : stat.rindex(")")]
            yield Found(int(entry.name), int(parent), name, tuple(word for word in command.split("\0") if word))


def _listed() -> Iterator[Found]:
    """As `processes`, where there is no /proc."""
    listed = subprocess.run(["ps", "-axo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        pid, parent, state, *words = line.split()
        if not state.startswith("Z") and words:
            yield Found(int(pid), int(parent), Path(words[0]).name, tuple(words))


def choose(target: str, name: str) -> list[Found]:
    """The main process of the container that `target` (LAB_TARGET) names, or all below it that are called `name`."""
    pid, _, started = target.partition(" ")
    if not pid or identity(int(pid)) != started:
        raise Refusal(
            "no process of the container is seen here: it needs the container's process namespace (targetContainerName)"
        )
    everything = list(processes())
    below = {int(pid)}
    while len(below) < len(below := below | {one.pid for one in everything if one.parent in below}):
        pass
    inside = [one for one in everything if one.pid in below]
    if not name:
        return [one for one in inside if one.pid == int(pid)]
    found = [one for one in inside if one.pid != int(pid) and one.is_called(name)]
    if not found:
        names = ", ".join(map(str, inside))
        raise Refusal(f"no child of the main process is called {name}; there are: {names}")
    return found


class Record:
    """The file that says what an entry froze, and which process will let it go."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, frozen: list[Found]) -> None:
        text = json.dumps([_identified(pid) for pid in (os.getpid(), *(one.pid for one in frozen))])
        draft = self._path.with_suffix(".new")
        draft.write_text(text)
        draft.replace(self._path)

    def read(self) -> tuple[tuple[int, str], list[tuple[int, str]]] | None:
        """The agent, and what it froze; None when nothing is frozen."""
        try:
            agent, *frozen = json.loads(self._path.read_text())
        except FileNotFoundError:
            return None
        return (agent[0], agent[1]), [(pid, started) for pid, started in frozen]

    def release(self) -> None:
        """Let everything go on. Doing it twice changes nothing."""
        found = self.read()
        for pid, started in found[1] if found else ():
            _signal(pid, started, signal.SIGCONT)
        self._path.unlink(missing_ok=True)


def release_of(folder: Path, agent: int) -> None:
    """Let go what a process, which has ended by now, froze and did not let go itself."""
    for path in folder.glob("*.json"):
        record = Record(path)
        found = record.read()
        if found is not None and found[0][0] == agent:
            record.release()


def _identified(pid: int) -> tuple[int, str]:
    return pid, identity(pid) or ""


def _is_there(pid: int, started: str) -> bool:
    return bool(started) and identity(pid) == started


def _signal(pid: int, started: str, number: int) -> bool:
    """Signal a process if it still is the one that was meant; whether it was."""
    if pid <= 1 or not _is_there(pid, started):
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class Program:
    """One run of the agent."""

    def __init__(self, target: str, folder: Path, termination: Path) -> None:
        self._target = target
        self._folder = folder
        self._termination = termination
        self._wakes, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def run(self, words: list[str]) -> int:
        """Do what the command line says; returns the exit code."""
        entry = ""
        try:
            options = _options(words)
            entry = options.entry
            by = getattr(options, "start_by", 0.0)
            if by and (late := time.time() - by) > 0:
                raise Refusal(f"started {late:.1f} s too late by this node's clock")
            text = getattr(self, f"_{options.verb}")(options)
        except Refusal as refusal:
            self._tell("refused", entry, str(refusal))
            return 2
        except OSError as error:
            self._tell("failed", entry, str(error))
            return 1
        self._tell("ended", entry, text)
        return 0

    def _tell(self, event: str, entry: str, text: str) -> None:
        line = json.dumps({"event": event} | ({"entry": entry} if entry else {}) | {"text": text}) + "\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        self._termination.write_text(line)

    def _network(self, options: argparse.Namespace) -> str:
        raise Refusal("Pods of the embedded lab have no network of their own")

    def _freeze(self, options: argparse.Namespace) -> str:
        chosen = choose(self._target, options.process)
        frozen = [_identified(one.pid) for one in chosen]
        names = ", ".join(map(str, chosen))
        record = Record(self._folder / f"{options.entry}.json")
        record.write(chosen)
        try:
            end = time.monotonic() + options.seconds
            for pid, started in frozen:
                _signal(pid, started, signal.SIGSTOP)
            self._tell("set", options.entry, f"{names} stands still")
            while (left := end - time.monotonic()) > 0:
                if number := self._told(min(left, LOOK)):
                    return f"ended by signal {signal.Signals(number).name}"
                if not any(_is_there(pid, started) for pid, started in frozen):
                    return f"{names} ended meanwhile"
            return "time limit reached"
        finally:
            record.release()

    def _told(self, seconds: float) -> int | None:
        """Wait for a signal that ends the fault; its number, None when none came."""
        readable, _, _ = select.select([self._wakes], [], [], seconds)
        return os.read(self._wakes, 1)[0] if readable else None

    def _kill(self, options: argparse.Namespace) -> str:
        try:
            number = signal.Signals(options.signal)
        except ValueError:
            raise Refusal(f"there is no signal {options.signal}") from None
        if number in (signal.SIGSTOP, signal.SIGTSTP):
            raise Refusal("a stopped process does not go on by itself: use freeze")
        chosen = choose(self._target, options.process)
        for one in chosen:
            _signal(one.pid, identity(one.pid) or "", number)
        names = ", ".join(map(str, chosen))
        text = f"{number.name} sent to {names}"
        self._tell("set", options.entry, text)
        end = time.monotonic() + _PATIENCE
        while number == signal.SIGKILL and time.monotonic() < end:
            if not {one.pid for one in chosen} & {one.pid for one in processes()}:
                return f"{names} killed"
            time.sleep(0.05)
        return text

    def _heal(self, options: argparse.Namespace) -> str:
        record = Record(self._folder / f"{options.entry}.json")
        found = record.read()
        if found is None:
            return "nothing of it was left"
        (agent, started), _ = found
        _signal(agent, started, signal.SIGTERM)
        end = time.monotonic() + _PATIENCE
        while record.read() is not None and _is_there(agent, started) and time.monotonic() < end:
            time.sleep(0.01)
        record.release()
        return "the frozen processes go on"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refusal(message)


def _options(words: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="agent", add_help=False, allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("network", add_help=False).add_argument("entry", nargs="?")
    for verb in ("freeze", "kill", "heal"):
        options = verbs.add_parser(verb, add_help=False, allow_abbrev=False)
        options.add_argument("--entry", default="")
        if verb != "heal":
            options.add_argument("--container", default="")  # there is no other than the one that is aimed at
            options.add_argument("--process", default="")
            options.add_argument("--start-by", type=float, default=0.0)
        if verb == "freeze":
            options.add_argument("--for", type=float, default=0.0, dest="seconds")
        if verb == "kill":
            options.add_argument("--signal", type=int, default=int(signal.SIGKILL))
    found = parser.parse_args(words)
    if found.verb == "network":
        found.entry = ""
    elif not (found.entry.isascii() and found.entry.isalnum() and len(found.entry) <= 64):
        raise Refusal(f"--entry wants letters and digits, not {json.dumps(found.entry)}")
    if found.verb == "freeze" and not found.seconds > 0:
        raise Refusal("--for wants a number of seconds above 0")
    return found


def main() -> int:
    environ = os.environ
    program = Program(environ.get("LAB_TARGET", ""), Path(environ["LAB_FAULTS"]), Path(environ["LAB_TERMINATION_LOG"]))
    return program.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
