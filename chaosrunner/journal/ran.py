"""Commands of the user's: how they are run, and how what they did is taken back, by another process as well."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import anyio
import anyio.abc
import msgspec

from chaosrunner.cluster.actions import answered, sent
from chaosrunner.cluster.session import Cluster
from chaosrunner.journal import fields
from chaosrunner.journal.journal import Entry, Ran, State
from chaosrunner.timeline.redact import Redactor, is_sensitive, mask_schemes
from chaosrunner.timeline.rows import Emit

Verb = Literal["apply", "verify", "undo", "verify_undone"]

ENTRY = "CHAOSRUNNER_ENTRY"
"""Variable of a command with the entry's id: the same in apply and undo, so that a command may remember by it."""

VERB = "CHAOSRUNNER_VERB"
"""Variable of a command that says what it is run for."""

TAIL = 2000
"""Bytes of a command's output that are kept: its last ones."""

STARTING = 0.3
"""Seconds within which a command that was being started when its runner died has begun."""

PROC = Path("/proc")
"""Where Linux shows processes with their environment (proc(5))."""

UNSEEN = (
    "a command whose runner dies while it runs cannot be found on this system (no /proc): it may go on after its undo"
)
"""What a person is told where there is none."""

LINGER = 0.5
"""Seconds for which the output of a command that has ended is read, where children of it keep it open."""


class Outcome(msgspec.Struct, kw_only=True, frozen=True):
    """How a command ended."""

    code: int | None
    """Exit code; negative: by that signal; None: it could not be started, or was killed after its time limit."""
    text: str
    """In words, with the tail of what it printed; credentials of the environment are masked."""
    started: bool = True

    @property
    def ok(self) -> bool:
        return self.code == 0


async def run(argv: Sequence[str], entry: str, verb: Verb, ran: Ran) -> Outcome:
    """Runs a command without a shell and without input. After its time limit, or cancelled, it is killed with all that
    is in its process group."""
    variables = environment(ran.environment) | {ENTRY: entry, VERB: verb}
    try:
        process = await anyio.open_process(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ran.folder,
            env=variables,
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(code=None, text=f"{argv[0]} cannot be started: {error.strerror}", started=False)
    tail = bytearray()
    try:
        with anyio.move_on_after(ran.timeout) as limit:
            await _ended(process, tail)
    finally:
        if process.returncode is None:
            _kill_group(process.pid)
        with anyio.CancelScope(shield=True):
            await process.wait()
            await process.aclose()
    said = _masked(tail, variables)
    if limit.cancelled_caught:
        return Outcome(code=None, text=_text(f"killed after {ran.timeout:g} s", said))
    code = process.returncode
    how = f"exit code {code}" if code is None or code >= 0 else f"ended by {signal.Signals(-code).name}"
    return Outcome(code=code, text=_text(how, said))


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Our own variables and some more; programs installed beside chaosrunner are found too."""
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")))
    return {**os.environ, "PATH": search, **more}


async def undo(cluster: Cluster, entry: Entry, state: State, emit: Emit) -> fields.Decision:
    """Runs the undo command, and the one that verifies it. A command of a runner that died is ended first, on Linux;
    elsewhere it cannot be found, and the decision says so."""
    made = entry.made
    assert isinstance(made, Ran)
    if made.undo is None:
        return fields.Decision(state="already_undone", detail="there is no command that undoes it")
    unseen = state == "intent" and not sees_orphans()
    if state == "intent":
        await anyio.sleep(STARTING)
        end_orphans(entry.entry)
    row = sent(cluster, emit, "command_undo", entry.target, undo=True)
    done = await run(made.undo, entry.entry, "undo", made)
    answer = "accepted" if done.ok else "rejected"
    answered(emit, row, cluster.clock.now(), answer=answer, message=done.text, ok=done.ok)
    if not done.ok:
        return fields.Decision(state="undo_failed", detail=f"undo: {done.text}")
    if made.verify_undone is not None:
        seen = await run(made.verify_undone, entry.entry, "verify_undone", made)
        if not seen.ok:
            return fields.Decision(state="undo_failed", detail=f"verify_undone: {seen.text}")
    return fields.Decision(state="undone", detail=UNSEEN if unseen else None)


def command(entry: Entry) -> str:
    """What a person types to do what undo could not."""
    made = entry.made
    assert isinstance(made, Ran)
    if made.undo is None:
        return f"# nothing is known that undoes {entry.fault} of {entry.target.name}"
    variables = [f"{name}={value}" for name, value in ({ENTRY: entry.entry, VERB: "undo"} | made.environment).items()]
    return f"cd {shlex.quote(made.folder)} && {shlex.join(['env', *variables, *made.undo])}"


def sees_orphans() -> bool:
    """Whether `end_orphans` can find any on this system."""
    return (PROC / "self" / "environ").exists()


def end_orphans(entry: str) -> int:
    """Kills what still runs of an entry's apply command, which nobody awaits any more; how many processes that was.

    Known by their environment, which Linux shows in `PROC`; elsewhere, as on macOS, none is found (`sees_orphans`).
    """
    found = 0
    wanted = {f"{ENTRY}={entry}".encode(), f"{VERB}=apply".encode()}
    for folder in PROC.glob("[0-9]*"):
        try:
            if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                os.kill(int(folder.name), signal.SIGKILL)
                found += 1
        except OSError:
            continue
    return found


async def _ended(process: anyio.abc.Process, tail: bytearray) -> None:
    assert process.stdout is not None
    async with anyio.create_task_group() as group:
        group.start_soon(_read, process.stdout, tail)
        await process.wait()
        group.cancel_scope.deadline = anyio.current_time() + LINGER


async def _read(output: anyio.abc.ByteReceiveStream, tail: bytearray) -> None:
    async for data in output:
        tail += data
        del tail[:-TAIL]


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _masked(tail: bytes | bytearray, variables: Mapping[str, str]) -> str:
    secrets = [value for name, value in variables.items() if is_sensitive(name)]
    return mask_schemes(Redactor(secrets).text(tail.decode(errors="replace").strip()))


def _text(how: str, said: str) -> str:
    return f"{how}: {said}" if said else how
