"""The real lab as seen from here: a program of its own, which is started and asked, never imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaosrunner.errors import Refused, UserError

STATE = Path("/var/lib/chaosrunner-lab")
"""The program's default for its state folder."""

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE_COMPONENTS = ("kubelet", "kube-proxy", "containerd")
"""Each node has these; `kubelet@node1` is one of them."""

LOOK = 0.2
"""Seconds between two looks at what the program said."""

STOP_LIMIT = 60.0
"""Longest orderly stop of the program, seconds."""

Tell = Callable[[str], None]
"""Hears what goes on, a line at a time."""


def check_machine(*, root: bool = True) -> None:
    """Raises UserError where no real lab can stand: elsewhere than on Linux, or for somebody who is not root."""
    if sys.platform != "linux":
        raise UserError("a real lab needs Linux; the embedded one runs here: chaosrunner lab up")
    if root and os.geteuid() != 0:
        raise UserError("a real lab needs root (network namespaces, mounts, control groups); the embedded one does not")


def is_possible() -> bool:
    """Whether a real lab could stand here, for this user."""
    return sys.platform == "linux" and os.geteuid() == 0


def command(verb: str, state: Path | None, *arguments: str) -> list[str]:
    """The program's command line; `state` is None for what is not about one lab."""
    where = ["--state", str(state.resolve())] if state else []
    return [sys.executable, "-m", "chaosrunner.lab.real", verb, *where, *arguments]


def call(verb: str, state: Path | None, *arguments: str, tell: Tell) -> dict[str, Any]:
    """Runs a verb to its end; returns what it answered. An interruption ends it in order, and so does our death where
    the verb is told to end when its stdin closes.

    Raises UserError where the program says that the user can mend it, Refused for all else that went wrong.
    """
    with nameless() as errors_file, nameless() as answer:
        said = Said(errors_file, tell)
        with said.path.open("wb") as errors, answer.open("wb") as output:
            process = subprocess.Popen(
                command(verb, state, *arguments),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                start_new_session=True,  # Ctrl-C comes to it through us, once
            )
        try:
            while not _ended(process, LOOK):
                said.look()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            _ended(process, STOP_LIMIT)
            raise
        finally:
            if process.stdin is not None:
                process.stdin.close()
        if process.returncode:
            raise said.error(process.returncode)
        said.end()
        lines = answer.read_text().splitlines()
    return dict(json.loads(lines[-1])) if lines else {}


@contextmanager
def nameless() -> Iterator[Path]:
    """A path to a file without a name, for us and programs that we start: it goes with us, also if we are killed."""
    with tempfile.TemporaryFile() as file:
        yield Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")


def status(state: Path) -> dict[str, Any] | None:
    """What the program tells of the lab at `state`; None where none stands there, or this user may not know."""
    if not is_possible() or not (state / "ready.json").exists():
        return None
    try:
        return call("status", state, tell=lambda line: None)
    except UserError:
        return None


def _ended(process: subprocess.Popen[bytes], patience: float) -> bool:
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        return False
    return True


class Said:
    """What a program writes to a file while it runs: told line by line, each one once.

    The last line is kept back until the look after the one that found it: with an error the program ends.
    """

    def __init__(self, path: Path, tell: Tell) -> None:
        self.path = path
        self._tell = tell
        self._told = 0
        self._found = 0

    def look(self) -> None:
        """Tells what is new."""
        lines = self._lines()
        self._pass_on(lines, len(lines) if len(lines) == self._found else len(lines) - 1)
        self._found = len(lines)

    def end(self) -> None:
        """Tells the rest."""
        lines = self._lines()
        self._pass_on(lines, len(lines))

    @property
    def last(self) -> str:
        """The last line; what it said last, which is the error if it ended with one."""
        lines = self._lines()
        return lines[-1].strip().removeprefix("error: ") if lines else "it said nothing"

    def error(self, code: int | None) -> UserError:
        """The last line as the error that it is by the program's exit code. Tells what it wrote before."""
        self._pass_on(lines := self._lines(), len(lines) - 1)
        return UserError(self.last) if code == UserError.exit_code else Refused(f"the lab failed: {self.last}")

    def _lines(self) -> list[str]:
        return [line for line in self.path.read_text(errors="replace").splitlines(keepends=True) if line.endswith("\n")]

    def _pass_on(self, lines: list[str], end: int) -> None:
        for line in lines[self._told : end]:
            self._tell(line.rstrip())
        self._told = max(self._told, end)
