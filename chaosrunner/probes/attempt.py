"""One request from its sending to its one final row."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import anyio

from chaosrunner.http import Exchange, FirstByteTimeout, Headers, StreamClient, TransportError
from chaosrunner.probes.dialects import Dialect
from chaosrunner.probes.judge import Limit, Seen, judge
from chaosrunner.probes.self_check import LoopWatch
from chaosrunner.probes.spec import Planned, ProbeSpec
from chaosrunner.probes.tap import Tap, Tapped
from chaosrunner.probes.transcript import Transcript
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import SUCCESSES
from chaosrunner.timeline.redact import Redactor, mask_schemes, sensitive_values
from chaosrunner.timeline.rows import Emit, Request, RequestHeaders, RequestSent

SOONEST = 0.01
"""Seconds between two looks at the time limits at least."""
RARELY = 1.0
"""And at most."""


@dataclass(frozen=True)
class Expect:
    """What a single request must come to; what is None or empty is not looked at."""

    status: int | None = None
    outcomes: frozenset[str] = frozenset()
    """Any of these."""

    def met_by(self, status: int | None, outcome: str) -> bool:
        return self.status in (None, status) and (not self.outcomes or outcome in self.outcomes)


class Attempts:
    """Sends the requests of one probe, one call each. Rows go to `emit` as things happen."""

    def __init__(self, spec: ProbeSpec, emit: Emit, clock: Clock, watch: LoopWatch) -> None:
        self._spec = spec
        self._emit = emit
        self._clock = clock
        self._watch = watch
        self._dialect: Dialect = spec.make_dialect()
        self._in_flight: set[_Attempt] = set()
        limits = spec.limits
        self._shortest = min(limits.first_byte, limits.byte_idle, limits.token_idle, limits.linger, limits.total)
        self._look_every = min(max(self._shortest / 4, SOONEST), RARELY)
        self._ticks = False
        self._redactor = Redactor({spec.api_key or "", *sensitive_values(spec.headers)})

    async def send(
        self,
        client: StreamClient,
        planned: Planned,
        expect: Expect | None = None,
        tap: Tap | None = None,
        hold: Callable[[float], None] | None = None,
    ) -> Request:
        """Send, read to the end, judge. A cancelled request has its row too, before the cancellation goes on.

        hold: waits for the scheduled time, when all has been made ready for it.
        """
        attempt = _Attempt(self._spec, self._dialect, client, planned, self._clock, self._emit)
        if hold is not None and planned.scheduled is not None:
            hold(planned.scheduled)
        attempt.begin()
        self._emit(
            RequestSent(
                at=attempt.sent,
                request=planned.id,
                probe=self._spec.name,
                shape=planned.shape.name,
                scheduled=planned.scheduled,
                once=expect is not None,
                replica=self._spec.replica.id if self._spec.replica is not None else None,
            )
        )
        self._in_flight.add(attempt)
        if not self._ticks:
            self._tick()
        try:
            await attempt.run(tap)
        except anyio.get_cancelled_exc_class():
            attempt.cancelled = True
            self._emit(attempt.row(self._watch, self._redactor, expect))
            raise
        finally:
            self._in_flight.discard(attempt)
        row = attempt.row(self._watch, self._redactor, expect)
        self._emit(row)
        return row

    def _tick(self) -> None:
        """Look at the limits of all that is in flight, as long as something is.

        One timer for all costs a read nothing, and a request next to it. No limit passes unseen: each is longer than
        the time between two ticks, and one that ends before the next tick gets a timer of its own.
        """
        self._ticks = bool(self._in_flight)
        if self._ticks:
            asyncio.get_running_loop().call_later(self._look_every, self._tick)
            now = self._clock.now()
            next_look = now + self._look_every
            for attempt in self._in_flight:
                if attempt.look_again < next_look:
                    # What comes from now on can start another limit, which takes the shortest of all at least.
                    attempt.look_again = min(attempt.look(now, next_look), now + self._shortest)


class _Attempt:
    """One request; receiver of its own exchange."""

    def __init__(
        self, spec: ProbeSpec, dialect: Dialect, client: StreamClient, planned: Planned, clock: Clock, emit: Emit
    ) -> None:
        self._spec = spec
        self._dialect = dialect
        self._planned = planned
        self._clock = clock
        self._emit = emit
        self._exchange: Exchange = client.stream(
            planned.method, planned.path, content=planned.content, headers=planned.headers
        )
        self._transcript = Transcript(dialect, "events" if spec.streams else "whole", record_chunks=spec.record_chunks)
        self.data: Callable[[float, bytes, bool], bool] = self._transcript.feed
        self._transport: TransportError | None = None
        self._limit: Limit | None = None
        self._replica = spec.replica
        self._pod: str | None = None
        self._ended: float | None = None
        """None: not ended, or cancelled, which is an end at once."""
        self.sent: float
        self.look_again: float
        """Before then no limit passes, whatever comes."""
        self.cancelled = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The request counts as sent from now on."""
        self.sent = self.look_again = self._clock.now()

    async def run(self, tap: Tap | None) -> None:
        exchange, transcript = self._exchange, self._transcript
        cancel = self._planned.cancel_after
        if cancel is not None and cancel.time is not None:
            self._look_at(self.sent + cancel.time)
        try:
            await exchange.push(self if tap is None else Tapped(self, tap))
        except TransportError as error:
            self._transport = error
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if self._ended is None:
            self._ended = exchange.timings.ended or transcript.last_byte or exchange.timings.headers or self.sent
        self._transcript.end()
        if tap is not None:
            tap.ended(self._ended, exchange.ended_properly, self._transport)

    def headers(self, at: float, status: int, headers: Headers) -> None:
        if self._replica is not None:
            self._pod = self._replica.name
        elif self._spec.pod_header is not None:
            self._pod = headers.get(self._spec.pod_header)
        self._emit(
            RequestHeaders(at=at, request=self._planned.id, status=status, pod=self._pod, remote=self._exchange.remote)
        )
        cancel = self._planned.cancel_after
        if status >= 300:
            self._transcript = Transcript(self._dialect, "raw")
            self.data = self._transcript.feed
        elif cancel is not None and cancel.chunks is not None:
            self.data = self._feed_and_count

    def _feed_and_count(self, at: float, data: bytes, exact: bool) -> bool:
        """Take one read; the plan has the request cancelled now, if it has had so many chunks."""
        cancel = self._planned.cancel_after
        assert cancel is not None
        assert cancel.chunks is not None
        goes_on = self._transcript.feed(at, data, exact)
        if self._transcript.content_chunks >= cancel.chunks:
            self.cancelled = True
            return False
        return goes_on

    # --- time limits ---

    def look(self, now: float, next_look: float) -> float:
        """End the request if a limit has passed, or see to it that it is ended when one does before `next_look`.

        Returns until when no limit passes, but for those that what comes starts anew. An answer that is over has no
        limits any more, also where its reader and a timer are called one after the other, before the task that waits
        for it goes on.
        """
        if self._exchange.over:
            return math.inf
        due, limit = self._next_limit()
        if due > now:
            if due < next_look:
                self._look_at(due)
            # Where a choice begins after others have finished, the silence of tokens counts on from before.
            return due if self._transcript.finish_reason is None else now
        self._ended = due
        if limit == "cancel":
            self.cancelled = True
        elif limit == "first_byte":
            self._transport = FirstByteTimeout(f"no headers within {self._spec.limits.first_byte:g} s")
        else:
            self._limit = limit
        self._exchange.stop()
        return due

    def _look_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = at - self._clock.now()
        self._timer = asyncio.get_running_loop().call_later(delay, self._look_now)

    def _look_now(self) -> None:
        self.look(self._clock.now(), math.inf)

    def _next_limit(self) -> tuple[float, Limit | Literal["cancel", "first_byte"]]:
        """The limit that passes first if nothing more comes, and when."""
        limits, transcript, timings = self._spec.limits, self._transcript, self._exchange.timings
        due = self.sent + limits.total
        limit: Limit | Literal["cancel", "first_byte"] = "total"
        cancel = self._planned.cancel_after
        if cancel is not None and cancel.time is not None and (at := self.sent + cancel.time) < due:
            due, limit = at, "cancel"
        if not self._spec.streams:
            return due, limit
        if timings.headers is None:
            if timings.requested is not None and (at := timings.requested + limits.first_byte) < due:
                due, limit = at, "first_byte"
        elif transcript.settled is not None:
            if (at := transcript.settled + limits.linger) < due:
                due, limit = at, "linger"
        else:
            if (at := (transcript.last_byte or timings.headers) + limits.byte_idle) < due:
                due, limit = at, "byte_idle"
            if (at := (transcript.last_token or timings.headers) + limits.token_idle) < due and (
                transcript.finish_reason is None or transcript.unfinished
            ):
                due, limit = at, "token_idle"
        return due, limit

    def row(self, watch: LoopWatch, redactor: Redactor, expect: Expect | None) -> Request:
        spec, exchange, transcript = self._spec, self._exchange, self._transcript
        tokens = transcript.usage.completion_tokens if transcript.usage is not None else None
        judgement = judge(self._seen(tokens, watch))
        text = self._error_text(judgement.outcome in SUCCESSES) or judgement.reason
        return Request(
            at=self._clock.now() if self._ended is None else self._ended,
            request=self._planned.id,
            probe=spec.name,
            outcome=judgement.outcome,
            sent=self.sent,
            scheduled=self._planned.scheduled,
            cancel_planned=self._planned.cancel_after is not None,
            shape=self._planned.shape.name,
            once=expect is not None,
            replica=self._replica.id if self._replica is not None else None,
            connected=exchange.timings.connected,
            headers=exchange.timings.headers,
            first_byte=transcript.first_byte,
            last_byte=transcript.last_byte,
            first_token=transcript.first_token,
            first_token_exact=transcript.first_token_exact,
            first_answer=transcript.first_answer,
            last_token=transcript.last_token,
            tokens=tokens,
            usage=transcript.usage,
            finish_reason=transcript.finish_reason,
            done=transcript.done,
            ended_properly=exchange.ended_properly is True,
            status=exchange.status,
            pod=self._pod,
            remote=exchange.remote,
            connection=exchange.connection,
            opened=exchange.opened,
            reused=exchange.reused,
            stale=self._transport is not None and self._transport.stale,
            size=transcript.size,
            events=transcript.events,
            comments=transcript.comments,
            chunks=transcript.chunks,
            content_chunks=transcript.content_chunks,
            content_reads=transcript.content_reads,
            at_once=transcript.at_once,
            largest_gap=transcript.largest_gap,
            exact=exchange.exact is True,
            expected_tokens=self._planned.expected_tokens,
            limit="first_byte" if isinstance(self._transport, FirstByteTimeout) else self._limit,
            error=mask_schemes(redactor.text(text)) if text else None,
            error_code=transcript.error.code if transcript.error is not None else None,
            expected=expect.met_by(exchange.status, judgement.outcome) if expect is not None else None,
        )

    def _seen(self, tokens: int | None, watch: LoopWatch) -> Seen:
        spec, exchange, transcript = self._spec, self._exchange, self._transcript
        return Seen(
            streams=spec.streams,
            done_mark=self._dialect.done_mark,
            has_finish=self._dialect.has_finish,
            has_terminal=self._dialect.has_terminal,
            usage_asked=spec.expects_usage,
            expected_tokens=self._planned.expected_tokens,
            status=exchange.status,
            retry_after=exchange.status == 503 and "retry-after" in exchange.headers,
            transport=self._transport,
            limit=self._limit,
            cancelled=self.cancelled,
            loop_stalled=(self._limit is not None or self._transport is not None) and watch.stalled(),
            ended_properly=exchange.ended_properly,
            unreadable=transcript.unreadable(exchange.headers),
            content=transcript.content,
            error=transcript.error.text if transcript.error is not None else None,
            finish_reason=transcript.finish_reason,
            unfinished=transcript.unfinished,
            done=transcript.done,
            terminal=transcript.terminal,
            tokens=tokens,
        )

    def _error_text(self, success: bool) -> str | None:
        """What the other side, or the transport, said went wrong."""
        transcript, status = self._transcript, self._exchange.status
        if transcript.error is not None:
            return transcript.error.text[:2048]
        if status is not None and status >= 300:
            return transcript.head or None
        if success or transcript.events or self._transport is not None or self._limit is not None:
            return None
        return transcript.head or None
