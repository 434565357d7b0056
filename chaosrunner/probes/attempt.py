"""One request from its sending to its one final row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import anyio

from chaosrunner.http import Exchange, FirstByteTimeout, StreamClient, TransportError
from chaosrunner.probes.dialects import Dialect
from chaosrunner.probes.judge import Limit, Seen, judge
from chaosrunner.probes.self_check import LoopWatch
from chaosrunner.probes.spec import Planned, ProbeSpec
from chaosrunner.probes.transcript import Transcript
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import SUCCESSES
from chaosrunner.timeline.redact import Redactor, mask_schemes, sensitive_values
from chaosrunner.timeline.rows import Emit, Request, RequestHeaders, RequestSent


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
        self._redactor = Redactor({spec.api_key or "", *sensitive_values(spec.headers)})

    async def send(self, client: StreamClient, planned: Planned, expect: Expect | None = None) -> Request:
        """Send, read to the end, judge. A cancelled request has its row too, before the cancellation goes on."""
        attempt = _Attempt(self._spec, self._dialect, client, planned, self._clock)
        self._emit(
            RequestSent(
                at=attempt.sent,
                request=planned.id,
                probe=self._spec.name,
                shape=planned.shape.name,
                scheduled=planned.scheduled,
                once=expect is not None,
            )
        )
        try:
            await attempt.run(self._emit)
        except anyio.get_cancelled_exc_class():
            attempt.cancelled = True
            self._emit(attempt.row(self._watch, self._redactor, expect))
            raise
        row = attempt.row(self._watch, self._redactor, expect)
        self._emit(row)
        return row


class _Attempt:
    def __init__(self, spec: ProbeSpec, dialect: Dialect, client: StreamClient, planned: Planned, clock: Clock) -> None:
        self._spec = spec
        self._dialect = dialect
        self._planned = planned
        self._clock = clock
        self._exchange: Exchange = client.stream(
            planned.method, planned.path, content=planned.content, headers=planned.headers
        )
        self._transcript = Transcript(dialect, "events" if spec.streams else "whole", record_chunks=spec.record_chunks)
        self._transport: TransportError | None = None
        self._limit: Limit | None = None
        self._pod: str | None = None
        self._ended: float | None = None
        """None: not ended, or cancelled, which is an end at once."""
        self.sent = clock.now()
        self.cancelled = False

    async def run(self, emit: Emit) -> None:
        # A scope's deadline is on the loop's clock, which runs like ours.
        shift = anyio.current_time() - self._clock.now()
        total = self.sent + self._spec.limits.total
        deadline: float = total
        limit: Limit | Literal["cancel"] = "total"
        if (cancel := self._planned.cancel_after) is not None and cancel.time is not None:
            deadline, limit = min((deadline, limit), (self.sent + cancel.time, "cancel"))
        last = self.sent
        exchange, transcript = self._exchange, self._transcript
        try:
            with anyio.CancelScope(deadline=deadline + shift) as scope:
                async with exchange:
                    transcript = self._headers_came(emit)
                    assert exchange.timings.headers is not None
                    last = exchange.timings.headers
                    deadline, limit = self._next_limit(last, total)
                    scope.deadline = deadline + shift
                    async for last, data in exchange:
                        if not transcript.feed(last, data) or self._is_cut_short():
                            break
                        # A limit that has passed stays, although a last read may yet be taken.
                        if not scope.cancel_called:
                            deadline, limit = self._next_limit(last, total)
                            scope.deadline = deadline + shift
        except TransportError as error:
            self._transport = error
        if scope.cancelled_caught:
            if limit == "cancel":
                self.cancelled = True
            else:
                self._limit = limit
            self._ended = max(deadline, last)
        else:
            self._ended = exchange.timings.ended or last
        transcript.end()

    def _headers_came(self, emit: Emit) -> Transcript:
        exchange = self._exchange
        assert exchange.status is not None
        assert exchange.timings.headers is not None
        if self._spec.pod_header is not None:
            self._pod = exchange.headers.get(self._spec.pod_header)
        emit(
            RequestHeaders(
                at=exchange.timings.headers,
                request=self._planned.id,
                status=exchange.status,
                pod=self._pod,
                remote=exchange.remote,
            )
        )
        if exchange.status >= 300:
            self._transcript = Transcript(self._dialect, "raw")
        return self._transcript

    def _is_cut_short(self) -> bool:
        """Whether the plan has the request cancelled now, having had so many chunks."""
        cancel = self._planned.cancel_after
        if cancel is None or cancel.chunks is None or self._transcript.content_chunks < cancel.chunks:
            return False
        self.cancelled = True
        return True

    def _next_limit(self, at: float, total: float) -> tuple[float, Limit | Literal["cancel"]]:
        """The limit that passes first if nothing more comes after `at`, and when."""
        limits, transcript = self._spec.limits, self._transcript
        due: list[tuple[float, Limit | Literal["cancel"]]] = [(total, "total")]
        if (cancel := self._planned.cancel_after) is not None and cancel.time is not None:
            due.append((self.sent + cancel.time, "cancel"))
        if self._spec.streams:
            if transcript.settled is not None:
                due.append((transcript.settled + limits.linger, "linger"))
            else:
                due.append((at + limits.byte_idle, "byte_idle"))
                if transcript.finish_reason is None or transcript.unfinished:
                    since = transcript.last_token or self._exchange.timings.headers or at
                    due.append((since + limits.token_idle, "token_idle"))
        return min(due)

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
            size=transcript.size,
            events=transcript.events,
            comments=transcript.comments,
            chunks=transcript.chunks,
            content_chunks=transcript.content_chunks,
            content_reads=transcript.content_reads,
            at_once=transcript.at_once,
            largest_gap=transcript.largest_gap,
            exact=transcript.exact,
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
            retry_after="retry-after" in exchange.headers,
            transport=self._transport,
            limit=self._limit,
            cancelled=self.cancelled,
            loop_stalled=watch.stalled(),
            ended_properly=exchange.ended_properly,
            unreadable=self._unreadable(),
            content=transcript.content,
            error=transcript.error.text if transcript.error is not None else None,
            finish_reason=transcript.finish_reason,
            unfinished=transcript.unfinished,
            done=transcript.done,
            terminal=transcript.terminal,
            tokens=tokens,
        )

    def _unreadable(self) -> str | None:
        headers = self._exchange.headers
        return self._transcript.unreadable(headers.get("content-type", ""), headers.get("content-encoding", "identity"))

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
