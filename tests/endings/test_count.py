"""The server's own log of how each answer ended, and the probe's outcomes, one by one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from chaosrunner.probes import Limits, ProbeSpec, Shape, run_probe
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Request, RequestHeaders, RequestSent, Row
from tests.endings.server import ENDINGS, TOKENS

pytestmark = pytest.mark.anyio

LIMITS = Limits(connect=5, first_byte=3, byte_idle=3, token_idle=3.5, total=8, linger=2)
MEANT: dict[str, tuple[Outcome, str | None]] = {
    "complete": (Outcome.COMPLETE, None),
    "complete, then closed": (Outcome.COMPLETE, None),
    "complete, measured": (Outcome.COMPLETE, None),
    "complete, until close": (Outcome.COMPLETE, None),
    "complete, trailers": (Outcome.COMPLETE, None),
    "complete, informed before": (Outcome.COMPLETE, None),
    "no [DONE]": (Outcome.COMPLETE_MISSING_DONE, "no [DONE]"),
    "no [DONE], until close": (Outcome.COMPLETE_MISSING_DONE, "no [DONE]"),
    "no usage": (Outcome.COMPLETE_MISSING_DONE, "usage was asked for"),
    "all said, no last chunk": (Outcome.COMPLETE_MISSING_DONE, "complete, but then missing_last_chunk"),
    "all said, reset": (Outcome.COMPLETE_MISSING_DONE, "complete, but then reset"),
    "all said, silence": (Outcome.COMPLETE_MISSING_DONE, "complete, but then the body did not end"),
    "no text": (Outcome.EMPTY_COMPLETION, None),
    "wrong length": (Outcome.WRONG_LENGTH, f"{TOKENS - 1} tokens instead of {TOKENS}"),
    "abort": (Outcome.ABORTED, "finish_reason abort"),
    "error object": (Outcome.ERROR_IN_STREAM, "EngineCore"),
    "error event": (Outcome.ERROR_IN_STREAM, "EngineCore"),
    "error, then reset": (Outcome.ERROR_IN_STREAM, "EngineCore"),
    "error, then silence": (Outcome.ERROR_IN_STREAM, "EngineCore"),
    "clean end, no finish": (Outcome.UNTERMINATED_STREAM, "no finish_reason"),
    "clean end, [DONE] only": (Outcome.UNTERMINATED_STREAM, "no finish_reason"),
    "until close, no finish": (Outcome.UNTERMINATED_STREAM, "no finish_reason"),
    "no last chunk": (Outcome.CUT_STREAM, "missing_last_chunk"),
    "no last chunk, finish but no [DONE]": (Outcome.CUT_STREAM, "missing_last_chunk"),
    "mid chunk": (Outcome.CUT_STREAM, "missing_last_chunk"),
    "reset": (Outcome.CUT_STREAM, "reset"),
    "reset mid chunk": (Outcome.CUT_STREAM, "reset"),
    "until close, reset": (Outcome.CUT_STREAM, "reset"),
    "headers only": (Outcome.CUT_STREAM, "missing_last_chunk"),
    "short body": (Outcome.CUT_STREAM, "short_body"),
    "bad chunk": (Outcome.CUT_STREAM, "bad_chunk"),
    "silence": (Outcome.STALLED_STREAM, "no byte"),
    "comments without end": (Outcome.STALLED_STREAM, "no token"),
    "tokens without end": (Outcome.DEADLINE_EXCEEDED, None),
    "no headers": (Outcome.NO_RESPONSE, None),
    "half a status line": (Outcome.NO_RESPONSE, None),
    "JSON": (Outcome.NOT_A_STREAM, "{"),
    "a page": (Outcome.NOT_A_STREAM, "<h1>"),
    "closed before headers": (Outcome.NO_RESPONSE, None),
    "reset before headers": (Outcome.CONNECT_RESET, None),
    "no HTTP": (Outcome.NO_RESPONSE, None),
    "302": (Outcome.HTTP_ERROR, "{"),
    "400": (Outcome.HTTP_ERROR, "{"),
    "500": (Outcome.HTTP_ERROR, "{"),
    "502": (Outcome.HTTP_ERROR, "{"),
    "503": (Outcome.HTTP_ERROR, "{"),
    "503 with Retry-After": (Outcome.REJECTED, "{"),
    "429": (Outcome.REJECTED, "{"),
}
"""What each ending of the server has to be called, and how the row's error begins."""

TIMED_OUT = (Outcome.STALLED_STREAM, Outcome.DEADLINE_EXCEEDED)
CLIENT_LEFT = {
    *(name for name, (outcome, _) in MEANT.items() if outcome in TIMED_OUT),
    "all said, silence", "error, then silence", "no headers", "half a status line",
}  # fmt: skip
"""Endings that only the client's own limits put an end to."""
UNPROVEN = {
    *(name for name, (outcome, _) in MEANT.items() if outcome in (*TIMED_OUT, Outcome.CUT_STREAM)),
    "all said, no last chunk", "all said, reset", "all said, silence", "error, then reset", "error, then silence",
    "complete, until close", "no [DONE], until close", "until close, no finish",
}  # fmt: skip
"""Endings after headers that by HTTP's rules do not show the body to be whole."""


@contextmanager
def serving(seed: int, log: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.endings.server", "--seed", str(seed), "--log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.send_signal(signal.SIGTERM)


async def probe(url: str, requests: int, connection: Any) -> list[Row]:
    spec = ProbeSpec(
        name="chat",
        url=url,
        shapes=(Shape(prompt="Answer {{ request }}", max_tokens=TOKENS),),
        fixed_length=True,
        concurrency=128,
        connection=connection,
        limits=LIMITS,
    )
    stop = anyio.Event()
    rows: list[Row] = []
    ended = 0

    def emit(row: Row) -> None:
        nonlocal ended
        rows.append(row)
        ended += isinstance(row, Request)
        if ended == requests:
            stop.set()

    await run_probe(spec, emit, Clock(), stop)
    return rows


@pytest.mark.parametrize("connection", [pytest.param("new", marks=pytest.mark.slow), "reused"])
@pytest.mark.parametrize("requests", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_every_outcome_is_what_the_server_did(requests: int, connection: str, tmp_path: Path) -> None:
    log = tmp_path / "endings.jsonl"
    with serving(requests, log) as url:
        rows = await probe(url, requests, connection)
    served = {row["request"]: row for row in map(json.loads, log.read_text().splitlines())}
    sent = [row.request for row in rows if isinstance(row, RequestSent)]
    ended = {row.request: row for row in rows if isinstance(row, Request)}
    heard = {row.request for row in rows if isinstance(row, RequestHeaders)}
    assert len(sent) == len(set(sent)) >= requests
    assert set(sent) == set(ended)
    # A connection that the server closed may be used once more before the close has come: no server sees that request.
    unseen = [ended.pop(name) for name in set(sent) - set(served)]
    assert all(row.stale and row.outcome in (Outcome.NO_RESPONSE, Outcome.CONNECT_RESET) for row in unseen)
    assert len(unseen) < requests / 10
    assert {row["ending"] for row in served.values()} == set(ENDINGS), "every lot was drawn"
    # Where the machine lets us stand still, the probe says that it does not know; where the server, that it was silent.
    halted = {name for name, row in ended.items() if row.outcome == Outcome.PROBER_FAULT or served[name]["took"] > 0.5}
    assert len(halted) < requests / 20
    for name in halted:
        del ended[name], served[name]
    wrong = [
        (served[name], found, row.outcome, row.error)
        for name, row in ended.items()
        if (found := _differences(served[name], row, name in heard))
    ]
    assert not wrong
    counts = Counter(row["ending"] for row in served.values())
    assert Counter(row.outcome for row in ended.values()) == sum(
        (Counter({MEANT[name][0].value: count}) for name, count in counts.items()), Counter()
    )


def _differences(served: dict[str, Any], row: Request, heard: bool) -> list[str]:
    """What the row says otherwise than the server."""
    ending = served["ending"]
    outcome, error = MEANT[ending]
    texts = row.chunks if row.chunks is not None else []
    on_their_way = len(texts) < served["texts"] and ending == "tokens without end" and row.at - texts[-1] < 1
    checks = {
        "outcome": row.outcome == outcome,
        "status": row.status == served["status"] and heard == (served["status"] is not None),
        "texts": len(texts) == served["texts"] or on_their_way,
        "proper end": row.ended_properly == (served["status"] is not None and ending not in UNPROVEN),
        "who left": served["gone"] == (ending in CLIENT_LEFT),
        "error": error is None or (row.error or "").startswith(error),
        "no error": error is not None or row.status != 200 or row.error is None or outcome == Outcome.DEADLINE_EXCEEDED,
    }
    return [name for name, holds in checks.items() if not holds]
