"""What was written can be read: finished, crashed in the middle of a line, and with secrets masked."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pyarrow as pa
import pytest

from chaosrunner.errors import UserError
from chaosrunner.timeline import manifest as manifests
from chaosrunner.timeline import reader, rows, tables
from chaosrunner.timeline.files import ROWS
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.redact import MASK, Redactor
from chaosrunner.timeline.tables import REQUEST_SCHEMA
from chaosrunner.timeline.writer import MOST, PACE, Writer


def manifest(**changes: object) -> manifests.Manifest:
    base = manifests.Manifest(
        run="20261129-180000-abcd",
        drill="d",
        playbook="p",
        anchor=1795970000.5,
        workload=manifests.Workload(namespace="n", selector="app=chat"),
    )
    return msgspec.structs.replace(base, **changes)


def request(number: int, **changes: object) -> rows.Request:
    base = rows.Request(
        at=number + 0.9,
        request=f"chat-{number}",
        probe="chat",
        outcome=Outcome.COMPLETE.value,
        sent=float(number),
        status=200,
        tokens=8,
        usage=rows.Usage(prompt_tokens=3, completion_tokens=8),
        chunks=[number + 0.1, number + 0.2],
        done=True,
        ended_properly=True,
    )
    return msgspec.structs.replace(base, **changes)


def write(folder: Path, given: list[rows.Row], *, close: bool = True) -> reader.Recording:
    writer = Writer(folder, manifest())
    for row in given:
        writer.emit(row)
    if close:
        writer.close()
    return reader.Recording.open(folder)


def some_rows() -> list[rows.Row]:
    return [
        rows.Run(at=0.0, event="started"),
        rows.RequestSent(at=1.0, request="chat-1", probe="chat"),
        rows.Pod(at=1.2, seen="ADDED", name="a", uid="u", version="1", containers=[rows.ContainerState(name="m")]),
        rows.RequestHeaders(at=1.3, request="chat-1", status=200, pod="a"),
        request(1),
        rows.RequestSent(at=2.0, request="chat-2", probe="chat", once=True),
        rows.RequestHeaders(at=2.1, request="chat-2", status=200, pod="b"),
        rows.Clock(at=2.2, wall=1795970002.7),
    ]


def test_rows_read_back_as_written_in_order_of_their_ids(tmp_path: Path) -> None:
    given = some_rows()
    recording = write(tmp_path / "r", given)
    assert list(recording.rows()) == given
    assert [row.id for row in recording.rows()] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [row.id for row in recording.events()] == [1, 3, 8]


def test_parquet_and_json_lines_give_the_same_table(tmp_path: Path) -> None:
    given: list[rows.Row] = [
        request(n, error="x\ny" if n % 2 else None, chunks=None if n % 3 else [1.5]) for n in range(50)
    ]
    finished = write(tmp_path / "finished", given).requests()
    crashed = write(tmp_path / "crashed", given, close=False).requests()
    assert finished.schema == REQUEST_SCHEMA
    assert finished.equals(crashed)
    assert finished.to_pylist()[3]["usage"] == {"prompt_tokens": 3, "completion_tokens": 8}


def test_the_schema_holds_every_field_of_the_row() -> None:
    fields = {field.name for field in msgspec.structs.fields(rows.Request)}
    assert set(REQUEST_SCHEMA.names) == fields


def test_a_crash_in_the_middle_of_a_line_loses_only_that_line(tmp_path: Path) -> None:
    recording = write(tmp_path / "r", some_rows(), close=False)
    with (tmp_path / "r" / ROWS).open("ab") as file:
        file.write(b'{"kind":"clock","at":3.0,"wa')
    assert recording.crashed
    assert len(list(recording.rows())) == 8
    table = recording.requests()
    assert table["outcome"].to_pylist() == ["complete", "unfinished"]
    lost = table.to_pylist()[1]
    # The last thing that the runner is known to have done was the clock row at 2.2.
    assert (lost["sent"], lost["at"], lost["status"], lost["pod"], lost["once"]) == (2.0, 2.2, 200, "b", True)


def test_secrets_are_masked_in_rows_and_manifest(tmp_path: Path) -> None:
    secret = 'sk-"quoted"\\and-ü'
    writer = Writer(tmp_path / "r", manifest(sources={"d.yaml": f"key: {secret}"}), Redactor([secret, ""]))
    writer.emit(request(1, error=f"Incorrect API key: {secret}"))
    writer.close()
    text = (tmp_path / "r" / ROWS).read_text() + (tmp_path / "r" / manifests.NAME).read_text()
    assert MASK in text
    assert "quoted" not in text
    recording = reader.Recording.open(tmp_path / "r")
    assert recording.requests()["error"].to_pylist() == [f"Incorrect API key: {MASK}"]


def test_a_credential_of_digits_or_of_our_words_breaks_no_row(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r", manifest(), Redactor(["123456", "started", "request"]))
    told: list[rows.Row] = []
    writer.subscribe(told.append)
    for row in (
        rows.Clock(at=3.1234567, wall=1234567.5),
        rows.Run(at=4.0, event="started"),
        request(1, error="123456"),
    ):
        writer.emit(row)
    writer.close()
    clock, run, ended = reader.Recording.open(tmp_path / "r").rows()
    assert [clock, run, ended] == told
    assert isinstance(clock, rows.Clock)
    assert (clock.at, clock.wall) == (3.1234567, 1234567.5)
    assert isinstance(run, rows.Run)
    assert isinstance(ended, rows.Request)
    assert ended.error == MASK


def test_the_final_manifest_counts_rows_and_hashes_files(tmp_path: Path) -> None:
    found = write(tmp_path / "r", some_rows()).manifest
    assert found.rows == {"clock": 1, "pod": 1, "request": 1, "request_headers": 2, "request_sent": 2, "run": 1}
    assert found.files[ROWS] == manifests.sha256(tmp_path / "r" / ROWS)
    assert set(found.files) == {ROWS, "requests.parquet", "events.parquet"}


def test_what_is_no_recording_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no recording here"):
        reader.Recording.open(tmp_path)
    (tmp_path / manifests.NAME).write_text("{]")
    with pytest.raises(UserError, match="not a manifest"):
        reader.Recording.open(tmp_path)
    manifests.write(tmp_path, manifest(format=99))
    with pytest.raises(UserError, match="Upgrade"):
        reader.Recording.open(tmp_path)
    manifests.write(tmp_path, manifest())
    (tmp_path / ROWS).write_text('{"kind":"clock","at":1,"wall":2}\n{"kind":"nonsense"}\n')
    with pytest.raises(UserError, match=f"{ROWS}:2: not a row"):
        list(reader.Recording.open(tmp_path).rows())


def test_latest_run_id_drill_and_folder_all_name_a_recording(tmp_path: Path) -> None:
    for drill, run in (("a", "20261129-180000-aaaa"), ("b", "20261129-190000-bbbb"), ("a", "20261128-180000-cccc")):
        write(tmp_path / drill / run, [rows.Run(at=0.0, event="started")])
    names = {
        "latest": "20261129-190000-bbbb",
        "a": "20261129-180000-aaaa",
        "20261128-180000-cccc": "20261128-180000-cccc",
    }
    for name, run in names.items():
        assert reader.resolve(tmp_path, name).folder.name == run
    assert reader.resolve(tmp_path, str(tmp_path / "b" / "20261129-190000-bbbb")).folder.parent.name == "b"
    with pytest.raises(UserError, match="neither"):
        reader.resolve(tmp_path, "c")


def test_a_large_block_of_requests_keeps_order(tmp_path: Path) -> None:
    given: list[rows.Row] = [request(n, error="e" * 2000) for n in range(20_000)]
    table = write(tmp_path / "r", given, close=False).requests(["id", "sent"])
    assert table["sent"].to_pylist() == [float(n) for n in range(20_000)]
    assert isinstance(table, pa.Table)


def test_a_request_that_ended_in_an_earlier_block_is_not_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_BLOCK", 1000)
    given: list[rows.Row] = []
    for number in range(20):
        given += [rows.RequestSent(at=float(number), request=f"chat-{number}", probe="chat"), request(number)]
    given.insert(5, rows.RequestSent(at=2.5, request="chat-99", probe="chat"))
    table = write(tmp_path / "r", given, close=False).requests(["outcome", "at"])
    assert table["outcome"].to_pylist() == ["complete"] * 20 + ["unfinished"]
    assert table["at"].to_pylist()[-1] == 19.9


@pytest.mark.parametrize("line", ['{"kind":"request","at":"soon"}', '{"kind":"request_sent","at":1}'])
def test_a_line_of_a_request_that_is_none_is_one_clear_error(tmp_path: Path, line: str) -> None:
    recording = write(tmp_path / "r", some_rows(), close=False)
    with (tmp_path / "r" / ROWS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=f"{ROWS}: not a row"):
        recording.requests()


async def lines_of(file: Path, count: int, within: float) -> list[bytes]:
    """The file's lines once there are so many, which must be `within` seconds."""
    until = anyio.current_time() + within
    while len(lines := (await anyio.Path(file).read_bytes()).splitlines(keepends=True)) < count:
        assert anyio.current_time() < until
        await anyio.lowlevel.checkpoint()
    return lines


@pytest.mark.anyio
async def test_rows_about_requests_get_to_the_system_though_nothing_follows(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r", manifest())
    file = tmp_path / "r" / ROWS
    told: list[rows.Row] = []
    writer.subscribe(told.append)
    for _ in range(3):
        writer.emit(rows.RequestSent(at=1.0, request="chat-1", probe="chat"))
        writer.emit(request(1))
        assert len(told) % 2 == 0  # nobody who looks on waits for that
        await lines_of(file, len(told), within=1.0)  # PACE, on a machine that has time
    lines = await lines_of(file, 6, within=0.0)
    assert [msgspec.json.decode(line, type=rows.Row) for line in lines] == told


@pytest.mark.anyio
async def test_a_row_of_another_kind_is_with_the_system_at_once_and_all_before_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r", manifest())
    for row in some_rows():
        writer.emit(row)
    assert [row.id for row in reader.Recording.open(tmp_path / "r").rows()] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.anyio
async def test_rows_do_not_pile_up_while_the_event_loop_stands_still(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r", manifest())
    for number in range(2 * MOST):
        writer.emit(request(number))
    assert len(await lines_of(tmp_path / "r" / ROWS, 0, within=0.0)) == 2 * MOST


@pytest.mark.anyio
async def test_a_full_disk_is_told_once_of_rows_that_waited(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r", manifest())
    told: list[rows.Row] = []
    writer.subscribe(told.append)
    with files_of_at_most(1000):
        for number in range(10):
            writer.emit(request(number))
        await anyio.sleep(3 * PACE)
        with pytest.raises(OSError, match="File too large"):
            writer.emit(request(10))
        writer.emit(request(11))  # is told of once
    assert [row.id for row in told] == list(range(1, 13))
    writer.close()
    recording = reader.Recording.open(tmp_path / "r")
    assert recording.crashed
    assert 0 < len(list(recording.rows())) < 10


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What is written beyond fails (EFBIG), as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
