"""Starts, finds and ends a real lab, from the machine's own namespaces."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaosrunner.errors import UserError
from chaosrunner.lab.real import binaries, cgroups, images, requirements
from chaosrunner.lab.real.network import nodes
from chaosrunner.lab.real.state import DEFAULT, State

Tell = Callable[[str], None]

_REQUEST_SECONDS = 100.0
"""Longest wait for the keeper's answer; a bit more than the longest end of a component."""
_END_SECONDS = 120.0
"""Longest wait for another command that is starting or ending the lab, before it is ended."""
_KILL_SECONDS = 30.0
"""Longest time that killed processes take to end."""


class NotUp(Exception):
    """The lab did not come up; the text says which part and where the logs are."""


def up(state: State, count: int, tell: Tell, *, owner: int | None = None) -> dict[str, Any]:
    """Bring up a lab of `count` nodes and `infra`; returns what it tells of itself when all are Ready.

    `owner`: the reading end of a pipe; the lab ends when the other end closes. What an earlier lab left in the folder
    is cleared first. UserError for what the user can mend, before anything is started; NotUp for a lab that fails.
    """
    nodes(count)
    state.check()
    _check_none_stands(state)
    if missing := requirements.missing(state.folder):
        raise UserError("\n".join(missing))
    built = binaries.cached() or binaries.build(tell)
    tell("images")
    made = {
        "pause": images.pause(built),
        "coredns": images.coredns(built),
        "workload": images.workload(),
        "agent": images.agent(tell),
    }
    with _alone(state):
        _check_none_stands(state)
        _sweep(state)
        state.claim()
        (state.folder / "images.json").write_text(json.dumps({name: one.reference for name, one in made.items()}))
        command = [sys.executable, "-m", "chaosrunner.lab.real.keeper", str(state.folder)]
        command += [f"--binaries={built.folder}", f"--nodes={count}", f"--pause={made['pause'].reference}"]
        command += [f"--dns={made['coredns'].reference}"]
        command += [f"--image={one.tar}" for one in made.values()]
        command += [f"--owner={owner}"] if owner is not None else []
        with (state.logs / "keeper.log").open("wb") as errors, state.keeper_lock.open("rb") as lock:
            # The keeper inherits the lock, and holds it until its end.
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                pass_fds=[lock.fileno(), *([owner] if owner is not None else [])],
                start_new_session=True,
            )
        try:
            ready = _await(process, tell)
        except BaseException:
            end(state)
            raise
        if "failed" in ready:
            end(state)
            raise NotUp(f"the lab did not come up: {ready['failed']} (logs: {state.logs})")
        return dict(ready["ready"])


def _await(process: subprocess.Popen[str], tell: Tell) -> dict[str, Any]:
    """Pass on what the keeper does, until it is ready or has failed."""
    assert process.stdout is not None
    with process, process.stdout:
        for line in process.stdout:
            said = json.loads(line)
            if "doing" not in said:
                return dict(said)
            tell(said["doing"])
    return {"failed": "its keeper ended; see keeper.log"}


def down(state: State) -> bool:
    """End the lab, or clear what one left that died. Returns whether there was anything. UserError if some of it is
    still in use."""
    with _alone(state, _END_SECONDS):
        if not (state.is_lab() or cgroups.exist(state.name)):
            return False
        end(state)
        _sweep(state)
    return True


def _check_none_stands(state: State) -> None:
    if state.is_kept():
        raise UserError(f"a lab stands already at {state.folder}; end it first: {_command('lab down', state)}")


def end(state: State) -> None:
    """Kill process 1 of the lab, and all others with it; its files stay. UserError if it does not end."""
    deadline = time.monotonic() + _KILL_SECONDS
    while state.is_kept():
        if time.monotonic() > deadline:
            raise UserError(f"the processes of the lab at {state.folder} do not end; its keeper is {state.keeper()}")
        keeper = state.noted_keeper()
        if keeper is None:
            # It has just begun, and will be known by its number in a moment.
            time.sleep(0.05)
            continue
        try:
            process = os.pidfd_open(keeper)
        except ProcessLookupError:
            continue
        try:
            # Only now it is certain that the number is still the keeper's.
            if state.is_kept():
                signal.pidfd_send_signal(process, signal.SIGKILL)
                # It has ended when all processes of its namespace have.
                select.select([process], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(process)


def _sweep(state: State) -> None:
    """Remove what is left of a lab without processes: control groups and files."""
    if left := cgroups.remove(state.name):
        raise UserError(f"control group {left[-1]} is still in use, by processes that are not the keeper's any more")
    if state.is_lab():
        shutil.rmtree(state.folder)


@contextmanager
def _alone(state: State, patience: float = 0) -> Iterator[None]:
    """Only one command at a time starts or ends a lab. UserError where another one does for `patience` seconds."""
    path = Path("/run") / f"{state.name}.lock"
    deadline = time.monotonic() + patience
    while True:
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UserError(f"another command is starting or ending the lab at {state.folder}") from None
                time.sleep(0.1)
                continue
            if not path.exists() or not os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                continue  # whoever had it removed it: the next one is another file
            try:
                yield
            finally:
                path.unlink()
            return


def standing(state: State) -> dict[str, Any]:
    """What the lab told of itself. UserError where none stands."""
    told = state.told()
    if told is None:
        if state.is_kept():
            raise UserError(f"the lab at {state.folder} is not up yet")
        raise UserError(f"no lab stands at {state.folder}; start one: {_command('lab up --real', state)}")
    return told


def image(state: State, name: str) -> str:
    """The reference of one of the lab's images: pause, coredns, workload or agent."""
    return str(json.loads((state.folder / "images.json").read_text())[name])


def ask(state: State, **request: Any) -> Any:
    """Let the keeper do something; see `Keeper.do`. UserError where it cannot, or no lab stands."""
    standing(state)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_REQUEST_SECONDS)
        try:
            connection.connect(str(state.control))
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(connection.makefile("rb").readline())
        except (OSError, ValueError) as error:
            raise UserError(f"the lab at {state.folder} does not answer: {error}") from None
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["answer"]


def environment(state: State) -> dict[str, str]:
    """The environment of a command inside the lab: KUBECONFIG, and PATH with kubectl and the lab's own tools."""
    built = binaries.cached()
    kubectl = binaries.kubectl()
    folders = [kubectl.parent if kubectl else None, built.folder if built else None]
    search = [str(folder) for folder in folders if folder] + [os.environ["PATH"]]
    return os.environ | {"KUBECONFIG": str(state.kubeconfig), "PATH": os.pathsep.join(search)}


def _command(verb: str, state: State) -> str:
    return f"chaosrunner {verb}" + ("" if state.folder == DEFAULT else f" --state {state.folder}")
