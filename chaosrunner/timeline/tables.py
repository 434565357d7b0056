"""The columnar half of a recording: `requests.parquet` (one row a request) and `events.parquet` (all other rows).

JSON lines stay the source: a crashed run has nothing else. Reading them avoids one Python object a request, since
a long drill has millions: lines are picked by their first bytes (the tag field comes first) and parsed by Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

from chaosrunner.timeline.files import EVENTS, REQUEST, REQUEST_HEADERS, REQUEST_KINDS, REQUEST_SENT, REQUESTS, lines
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import RequestHeaders, RequestSent

REQUEST_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.float64()),
        ("request", pa.string()),
        ("probe", pa.string()),
        ("outcome", pa.string()),
        ("sent", pa.float64()),
        ("shape", pa.string()),
        ("once", pa.bool_()),
        ("scheduled", pa.float64()),
        ("cancel_planned", pa.bool_()),
        ("connected", pa.float64()),
        ("headers", pa.float64()),
        ("first_byte", pa.float64()),
        ("last_byte", pa.float64()),
        ("first_token", pa.float64()),
        ("first_token_exact", pa.bool_()),
        ("first_answer", pa.float64()),
        ("last_token", pa.float64()),
        ("tokens", pa.int64()),
        ("usage", pa.struct([("prompt_tokens", pa.int64()), ("completion_tokens", pa.int64())])),
        ("finish_reason", pa.string()),
        ("done", pa.bool_()),
        ("ended_properly", pa.bool_()),
        ("status", pa.int64()),
        ("pod", pa.string()),
        ("replica", pa.string()),
        ("remote", pa.string()),
        ("connection", pa.string()),
        ("opened", pa.float64()),
        ("reused", pa.bool_()),
        ("stale", pa.bool_()),
        ("size", pa.int64()),
        ("events", pa.int64()),
        ("comments", pa.int64()),
        ("chunks", pa.list_(pa.float64())),
        ("content_chunks", pa.int64()),
        ("content_reads", pa.int64()),
        ("at_once", pa.int64()),
        ("largest_gap", pa.float64()),
        ("exact", pa.bool_()),
        ("expected_tokens", pa.int64()),
        ("limit", pa.string()),
        ("error", pa.string()),
        ("error_code", pa.int64()),
        ("expected", pa.bool_()),
    ]
)
"""Columns of `requests.parquet`: the fields of the `Request` row, under the same names and in the same units."""

EVENT_SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.float64()), ("kind", pa.string()), ("row", pa.string())])
"""Columns of `events.parquet`; `row` is the whole row as JSON."""

_DEFAULTS = {
    "shape": "", "once": False, "cancel_planned": False, "done": False, "ended_properly": False,
    "size": 0, "events": 0, "comments": 0, "exact": False, "first_token_exact": False, "stale": False,
    "content_chunks": 0, "content_reads": 0, "at_once": 0,
}  # fmt: skip
"""What an absent field means (rows leave defaults out); null elsewhere."""

_BLOCK = 32 << 20


class _Head(msgspec.Struct):
    kind: str
    at: float
    id: int


def _batch(block: list[bytes], schema: pa.Schema) -> pa.Table:
    options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    read = pa.json.ReadOptions(block_size=max(1 << 20, max(map(len, block)) + 1))
    table = pa.json.read_json(BytesIO(b"".join(block)), read_options=read, parse_options=options)
    columns = []
    for field in schema:
        column = table[field.name]
        if field.name in _DEFAULTS:
            column = pc.fill_null(column, pa.scalar(_DEFAULTS[field.name], field.type))
        columns.append(column)
    return pa.table(columns, schema=schema)


def request_batches(path: Path, schema: pa.Schema = REQUEST_SCHEMA, *, crashed: bool = False) -> Iterator[pa.Table]:
    """Request rows of a JSON lines file as Arrow tables of bounded size, in file order.

    `schema`: the columns of `REQUEST_SCHEMA` that are wanted. With `crashed`, requests that were sent and have no
    final row follow as `unfinished`: the runner died first. Raises pyarrow.ArrowInvalid or msgspec.MsgspecError for a
    line that is no row.
    """
    wanted = schema if "request" in schema.names else schema.append(REQUEST_SCHEMA.field("request"))
    sent: dict[str, RequestSent] = {}
    seen: dict[str, RequestHeaders] = {}
    decode_sent = msgspec.json.Decoder(RequestSent).decode
    decode_headers = msgspec.json.Decoder(RequestHeaders).decode

    def parsed(block: list[bytes]) -> pa.Table:
        table = _batch(block, wanted)
        if crashed:
            for name in table["request"].to_pylist():
                sent.pop(name, None)
                seen.pop(name, None)
        return table.select(schema.names)

    block: list[bytes] = []
    size = 0
    last = b""
    for line in lines(path):
        last = line
        if line.startswith(REQUEST):
            block.append(line)
            size += len(line)
            if size >= _BLOCK:
                yield parsed(block)
                block, size = [], 0
        elif crashed and line.startswith(REQUEST_SENT):
            row = decode_sent(line)
            sent[row.request] = row
        elif crashed and line.startswith(REQUEST_HEADERS):
            headers = decode_headers(line)
            seen[headers.request] = headers
    if block:
        yield parsed(block)
    if sent:
        yield _unfinished(sent, seen, last).select(schema.names)


def _unfinished(sent: dict[str, RequestSent], seen: dict[str, RequestHeaders], last: bytes) -> pa.Table:
    """`at` is the instant of the last row of the file, the last thing that the runner is known to have done."""
    end = msgspec.json.decode(last, type=_Head).at
    records = []
    for row in sent.values():
        at = seen.get(row.request)
        records.append(
            {field.name: _DEFAULTS.get(field.name) for field in REQUEST_SCHEMA}
            | {"id": row.id, "at": end, "request": row.request, "probe": row.probe, "sent": row.at}
            | {"outcome": Outcome.UNFINISHED.value, "shape": row.shape, "once": row.once, "scheduled": row.scheduled}
            | {"replica": row.replica}
            | ({"headers": at.at, "status": at.status, "pod": at.pod, "remote": at.remote} if at else {})
        )
    return pa.Table.from_pylist(records, schema=REQUEST_SCHEMA)


def event_batches(path: Path, size: int = 50_000) -> Iterator[pa.Table]:
    """All rows that are no `request*` rows, as Arrow tables, in file order."""
    head = msgspec.json.Decoder(_Head)
    block: list[tuple[int, float, str, str]] = []
    for line in lines(path):
        if line.startswith(REQUEST_KINDS):
            continue
        row = head.decode(line)
        block.append((row.id, row.at, row.kind, line.decode().rstrip("\n")))
        if len(block) >= size:
            yield _events(block)
            block = []
    if block:
        yield _events(block)


def _events(block: list[tuple[int, float, str, str]]) -> pa.Table:
    columns: tuple[list[object], ...] = tuple(map(list, zip(*block, strict=True)))
    return pa.table(list(columns), schema=EVENT_SCHEMA)


def convert(rows: Path, folder: Path) -> None:
    """Writes both Parquet files for a finished JSON lines file."""
    for name, schema, batches in (
        (REQUESTS, REQUEST_SCHEMA, request_batches(rows)),
        (EVENTS, EVENT_SCHEMA, event_batches(rows)),
    ):
        part = folder / f".{name}.part"
        with pq.ParquetWriter(part, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_table(batch)
        part.replace(folder / name)
