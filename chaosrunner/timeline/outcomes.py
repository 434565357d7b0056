"""How a request can end. One request has exactly one outcome."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The outcome table; the docstring of each says when it holds."""

    COMPLETE = "complete"
    """Ended as meant: finish_reason stop, length, tool_calls, content_filter; usage where asked; [DONE]; proper end."""
    COMPLETE_MISSING_DONE = "complete_missing_done"
    """Content and a good finish_reason, but what follows them is not whole: no [DONE], no usage although it was asked
    for (also with [DONE]), or [DONE] and then no proper end of the body. A success with a warning: the user has the
    whole answer. `complete` asks for the usage, and without it no token count can be checked; the row's `error` says
    what was missing."""
    EMPTY_COMPLETION = "empty_completion"
    """Ended properly, no content."""
    WRONG_LENGTH = "wrong_length"
    """Ended properly, but the token count differs from what the request fixed."""
    ABORTED = "aborted"
    """finish_reason abort or cancelled, however politely it ended."""
    ERROR_IN_STREAM = "error_in_stream"
    """An error object or error event after HTTP 200, with or without [DONE]."""
    UNTERMINATED_STREAM = "unterminated_stream"
    """HTTP 200 and a clean end of the body, but no terminal frame; [DONE] alone is none."""
    CUT_STREAM = "cut_stream"
    """HTTP 200, then a reset, a missing last chunk, a short body, a bad chunk, an HTTP/2 stream reset."""
    STALLED_STREAM = "stalled_stream"
    """HTTP 200, then silence: no byte at all, or no token, for longer than allowed."""
    NOT_A_STREAM = "not_a_stream"
    """HTTP 200 with a body that is no stream where one was asked for."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The total time limit of the request passed."""
    HTTP_ERROR = "http_error"
    """Status 300 or above that is not `rejected`."""
    REJECTED = "rejected"
    """429, or 503 with Retry-After."""
    NO_RESPONSE = "no_response"
    """The connection closed, or the first-byte limit passed, before headers."""
    CONNECT_REFUSED = "connect_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    CONNECT_RESET = "connect_reset"
    TLS_ERROR = "tls_error"
    CANCELLED = "cancelled"
    """The playbook asked for it."""
    NOT_SENT = "not_sent"
    """A planned arrival that the in-flight cap dropped."""
    UNFINISHED = "unfinished"
    """The runner died first; known when a crashed recording is read."""
    PROBER_FAULT = "prober_fault"
    """Our own side failed: local DNS, descriptors, a stalled loop. Kept out of rates."""


SUCCESSES = frozenset({Outcome.COMPLETE, Outcome.COMPLETE_MISSING_DONE})
"""Outcomes that count as success."""

OUTSIDE_RATES = frozenset({Outcome.PROBER_FAULT, Outcome.CANCELLED, Outcome.UNFINISHED})
"""Outcomes that are in no denominator: they say nothing about the service."""
