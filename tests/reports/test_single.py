"""The verdict on a single answer names what it rests on."""

from __future__ import annotations

from typing import Any

import pytest

from chaosrunner.reports.single import MEANINGS, verdict
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Request, Usage


def told(outcome: str, *, has_finish: bool = True, done_mark: str | None = "[DONE]", **fields: Any) -> list[str]:
    row = Request(at=2.0, request="probe-once-1", probe="probe", outcome=outcome, sent=1.0, once=True, **fields)
    return [line.plain.strip() for line in verdict(row, has_finish=has_finish, done_mark=done_mark)]


def test_each_outcome_that_a_request_can_have_has_its_meaning() -> None:
    assert set(Outcome) - MEANINGS.keys() == {Outcome.NOT_SENT, Outcome.UNFINISHED}


def test_a_complete_stream() -> None:
    lines = told(
        "complete", status=200, finish_reason="stop", tokens=11, usage=Usage(completion_tokens=11), done=True,
        ended_properly=True, first_token=1.25, first_answer=1.25, last_token=1.75, content_chunks=10, content_reads=9,
        largest_gap=0.075, size=900, exact=True, connection="127.0.0.1:1", remote="127.0.0.1:2", connected=1.001,
    )  # fmt: skip
    assert lines == [
        "complete: it ended as it was meant to",
        "HTTP 200, finish_reason stop, usage: 11 tokens, [DONE], proper end of the body",
        "TTFT 250 ms, TPOT 50.0 ms, E2E 1.00 s, 10 chunks in 9 reads, largest gap 75.0 ms, 900 bytes",
        "127.0.0.1:1 to 127.0.0.1:2, connected after 1.00 ms; times are the kernel's",
    ]


def test_a_stream_that_was_aborted_politely() -> None:
    first, why, signs, *_ = told(
        "aborted", status=200, finish_reason="abort", done=True, ended_properly=True, error="finish_reason abort"
    )
    assert first == "aborted: the server gave the generation up, however politely it ended"
    assert why == "finish_reason abort"
    assert signs == "HTTP 200, finish_reason abort, [DONE], proper end of the body"


def test_what_was_missing_is_named() -> None:
    lines = told("unterminated_stream", status=200, ended_properly=True)
    assert "HTTP 200, no finish_reason, no [DONE], proper end of the body" in lines


def test_an_api_without_finish_reason_is_not_blamed_for_that() -> None:
    lines = told("complete", has_finish=False, done_mark=None, status=200, ended_properly=True)
    assert "HTTP 200, proper end of the body" in lines


def test_our_own_limit_is_named() -> None:
    assert "our limit byte_idle passed" in told("stalled_stream", status=200, limit="byte_idle")[1]


@pytest.mark.parametrize(("remote", "shown"), [(None, "nobody"), ("10.0.0.1:80", "10.0.0.1:80")])
def test_without_an_answer_there_is_no_word_on_times(remote: str | None, shown: str) -> None:
    assert told("connect_timeout", remote=remote)[1:] == [
        "no answer",
        "E2E 1.00 s, 0 bytes",
        f"no connection to {shown}",
    ]
