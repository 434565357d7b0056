"""Requests as columns: fed one by one while a run lasts, or read at once from a recording; evaluated the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from chaosrunner.analysis.facts import EVIDENCE_LIMIT
from chaosrunner.timeline.outcomes import OUTSIDE_RATES, SUCCESSES, Outcome
from chaosrunner.timeline.rows import Request

if TYPE_CHECKING:
    import pyarrow as pa  # only whoever analyses a recording waits for it, not a run that begins

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Chosen = Mask | Ints | slice
EVERY = slice(None)

OUTCOMES: tuple[str, ...] = tuple(outcome.value for outcome in Outcome)
_OUTCOME_CODES = {value: code for code, value in enumerate(OUTCOMES)}
_SUCCESS = [outcome in SUCCESSES for outcome in Outcome]
_COUNTED = [outcome not in OUTSIDE_RATES for outcome in Outcome]

_FLOATS = (
    "sent", "at", "scheduled", "headers", "first_token", "first_answer", "last_token", "largest_gap", "tokens",
    "content_chunks", "content_reads", "at_once", "last_byte",
)  # fmt: skip
_INTS = ("id", "status")
_FLAGS = ("once", "exact", "success", "counted")
_CODES = ("probe", "shape", "pod", "replica", "remote", "limit")
_TEXTS = ("request", "error", "expected")
COLUMNS = ("outcome", "once", "exact", "chunks", *_TEXTS, *_FLOATS, *_INTS, *_CODES)
"""Columns that the analysis reads of a recording's request table."""

NONE = -1
"""Code of an absent text, and status of a request without one."""


class Vocabulary:
    """Texts as small numbers."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, word: str | None) -> int:
        if word is None:
            return NONE
        code = self._codes.get(word)
        if code is None:
            code = self._codes[word] = len(self.words)
            self.words.append(word)
        return code

    def encode(self, column: pa.ChunkedArray) -> Codes:
        import pyarrow as pa

        encoded = column.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        # One extra entry at the end: where index -1 (null) points.
        codes = np.array([*map(self.code, encoded.dictionary.to_pylist()), NONE], dtype=np.int32)
        indices = encoded.indices.fill_null(NONE).to_numpy(zero_copy_only=False)
        return np.asarray(codes[indices])


class Requests:
    """Every ended request, in the order of their final rows. Times in seconds; NaN is "not known"."""

    def __init__(self) -> None:
        self._size = 0
        self._columns: dict[str, npt.NDArray[Any]] = {
            **{name: np.empty(0, np.float64) for name in _FLOATS},
            **{name: np.empty(0, np.int64) for name in _INTS},
            **{name: np.empty(0, np.int32) for name in (*_CODES, "outcome")},
            **{name: np.empty(0, np.bool_) for name in _FLAGS},
        }
        self.vocabulary = {name: Vocabulary() for name in _CODES}
        self._table: pa.Table | None = None
        self._texts: dict[str, list[Any]] = {name: [] for name in _TEXTS}
        self._gaps: list[Floats] = []
        self._gap_owners: list[Codes] = []

    def __len__(self) -> int:
        return self._size

    def feed(self, row: Request) -> None:
        index = self._size
        if index == len(self._columns["sent"]):
            self._grow(max(256, 2 * index))
        columns = self._columns
        for name in _FLOATS:
            value = getattr(row, name)
            columns[name][index] = np.nan if value is None else value
        columns["id"][index] = row.id
        columns["status"][index] = NONE if row.status is None else row.status
        for name in _CODES:
            columns[name][index] = self.vocabulary[name].code(getattr(row, name))
        outcome = columns["outcome"][index] = _OUTCOME_CODES[row.outcome]
        columns["once"][index] = row.once
        columns["exact"][index] = row.exact
        columns["success"][index] = _SUCCESS[outcome]
        columns["counted"][index] = _COUNTED[outcome] and not row.once
        if row.chunks is not None and len(row.chunks) > 1:
            gaps = np.diff(np.array(row.chunks))
            self._gaps.append(gaps)
            self._gap_owners.append(np.full(len(gaps), index, dtype=np.int32))
        for name in _TEXTS:
            self._texts[name].append(getattr(row, name))
        self._size = index + 1

    def _grow(self, capacity: int) -> None:
        for name, column in self._columns.items():
            grown = np.empty(capacity, column.dtype)
            grown[: self._size] = column[: self._size]
            self._columns[name] = grown

    @classmethod
    def of(cls, table: pa.Table) -> Requests:
        """Reads a table with the columns `COLUMNS`, in the order of the rows' ids.

        Raises ValueError where an outcome is none of the outcome table.
        """
        import pyarrow as pa

        self = cls()
        self._table = table
        self._size = table.num_rows
        for name in _FLOATS:
            if name not in table.column_names:  # an older version did not write it
                self._columns[name] = np.full(self._size, np.nan)
                continue
            column = table[name].cast(pa.float64())
            self._columns[name] = np.array(column.fill_null(np.nan).to_numpy(), dtype=np.float64)
        self._columns["id"] = np.array(table["id"].to_numpy(), dtype=np.int64)
        self._columns["status"] = np.array(table["status"].fill_null(NONE).to_numpy(), dtype=np.int64)
        for name in _CODES:
            if name in table.column_names:
                self._columns[name] = self.vocabulary[name].encode(table[name])
            else:
                self._columns[name] = np.full(self._size, NONE, dtype=np.int32)
        outcomes = Vocabulary()
        local = outcomes.encode(table["outcome"])
        unknown = [word for word in outcomes.words if word not in _OUTCOME_CODES]
        if unknown:
            raise ValueError(f"not an outcome: {', '.join(unknown)}")
        outcome = np.array([_OUTCOME_CODES[word] for word in outcomes.words] or [0], np.int32)[local]
        once = np.array(table["once"].to_numpy(), dtype=np.bool_)
        self._columns["outcome"], self._columns["once"] = outcome, once
        self._columns["exact"] = np.array(table["exact"].to_numpy(), dtype=np.bool_)
        self._columns["success"] = np.array(_SUCCESS)[outcome]
        self._columns["counted"] = np.array(_COUNTED)[outcome] & ~once
        self._chunks(table["chunks"])
        return self

    @classmethod
    def split(cls, table: pa.Table) -> tuple[Requests, Requests]:
        """Those of the service, and those that went to replicas directly. Raises ValueError as `of` does."""
        import pyarrow.compute as pc

        if "replica" not in table.column_names or table["replica"].null_count == table.num_rows:
            return cls.of(table), cls()
        direct = pc.is_valid(table["replica"])
        return cls.of(table.filter(pc.invert(direct))), cls.of(table.filter(direct))

    def _chunks(self, column: pa.ChunkedArray) -> None:
        import pyarrow.compute as pc

        start = 0
        for part in column.chunks:
            times = part.flatten().to_numpy(zero_copy_only=False)
            if len(times) > 1:
                lengths = pc.fill_null(pc.list_value_length(part), 0).to_numpy(zero_copy_only=False)
                owners = np.repeat(np.arange(start, start + len(part), dtype=np.int32), lengths)
                same = owners[1:] == owners[:-1]
                self._gaps.append(np.diff(times)[same])
                self._gap_owners.append(owners[1:][same])
            start += len(part)

    def _column(self, name: str) -> npt.NDArray[Any]:
        return self._columns[name][: self._size]

    # Columns. Views: not to be written to.

    @property
    def id(self) -> Ints:
        return self._column("id")

    @property
    def sent(self) -> Floats:
        return self._column("sent")

    @property
    def ended(self) -> Floats:
        return self._column("at")

    @property
    def headers(self) -> Floats:
        return self._column("headers")

    @property
    def first_token(self) -> Floats:
        return self._column("first_token")

    @property
    def last_token(self) -> Floats:
        return self._column("last_token")

    @property
    def largest_gap(self) -> Floats:
        return self._column("largest_gap")

    @property
    def last_byte(self) -> Floats:
        return self._column("last_byte")

    @property
    def at_once(self) -> Floats:
        """Chunks with content that came less than 1 ms after the one before; NaN where an older version wrote none."""
        return self._column("at_once")

    @property
    def by_our_limit(self) -> Mask:
        """Those that a time limit of the probe ended."""
        return np.asarray(self._column("limit") != NONE)

    @property
    def tokens(self) -> Floats:
        return self._column("tokens")

    @property
    def status(self) -> Ints:
        return self._column("status")

    @property
    def outcome(self) -> Codes:
        """Positions in `OUTCOMES`."""
        return self._column("outcome")

    @property
    def probe(self) -> Codes:
        return self._column("probe")

    @property
    def shape(self) -> Codes:
        return self._column("shape")

    @property
    def pod(self) -> Codes:
        return self._column("pod")

    @property
    def replica(self) -> Codes:
        """UID of the Pod to whose own address it was sent."""
        return self._column("replica")

    @property
    def remote(self) -> Codes:
        return self._column("remote")

    @property
    def scheduled(self) -> Floats:
        """When it was to be sent; NaN where there was no schedule."""
        return self._column("scheduled")

    @property
    def send_lag(self) -> Floats:
        """Lateness of sending against the schedule; NaN where there was none."""
        return np.asarray(self.sent - self._column("scheduled"))

    @property
    def content_chunks(self) -> Floats:
        """Events with content."""
        return self._column("content_chunks")

    @property
    def content_reads(self) -> Floats:
        """Reads that held some: fewer than `content_chunks` where a read held several."""
        return self._column("content_reads")

    @property
    def exact(self) -> Mask:
        """Whether all receive times are the kernel's."""
        return self._column("exact")

    @property
    def once(self) -> Mask:
        return self._column("once")

    # What follows from them.

    @property
    def success(self) -> Mask:
        """complete or complete_missing_done."""
        return self._column("success")

    @property
    def counted(self) -> Mask:
        """The denominator of success_rate: sent + not_sent - prober_fault - cancelled, probe-once requests apart
        (and without the unfinished ones, which say nothing about the service)."""
        return self._column("counted")

    @property
    def in_service(self) -> Mask:
        """Those counted that were really sent."""
        return self.counted & ~self.is_outcome(Outcome.NOT_SENT)

    def began(self, chosen: Chosen = EVERY) -> Floats:
        """Zero of the latencies: the scheduled time in open-loop load, the send time in closed-loop load."""
        scheduled = self._column("scheduled")[chosen]
        return np.where(np.isnan(scheduled), self.sent[chosen], scheduled)

    def latency(self, metric: str, chosen: Chosen = EVERY) -> Floats:
        """Seconds, a value a chosen request; NaN where undefined.

        ttft, ttft_answer: `began` to the first non-empty token of any kind, of the answer. tpot: (last token -
        first token) / (completion tokens - 1), undefined for one token. e2e: `began` to the end.
        chunk_gap: the largest of a request (see `gaps` for all).
        """
        match metric:
            case "ttft":
                return np.asarray(self.first_token[chosen] - self.began(chosen))
            case "ttft_answer":
                return np.asarray(self._column("first_answer")[chosen] - self.began(chosen))
            case "tpot":
                tokens = self.tokens[chosen]
                steps = np.where(tokens > 1, tokens - 1, np.nan)
                return np.asarray((self.last_token[chosen] - self.first_token[chosen]) / steps)
            case "e2e":
                return np.asarray(self.ended[chosen] - self.began(chosen))
            case "chunk_gap":
                return self.largest_gap[chosen]
        raise ValueError(f"no such latency: {metric}")

    def gaps(self) -> tuple[Floats, Codes]:
        """Every time between two chunks with content, seconds, and the position of the request it belongs to."""
        if len(self._gaps) > 1:
            self._gaps = [np.concatenate(self._gaps)]
            self._gap_owners = [np.concatenate(self._gap_owners)]
        return (self._gaps[0], self._gap_owners[0]) if self._gaps else (np.empty(0), np.empty(0, np.int32))

    def is_outcome(self, outcome: str) -> Mask:
        return np.asarray(self.outcome == _OUTCOME_CODES[outcome])

    def positions(self, mask: Mask) -> Ints:
        """Positions of the masked requests in the order of their row ids."""
        found = np.flatnonzero(mask)
        return np.asarray(found[np.argsort(self.id[found], kind="stable")])

    def by_sending(self, mask: Mask) -> Ints:
        """Positions of the masked requests in the order of their sending."""
        found = np.flatnonzero(mask)
        return np.asarray(found[np.lexsort((self.id[found], self.sent[found]))])

    def ids(self, mask: Mask) -> list[int]:
        """Row ids of the masked requests, as evidence: the first `EVIDENCE_LIMIT` of them."""
        return [int(row) for row in self.id[self.positions(mask)[:EVIDENCE_LIMIT]]]

    def of_probe(self, name: str) -> Mask:
        words = self.vocabulary["probe"].words
        return np.asarray(self.probe == (words.index(name) if name in words else len(words)))

    def text(self, column: str, indices: Sequence[int] | Ints) -> list[Any]:
        """Values of `request`, `error` or `expected` at these positions."""
        if self._table is not None:
            import pyarrow as pa

            values: list[Any] = self._table[column].take(pa.array(indices, pa.int64())).to_pylist()
            return values
        texts = self._texts[column]
        return [texts[index] for index in indices]
