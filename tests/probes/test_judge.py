"""The outcome table, row by row, and the precedence where several rows hold."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from chaosrunner.http import (
    ConnectRefused,
    ConnectReset,
    ConnectTimeout,
    FirstByteTimeout,
    LocalFault,
    NoResponse,
    StreamCut,
    TlsError,
)
from chaosrunner.probes.judge import Seen, judge
from chaosrunner.timeline.outcomes import Outcome

GOOD = Seen(
    streams=True,
    done_mark="[DONE]",
    has_finish=True,
    usage_asked=True,
    status=200,
    ended_properly=True,
    content=True,
    finish_reason="stop",
    done=True,
    tokens=5,
)
PLAIN = Seen(streams=True, status=200, ended_properly=True, content=True)
UNANSWERED = Seen(streams=True, done_mark="[DONE]", has_finish=True)
CUT = StreamCut("reset", "ECONNRESET")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, Outcome.COMPLETE),
        ({"finish_reason": "length"}, Outcome.COMPLETE),
        ({"finish_reason": "tool_calls"}, Outcome.COMPLETE),
        ({"finish_reason": "content_filter"}, Outcome.COMPLETE),
        ({"ended_properly": None}, Outcome.COMPLETE),
        ({"done": False}, Outcome.COMPLETE_MISSING_DONE),
        ({"transport": CUT}, Outcome.COMPLETE_MISSING_DONE),
        ({"limit": "linger"}, Outcome.COMPLETE_MISSING_DONE),
        ({"tokens": None}, Outcome.COMPLETE_MISSING_DONE),
        ({"content": False}, Outcome.EMPTY_COMPLETION),
        ({"expected_tokens": 6}, Outcome.WRONG_LENGTH),
        ({"expected_tokens": 5}, Outcome.COMPLETE),
        ({"content": False, "expected_tokens": 6}, Outcome.EMPTY_COMPLETION),
        ({"finish_reason": "abort"}, Outcome.ABORTED),
        ({"finish_reason": "cancelled"}, Outcome.ABORTED),
        ({"finish_reason": "abort", "transport": CUT}, Outcome.ABORTED),
        ({"error": "died"}, Outcome.ERROR_IN_STREAM),
        ({"finish_reason": "error"}, Outcome.ERROR_IN_STREAM),
        ({"error": "died", "finish_reason": "abort", "transport": CUT}, Outcome.ERROR_IN_STREAM),
        ({"finish_reason": None}, Outcome.UNTERMINATED_STREAM),
        ({"finish_reason": None, "ended_properly": None, "done": False}, Outcome.UNTERMINATED_STREAM),
        ({"finish_reason": "unheard_of"}, Outcome.UNTERMINATED_STREAM),
        ({"finish_reason": None, "content": False}, Outcome.UNTERMINATED_STREAM),
        ({"transport": CUT, "done": False}, Outcome.CUT_STREAM),
        ({"transport": CUT, "finish_reason": None}, Outcome.CUT_STREAM),
        ({"transport": CUT, "finish_reason": None, "unreadable": "JSON"}, Outcome.CUT_STREAM),
        ({"limit": "byte_idle", "done": False}, Outcome.STALLED_STREAM),
        ({"limit": "token_idle", "done": False, "finish_reason": None}, Outcome.STALLED_STREAM),
        ({"limit": "linger", "finish_reason": None}, Outcome.STALLED_STREAM),
        ({"unreadable": "JSON", "finish_reason": None, "done": False}, Outcome.NOT_A_STREAM),
        ({"limit": "total", "done": False, "finish_reason": None}, Outcome.DEADLINE_EXCEEDED),
        ({"cancelled": True}, Outcome.CANCELLED),
        ({"cancelled": True, "error": "died"}, Outcome.CANCELLED),
        ({"limit": "byte_idle", "done": False, "loop_stalled": True}, Outcome.PROBER_FAULT),
        ({"loop_stalled": True}, Outcome.COMPLETE),
        ({"transport": LocalFault("EMFILE"), "cancelled": True}, Outcome.PROBER_FAULT),
        ({"status": 429}, Outcome.REJECTED),
        ({"status": 503, "retry_after": True}, Outcome.REJECTED),
        ({"status": 503}, Outcome.HTTP_ERROR),
        ({"status": 500, "retry_after": True}, Outcome.HTTP_ERROR),
        ({"status": 302}, Outcome.HTTP_ERROR),
        ({"status": 500, "transport": CUT}, Outcome.HTTP_ERROR),
        # a whole answer knows no [DONE]
        ({"streams": False, "done": False}, Outcome.COMPLETE),
    ],
)
def test_after_headers(changes: dict[str, object], outcome: Outcome) -> None:
    assert judge(replace(GOOD, **changes)).outcome == outcome


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, Outcome.COMPLETE),
        ({"ended_properly": None}, Outcome.COMPLETE_MISSING_DONE),
        ({"transport": CUT}, Outcome.CUT_STREAM),
        ({"has_terminal": True}, Outcome.UNTERMINATED_STREAM),
        ({"has_terminal": True, "terminal": True}, Outcome.COMPLETE),
        ({"has_terminal": True, "terminal": True, "ended_properly": None}, Outcome.COMPLETE),
        ({"has_terminal": True, "terminal": True, "transport": CUT}, Outcome.COMPLETE_MISSING_DONE),
    ],
)
def test_plain_streams(changes: dict[str, object], outcome: Outcome) -> None:
    assert judge(replace(PLAIN, **changes)).outcome == outcome


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"transport": ConnectRefused("x")}, Outcome.CONNECT_REFUSED),
        ({"transport": ConnectTimeout("x")}, Outcome.CONNECT_TIMEOUT),
        ({"transport": ConnectReset("x")}, Outcome.CONNECT_RESET),
        ({"transport": TlsError("x")}, Outcome.TLS_ERROR),
        ({"transport": NoResponse("x")}, Outcome.NO_RESPONSE),
        ({"transport": FirstByteTimeout("x")}, Outcome.NO_RESPONSE),
        ({"limit": "total"}, Outcome.DEADLINE_EXCEEDED),
        ({"transport": LocalFault("x")}, Outcome.PROBER_FAULT),
        ({"transport": FirstByteTimeout("x"), "loop_stalled": True}, Outcome.PROBER_FAULT),
        ({"transport": ConnectTimeout("x"), "loop_stalled": True}, Outcome.PROBER_FAULT),
        ({"transport": ConnectRefused("x"), "loop_stalled": True}, Outcome.CONNECT_REFUSED),
        ({"cancelled": True}, Outcome.CANCELLED),
    ],
)
def test_before_headers(changes: dict[str, object], outcome: Outcome) -> None:
    assert judge(replace(UNANSWERED, **changes)).outcome == outcome


def test_reasons() -> None:
    assert judge(replace(GOOD, done=False)).reason == "no [DONE]"
    assert judge(GOOD).reason is None
    assert judge(replace(GOOD, expected_tokens=6)).reason == "5 tokens instead of 6"
    assert judge(replace(GOOD, transport=CUT)).reason == "complete, but then reset: ECONNRESET"
    assert judge(replace(GOOD, finish_reason=None)).reason == "no finish_reason"
