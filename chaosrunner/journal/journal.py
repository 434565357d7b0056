"""The journal's file: append-only JSON lines, each on the disk before the call that it announces.

An entry begins with an `intent` line: the object, the fields with their previous and desired values, how to
reach the cluster again, and who owns the run. `mark` lines follow as its state changes. The intent alone is
enough to undo the change, in another process, after the first was killed at any instruction.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import anyio.to_thread
import msgspec
import structlog

from chaosrunner.journal import process
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Emit

log = structlog.get_logger()

NAME = "journal.jsonl"
"""File name of a journal inside a recording's folder."""

State = Literal[
    "intent", "applied", "not_applied", "undone", "already_undone", "changed_by_others", "undo_failed", "forgotten"
]
"""intent: about to be sent. applied: the cluster took it. not_applied: it did not. undone: put back as it was.
already_undone: nothing was left to put back (somebody did it, or the object is gone). changed_by_others: somebody
changed the field since, so it was left as they want it. undo_failed: tried in vain. forgotten: tried in vain, and
somebody said that it is not to be tried again."""

OPEN: frozenset[State] = frozenset({"intent", "applied", "undo_failed"})
"""States that still ask for an undo."""


class JournalLost(Exception):
    """The journal cannot be written: nothing more may be changed. What is on the disk stays valid."""


class Connection(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How to reach the cluster again: references only, never a secret."""

    kubeconfig: str | None = None
    """Path; None means kubectl's rules (KUBECONFIG, ~/.kube/config, in-cluster)."""
    context: str | None = None
    server: str | None = None
    namespace: str | None = None
    as_user: str | None = None
    as_group: tuple[str, ...] = ()


class Field(msgspec.Struct, kw_only=True, frozen=True):
    """One field of an object. Values are JSON; None means that the field is absent."""

    path: str
    """JSON pointer (RFC 6901) from the object's root; its parent exists."""
    previous: Any
    desired: Any
    keys: tuple[str, ...] = ()
    """Where the path leads to a list and the field is one of its elements: what identifies the element, as the API's
    `x-kubernetes-list-map-keys` do. The others, and their order, are nobody's business."""


class Injected(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, tag_field="made", tag="injected"):
    """An ephemeral container in the entry's Pod, that makes an effect and ends it by itself."""

    container: str
    image: str
    pull_policy: str = "IfNotPresent"
    target_container: str | None = None
    """The container whose processes it sees; None where it is about the Pod's network."""


class Created(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, tag_field="made", tag="created"):
    """An object that did not exist before; it carries the undo annotation from its first moment.

    Where fields of another object were changed for it, the entry's `resource` and `fields` are about that one.
    """

    path: str
    """API path of what was made."""
    spec: dict[str, Any] = {}
    """As we sent it: an object that somebody changed since is left alone."""


class Toxic(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, tag_field="made", tag="toxic"):
    """Toxics of a proxy that speaks Toxiproxy's API; their names hold the entry's id."""

    url: str
    """Base URL of the API."""
    proxy: str
    toxics: tuple[dict[str, Any], ...] = ()
    """As we sent them, one for each direction that is hit: name, type, stream, toxicity, attributes."""


class Ran(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, tag_field="made", tag="ran"):
    """A command of the user's that changed something."""

    undo: tuple[str, ...] | None = None
    """Program and arguments, without a shell; None where nothing can be undone."""
    verify_undone: tuple[str, ...] | None = None
    timeout: float = 30.0
    """Of each of them, seconds."""
    folder: str = "."
    """Where they are started."""
    environment: dict[str, str] = {}
    """What is set beside the process's own environment; no secrets."""


Made = Injected | Created | Toxic | Ran


class Entry(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, tag_field="line", tag="intent"):
    """An announced change, as written before the call."""

    entry: str
    run: str
    drill: str
    fault: str
    target: rows.Target
    resource: str
    """API path of the object, `/api/v1/nodes/n1`; empty where it is none of the cluster's."""
    fields: tuple[Field, ...] = ()
    """What was changed of an object that was there before."""
    made: Made | None = None
    """What was made beside; None where only fields were changed."""
    connection: Connection
    owner: process.Process
    wall: float
    """Unix seconds."""
    ends: float | None = None
    """Unix seconds at which the target takes it back by itself at the latest; None: it stays until it is undone."""


class Mark(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, tag_field="line", tag="mark"):
    """An entry's new state."""

    entry: str
    state: State
    wall: float
    detail: str | None = None


def new_name() -> str:
    """An entry's id: short enough for names of objects, and no other run's."""
    return uuid.uuid4().hex[:12]


class Journal:
    """One run's journal, open for writing."""

    def __init__(
        self,
        path: Path,
        *,
        run: str,
        drill: str,
        connection: Connection,
        clock: Clock | None = None,
        emit: Emit | None = None,
    ) -> None:
        """Opens or creates `path`. With `clock` and `emit`, every line also becomes a row of the timeline.

        Raises OSError if the folder cannot be written: then nothing may be changed.
        """
        self.path = path
        self._run = run
        self._drill = drill
        self._connection = connection
        self._clock = clock
        self._emit = emit
        self._owner = process.current()
        self._file = _Appender(path)
        self._states: dict[str, tuple[Entry, State]] = {}

    async def intend(
        self,
        *,
        fault: str,
        target: rows.Target,
        resource: str = "",
        fields: Sequence[Field] = (),
        made: Made | None = None,
        ends: float | None = None,
        name: str | None = None,
    ) -> Entry:
        """Announces a change; returns when the announcement is on the disk, and only then may the call be sent.

        `name`: the entry's id (see `new_name`), where what is made is named after it. Raises JournalLost.
        """
        entry = Entry(
            entry=name or new_name(),
            run=self._run,
            drill=self._drill,
            fault=fault,
            target=target,
            resource=resource,
            fields=tuple(fields),
            made=made,
            connection=self._connection,
            owner=self._owner,
            wall=time.time(),
            ends=ends,
        )
        await self._file.append(entry)
        self._note(entry, "intent", None)
        return entry

    async def mark(self, entry: Entry, state: State, detail: str | None = None) -> None:
        """Writes the entry's new state, which holds for this process also where JournalLost is raised."""
        try:
            await self._file.append(Mark(entry=entry.entry, state=state, wall=time.time(), detail=detail))
        finally:
            self._note(entry, state, detail)

    def open(self) -> list[Entry]:
        """Entries of this run that still ask for an undo, newest first."""
        return [entry for entry, state in reversed(self._states.values()) if state in OPEN]

    def state(self, entry: Entry) -> State:
        return self._states[entry.entry][1]

    def close(self) -> None:
        self._file.close()

    def _note(self, entry: Entry, state: State, detail: str | None) -> None:
        self._states[entry.entry] = (entry, state)
        log.debug("journal", entry=entry.entry, state=state, target=entry.target.name, detail=detail)
        if self._emit is not None and self._clock is not None:
            self._emit(
                rows.Journal(
                    at=self._clock.now(),
                    entry=entry.entry,
                    event=state,
                    target=entry.target,
                    fault=entry.fault,
                    detail=detail,
                )
            )


class Reopened:
    """A journal that another process left behind: read, and marked by `recover`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._states = {entry.entry: (entry, state) for entry, state in read(path)}

    def open(self) -> list[Entry]:
        """Entries that still ask for an undo, newest first."""
        return [entry for entry, state in reversed(self._states.values()) if state in OPEN]

    def state(self, entry: Entry) -> State:
        return self._states[entry.entry][1]

    async def mark(self, entry: Entry, state: State, detail: str | None = None) -> None:
        """Writes the entry's new state. Raises JournalLost."""
        try:
            file = _Appender(self.path)
        except OSError as error:
            raise JournalLost(f"{self.path}: {error.strerror}") from error
        try:
            await file.append(Mark(entry=entry.entry, state=state, wall=time.time(), detail=detail))
        finally:
            file.close()
            self._states[entry.entry] = (entry, state)


class _Appender:
    """Appends lines to a file; a line counts as written when it would survive the loss of power."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._file).st_size
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def append(self, line: Entry | Mark) -> None:
        data = b"\n" * self._torn + msgspec.json.encode(line) + b"\n"
        # Away from the event loop: a slow disk must not age the receive times of streams. Shielded, since an
        # abort between writing and returning would leave an entry on the disk that nobody here knows of.
        with anyio.CancelScope(shield=True):
            try:
                await anyio.to_thread.run_sync(self._write, data)
            except OSError as error:
                raise JournalLost(f"{self._path}: {error.strerror}") from error

    def _write(self, data: bytes) -> None:
        self._torn = True  # until all of it is written: a line after a torn one must begin with a line break
        while data:
            data = data[os.write(self._file, data) :]
        self._torn = False
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


_decoder = msgspec.json.Decoder(Entry | Mark)


def read(path: Path) -> list[tuple[Entry, State]]:
    """Every entry of a journal with its last state, in the order of writing.

    A torn line is skipped: it was not on the disk as a whole, so the call that it announces was never sent.
    Raises OSError if the file cannot be read.
    """
    states: dict[str, tuple[Entry, State]] = {}
    for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):
        if not raw:
            continue
        try:
            line = _decoder.decode(raw)
        except msgspec.DecodeError:
            log.warning("torn line in journal", path=str(path), line=number)
            continue
        if isinstance(line, Entry):
            states[line.entry] = (line, "intent")
        elif line.entry in states:
            states[line.entry] = (states[line.entry][0], line.state)
    return list(states.values())


def open_entries(path: Path) -> list[Entry]:
    """Entries that still ask for an undo, newest first."""
    return Reopened(path).open()


def find_journals(timelines: Path) -> list[Path]:
    """Journals under `timelines/<drill>/<run>/`, oldest run first (run ids begin with the UTC time)."""
    return sorted(timelines.glob(f"*/*/{NAME}"), key=lambda path: path.parent.name)
