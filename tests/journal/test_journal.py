from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from chaosrunner.journal import journal, process
from chaosrunner.journal.journal import Connection, Field, Journal
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock

TARGET = rows.Target(kind="Node", name="n1", uid="u1")
FIELDS = [Field(path="/spec/unschedulable", previous=None, desired=True)]


def opened(path: Path, emitted: list[rows.Row] | None = None) -> Journal:
    emit = emitted.append if emitted is not None else None
    return Journal(path, run="r", drill="d", connection=Connection(context="c"), clock=Clock(), emit=emit)


async def intend(book: Journal, name: str = "n1") -> journal.Entry:
    target = msgspec.structs.replace(TARGET, name=name)
    return await book.intend(fault="cordon", target=target, resource=f"/api/v1/nodes/{name}", fields=FIELDS)


@pytest.mark.anyio
async def test_an_entry_is_on_the_disk_when_intend_returns_and_reads_back_whole(tmp_path: Path) -> None:
    path = tmp_path / journal.NAME
    emitted: list[rows.Row] = []
    book = opened(path, emitted)
    entry = await intend(book)
    assert journal.read(path) == [(entry, "intent")]
    assert entry.owner == process.current()
    await book.mark(entry, "applied")
    assert journal.read(path) == [(entry, "applied")]
    assert [row.event for row in emitted if isinstance(row, rows.Journal)] == ["intent", "applied"]


@pytest.mark.anyio
async def test_open_entries_come_newest_first_and_closed_ones_do_not_come(tmp_path: Path) -> None:
    path = tmp_path / journal.NAME
    book = opened(path)
    first, second, third, fourth = [await intend(book, f"n{i}") for i in range(4)]
    await book.mark(first, "applied")
    await book.mark(second, "undone")
    await book.mark(third, "undo_failed", "no")
    assert [e.target.name for e in book.open()] == ["n3", "n2", "n0"]
    assert journal.open_entries(path) == book.open() == [fourth, third, first]


@pytest.mark.anyio
async def test_a_torn_last_line_is_skipped_and_the_next_writer_begins_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / journal.NAME
    entry = await intend(opened(path))
    with path.open("ab") as file:
        file.write(b'{"line":"intent","entry":"torn","run":')
    assert journal.open_entries(path) == [entry]
    await journal.Reopened(path).mark(entry, "undone")
    assert journal.read(path) == [(entry, "undone")]


def test_an_empty_journal_has_no_entries(tmp_path: Path) -> None:
    path = tmp_path / journal.NAME
    opened(path).close()
    assert journal.open_entries(path) == []


def test_journals_are_found_under_the_timelines_root_oldest_run_first(tmp_path: Path) -> None:
    for run in ("b-drill/20260101T000000Z-a", "a-drill/20260102T000000Z-b", "a-drill/20260103T000000Z-c"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "rows.jsonl").touch()
        if not run.endswith("c"):
            (tmp_path / run / journal.NAME).touch()
    assert [path.parent.name[-1] for path in journal.find_journals(tmp_path)] == ["a", "b"]


SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


def test_a_process_is_alive_until_it_is_killed_even_before_its_parent_reaps_it() -> None:
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        named = process.Process(pid=child.pid, started=process.start_time(child.pid), host=process.current().host)
        assert process.liveness(named) == "alive"
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process.liveness(named) == "dead"


def test_the_same_id_with_another_start_is_another_process() -> None:
    me = process.current()
    assert process.liveness(me) == "alive"
    assert process.liveness(msgspec.structs.replace(me, started="earlier")) == "dead"
    assert process.liveness(msgspec.structs.replace(me, host="elsewhere")) == "unknown"
