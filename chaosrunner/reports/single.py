"""What became of a single request, and why."""

from __future__ import annotations

from rich.text import Text

from chaosrunner.reports.format import fine, one_line, plural
from chaosrunner.timeline.outcomes import SUCCESSES, Outcome
from chaosrunner.timeline.rows import Request

MEANINGS: dict[str, str] = {
    Outcome.COMPLETE: "it ended as it was meant to",
    Outcome.COMPLETE_MISSING_DONE: "the answer is whole, but what follows it is not: a success with a warning",
    Outcome.EMPTY_COMPLETION: "it ended properly, but without any content",
    Outcome.WRONG_LENGTH: "it ended properly, but with another number of tokens than asked for",
    Outcome.ABORTED: "the server gave the generation up, however politely it ended",
    Outcome.ERROR_IN_STREAM: "an error came inside the stream; HTTP 200 and [DONE] do not change that",
    Outcome.UNTERMINATED_STREAM: "the body ended cleanly, but nothing says that the answer is whole ([DONE] does not)",
    Outcome.CUT_STREAM: "the body did not end as HTTP says it must",
    Outcome.STALLED_STREAM: "the stream stood still for longer than allowed",
    Outcome.NOT_A_STREAM: "HTTP 200, but the body is no stream",
    Outcome.DEADLINE_EXCEEDED: "it took longer than allowed",
    Outcome.HTTP_ERROR: "the status is that of an error",
    Outcome.REJECTED: "the server asks to come back later",
    Outcome.NO_RESPONSE: "connected, but no answer came",
    Outcome.CONNECT_REFUSED: "nobody listens there",
    Outcome.CONNECT_TIMEOUT: "no connection came about in time",
    Outcome.CONNECT_RESET: "the connection was reset before any answer",
    Outcome.TLS_ERROR: "the TLS handshake failed",
    Outcome.CANCELLED: "we ended it",
    Outcome.PROBER_FAULT: "our own side failed: this says nothing about the service",
}


def verdict(row: Request, *, has_finish: bool = True, done_mark: str | None = None) -> list[Text]:
    """Lines of text: the outcome and why, what it rests on, the figures, the connection.

    has_finish: whether the API has a finish_reason; done_mark: what it calls the mark that closes a stream.
    """
    good = row.outcome in SUCCESSES
    style = "green" if row.outcome == Outcome.COMPLETE else "yellow" if good else "red"
    first = Text.assemble((row.outcome, f"bold {style}"), (f": {MEANINGS[row.outcome]}", style))
    lines = [first]
    if row.error:
        lines.append(Text(f"  {one_line(row.error, 400)}", style=style))
    lines.append(Text(f"  {', '.join(_signs(row, has_finish, done_mark))}"))
    if figures := _figures(row):
        lines.append(Text(f"  {', '.join(figures)}"))
    lines.append(Text(f"  {_connection(row)}", style="dim"))
    return lines


def _signs(row: Request, has_finish: bool, done_mark: str | None) -> list[str]:
    """What the outcome rests on."""
    if row.status is None:
        return ["no answer"]
    signs = [f"HTTP {row.status}"]
    if row.finish_reason or has_finish:
        signs.append(f"finish_reason {one_line(row.finish_reason)}" if row.finish_reason else "no finish_reason")
    if row.tokens is not None:
        signs.append(f"usage: {plural(row.tokens, 'token')}")
    if row.done or done_mark is not None:
        signs.append(f"{'' if row.done else 'no '}{done_mark or '[DONE]'}")
    signs.append("proper end of the body" if row.ended_properly else "no proper end of the body")
    if row.limit:
        signs.append(f"our limit {row.limit} passed")
    return signs


def _figures(row: Request) -> list[str]:
    figures = []
    if row.first_token is not None:
        figures.append(f"TTFT {fine(row.first_token - row.sent)}")
        if row.first_answer not in (None, row.first_token):
            figures.append(f"answer after {fine(row.first_answer - row.sent)}")
        if row.tokens is not None and row.tokens > 1 and row.last_token is not None:
            figures.append(f"TPOT {fine((row.last_token - row.first_token) / (row.tokens - 1))}")
    figures.append(f"E2E {fine(row.at - row.sent)}")
    if row.content_chunks:
        figures.append(f"{plural(row.content_chunks, 'chunk')} in {plural(row.content_reads, 'read')}")
    if row.largest_gap is not None:
        figures.append(f"largest gap {fine(row.largest_gap)}")
    figures.append(plural(row.size, "byte"))
    return figures


def _connection(row: Request) -> str:
    text = f"{row.connection or 'no connection'} to {row.remote or 'nobody'}"
    if row.connected is not None:
        text += f", connected after {fine(row.connected - row.sent)}"
    if row.status is None:
        return text
    return text + ("; times are the kernel's" if row.exact else "; some times are the event loop's")
