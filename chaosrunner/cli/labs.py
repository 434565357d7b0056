"""The labs that stand on this machine, and the one that a command is about. Imports nothing heavy."""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from click.shell_completion import CompletionItem

from chaosrunner.cli import real_lab
from chaosrunner.errors import UserError
from chaosrunner.journal import process
from chaosrunner.journal.process import Process

Kind = Literal["embedded", "real"]

OF_REHEARSAL = "CHAOSRUNNER_LAB"
"""Environment variable: the state folder of a rehearsal's lab, for the commands of its drill."""

READY = "ready.json"
"""Name of the file in a lab's state folder that tells how it is reached."""

LEDGER = "processes"
"""Name of the file there on which an embedded lab holds a lock while it runs."""


class Lab(msgspec.Struct, kw_only=True):
    """A lab that stands. Without a workload it has no namespace and nothing that is reached by a URL."""

    kind: Kind
    state: str
    """Its folder, absolute."""
    kubeconfig: str
    context: str
    nodes: list[str] = []
    namespace: str | None = None
    url: str | None = None
    """Of the gateway."""
    prometheus: str | None = None
    """URL of the alert source."""
    pod_header: str | None = None
    control: str | None = None
    """URL at which the embedded lab takes what no Kubernetes API offers."""
    network: str | None = None
    """Network namespace in which all its addresses are; None where they are the machine's own."""
    components: dict[str, bool] = {}
    """Of a real lab: whether each runs."""
    cut: list[str] = []
    """Of a real lab: nodes that are cut off."""
    abandoned: list[str] = []
    """Of a real lab: namespaces of workloads whose rehearsals were killed; the next one there removes them."""
    process: Process | None = None
    """Who keeps an embedded lab; it ends with that."""


def standing(kind: Kind | None = None, state: Path | None = None) -> list[Lab]:
    """Labs of this user that stand; of both kinds and anywhere unless told otherwise. Raises UserError where only the
    real one is meant and this user can have none."""
    if kind == "real":
        real_lab.check_machine()
    found: list[Lab] = []
    if kind != "real":
        found += [lab for lab in _embedded() if state is None or lab.state == str(state.resolve())]
        if state is not None and not found:
            found += _embedded_at(state)
    if kind != "embedded" and not (state and found):  # a folder holds one lab
        found += _real(state or real_lab.STATE)
    return found


def chosen(kind: Kind | None, state: Path | None) -> Lab:
    """The lab that is meant: that of the rehearsal whose command this is, where nothing else is said.

    Raises UserError where none stands or several could be.
    """
    if state is None and OF_REHEARSAL in os.environ:
        state = Path(os.environ[OF_REHEARSAL])
    labs = standing(kind, state)
    if len(labs) == 1:
        return labs[0]
    if not labs:
        name = f"no {kind} lab" if kind else "no lab"
        where = f" at {state}" if state else ""
        more = {"real": " --real", "embedded": ""}
        ways = " or ".join(f"chaosrunner lab up{more[one]}" for one in more if kind in (None, one))
        unseen = "" if kind or real_lab.is_possible() else " (a real one is seen by root only, on Linux)"
        raise UserError(f"{name} stands{where}; start one with: {ways}{unseen}")
    if len({lab.kind for lab in labs}) > 1:
        raise UserError("an embedded lab and a real one stand: say which by --embedded or --real")
    raise UserError(f"{len(labs)} labs stand: say which by --state: {', '.join(lab.state for lab in labs)}")


def option(lab: Lab) -> str:
    """What to add to a command for it to be about this lab, when it is the only one of its kind."""
    elsewhere = lab.kind == "real" and Path(lab.state) != real_lab.STATE
    return f" --state {shlex.quote(lab.state)}" if elsewhere else ""


# --- the real one: its state folder tells -------------------------------------------------------------------


def real(told: dict[str, Any]) -> Lab:
    """What the real lab's program told of it."""
    return msgspec.convert(told | {"kind": "real"}, Lab)


def _real(state: Path) -> list[Lab]:
    told = real_lab.status(state)
    return [real(told)] if told else []


# --- embedded ones: each is noted by who keeps it -----------------------------------------------------------


def _folder() -> Path:
    """Where the notes of this user's labs are (XDG Base Directory Specification: state)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "chaosrunner" / "labs"


@contextmanager
def noted(lab: Lab) -> Iterator[None]:
    """Lets other commands find the lab for the length of the block, where a note can be written."""
    note = _folder() / f"{os.getpid()}.json"
    draft = note.with_suffix(".new")
    try:
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.touch(mode=0o600)  # the folder that it names holds the administrator's token
        draft.write_bytes(msgspec.json.encode(lab))
        draft.replace(note)
    except OSError as error:
        click.echo(f"other commands will not find this lab: {note}: {error.strerror}", err=True)
        yield
        return
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def _embedded() -> list[Lab]:
    """Labs whose keeper is alive; the notes of dead ones are removed."""
    found = []
    for note in sorted(_folder().glob("*.json")):
        lab = _read(note)
        state = process.liveness(lab.process) if lab and lab.process else "dead"
        if lab and state == "alive":
            found.append(lab)
        elif state == "dead":
            note.unlink(missing_ok=True)
    return found


def _embedded_at(state: Path) -> list[Lab]:
    """The embedded lab that serves in a folder: that of a rehearsal, which nobody notes."""
    lab = _read(state / READY)
    return [lab] if lab is not None and lab.kind == "embedded" and _is_held(state / LEDGER) else []


def _is_held(path: Path) -> bool:
    """Whether somebody holds the lock on a file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def of_rehearsal(state: str) -> Iterator[None]:
    """Lets the programs that are started within the block find the lab in this folder."""
    before = os.environ.get(OF_REHEARSAL)
    os.environ[OF_REHEARSAL] = state
    try:
        yield
    finally:
        if before is None:
            del os.environ[OF_REHEARSAL]
        else:
            os.environ[OF_REHEARSAL] = before


def _read(note: Path) -> Lab | None:
    try:
        return msgspec.json.decode(note.read_bytes(), type=Lab)
    except (OSError, msgspec.MsgspecError):
        return None


# --- what the shell may offer -------------------------------------------------------------------------------


def complete_node(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _offered(incomplete, (name for lab in _meant(context.params) for name in lab.nodes))


def complete_component(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    labs = _meant(context.params | {"kind": "real"}) if real_lab.is_possible() else []
    on_nodes = (f"{name}@{node}" for lab in labs for name in real_lab.NODE_COMPONENTS for node in lab.nodes)
    return _offered(incomplete, [*real_lab.COMPONENTS, *on_nodes])


def _meant(params: dict[str, Any]) -> list[Lab]:
    """The labs that a command line is about; none where it asks for one that this user may not see."""
    try:
        return standing(params.get("kind"), params.get("state"))
    except UserError:
        return []


def _offered(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
