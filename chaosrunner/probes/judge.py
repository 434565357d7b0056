"""Which outcome a request had: a pure function of what was seen of it.

Precedence when several hold: prober fault, cancelled, error object, abort, transport end, missing terminal, length,
complete.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from chaosrunner.http import (
    ConnectRefused,
    ConnectReset,
    ConnectTimeout,
    FirstByteTimeout,
    LocalFault,
    NoResponse,
    StreamCut,
    TlsError,
    TransportError,
)
from chaosrunner.probes.finish import ABORT_FINISH, ERROR_FINISH, GOOD_FINISH
from chaosrunner.timeline.outcomes import Outcome

Limit = Literal["byte_idle", "token_idle", "total", "linger"]
"""A time limit of the probe. `linger`: all had been said, but the body did not end."""


class Seen(msgspec.Struct, kw_only=True, gc=False):
    """What happened to one attempt."""

    streams: bool
    """A stream was asked for."""
    done_mark: str | None = None
    """What closes a stream after its finish_reason, where something does."""
    has_finish: bool = False
    has_terminal: bool = False
    usage_asked: bool = False
    expected_tokens: int | None = None
    status: int | None = None
    retry_after: bool = False
    """The answer carries Retry-After."""
    transport: TransportError | None = None
    limit: Limit | None = None
    cancelled: bool = False
    loop_stalled: bool = False
    """Our event loop stood still just before a time limit passed."""
    ended_properly: bool | None = False
    """None: ended by a close, which proves nothing."""
    unreadable: str | None = None
    """Why the body is no event stream, where one was asked for and this is none."""
    content: bool = False
    error: str | None = None
    """An error object or event was seen."""
    finish_reason: str | None = None
    unfinished: tuple[int, ...] = ()
    """Choices that began and have no finish_reason."""
    done: bool = False
    terminal: bool = False
    tokens: int | None = None


class Judgement(NamedTuple):
    """The outcome, and why where the outcome alone does not say it (also the warning of a success)."""

    outcome: Outcome
    reason: str | None = None


def judge(seen: Seen) -> Judgement:
    """The one outcome of an attempt."""
    ours = _our_fault(seen)
    if ours is not None:
        return ours
    if seen.cancelled:
        return Judgement(Outcome.CANCELLED)
    if seen.status is None:
        return _before_headers(seen)
    if seen.status >= 300:
        refused = seen.status == 429 or (seen.status == 503 and seen.retry_after)
        return Judgement(Outcome.REJECTED if refused else Outcome.HTTP_ERROR, f"HTTP {seen.status}")
    return _after_ok(seen)


def _our_fault(seen: Seen) -> Judgement | None:
    if isinstance(seen.transport, LocalFault):
        return Judgement(Outcome.PROBER_FAULT, str(seen.transport))
    by_time = seen.limit is not None or isinstance(seen.transport, (ConnectTimeout, FirstByteTimeout))
    if by_time and seen.loop_stalled:
        return Judgement(Outcome.PROBER_FAULT, "the prober's event loop stood still when a time limit passed")
    return None


def _before_headers(seen: Seen) -> Judgement:
    reason = str(seen.transport) if seen.transport is not None else None
    match seen.transport:
        case ConnectRefused():
            return Judgement(Outcome.CONNECT_REFUSED, reason)
        case ConnectTimeout():
            return Judgement(Outcome.CONNECT_TIMEOUT, reason)
        case ConnectReset():
            return Judgement(Outcome.CONNECT_RESET, reason)
        case TlsError():
            return Judgement(Outcome.TLS_ERROR, reason)
        case NoResponse() | FirstByteTimeout():
            return Judgement(Outcome.NO_RESPONSE, reason)
        case _:
            return Judgement(Outcome.DEADLINE_EXCEEDED, "no headers within the total time limit")


def _after_ok(seen: Seen) -> Judgement:
    finish = (seen.finish_reason or "").lower()
    if seen.error is not None or finish in ERROR_FINISH:
        return Judgement(Outcome.ERROR_IN_STREAM, f"finish_reason {seen.finish_reason}")
    if finish in ABORT_FINISH:
        return Judgement(Outcome.ABORTED, f"finish_reason {seen.finish_reason}")
    broken = _broken_end(seen)
    if broken is not None and not (_terminated(seen) and (seen.done or seen.terminal)):
        return broken
    if seen.unreadable is not None:
        return Judgement(Outcome.NOT_A_STREAM, seen.unreadable)
    if not _terminated(seen):
        return Judgement(Outcome.UNTERMINATED_STREAM, _what_is_missing(seen))
    if not seen.content:
        return Judgement(Outcome.EMPTY_COMPLETION)
    if seen.expected_tokens is not None and seen.tokens is not None and seen.tokens != seen.expected_tokens:
        return Judgement(Outcome.WRONG_LENGTH, f"{seen.tokens} tokens instead of {seen.expected_tokens}")
    warning = _warning(seen, broken)
    return Judgement(Outcome.COMPLETE_MISSING_DONE if warning else Outcome.COMPLETE, warning)


def _broken_end(seen: Seen) -> Judgement | None:
    if isinstance(seen.transport, StreamCut):
        return Judgement(Outcome.CUT_STREAM, f"{seen.transport.kind}: {seen.transport}")
    match seen.limit:
        case "byte_idle":
            return Judgement(Outcome.STALLED_STREAM, "no byte within the limit")
        case "token_idle":
            return Judgement(Outcome.STALLED_STREAM, "no token within the limit")
        case "linger":
            return Judgement(Outcome.STALLED_STREAM, "the body did not end")
        case "total":
            return Judgement(Outcome.DEADLINE_EXCEEDED)
        case None:
            return None


def _terminated(seen: Seen) -> bool:
    if seen.has_finish:
        return (seen.finish_reason or "").lower() in GOOD_FINISH and not seen.unfinished
    if seen.has_terminal:
        return seen.terminal
    return True


def _what_is_missing(seen: Seen) -> str:
    if seen.finish_reason is not None and seen.unfinished:
        return f"no finish_reason for choice {', '.join(map(str, seen.unfinished))}"
    if seen.finish_reason is not None:
        return f"finish_reason {seen.finish_reason} is not one of a good end"
    return "no finish_reason" if seen.has_finish else "no terminal event"


def _warning(seen: Seen, broken: Judgement | None) -> str | None:
    if broken is not None:
        return f"complete, but then {broken.reason or broken.outcome}"
    if seen.done_mark is not None and seen.streams and not seen.done:
        return f"no {seen.done_mark}"
    if seen.usage_asked and seen.tokens is None:
        return "usage was asked for and did not come"
    if seen.ended_properly is None and not (seen.done or seen.terminal):
        return "the body ended by a close, which does not prove that it is whole"
    return None
