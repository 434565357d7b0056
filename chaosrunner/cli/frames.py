"""A single answer, frame by frame, while it comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from chaosrunner.http import Headers, StreamCut, TransportError
from chaosrunner.probes import ProbeSpec
from chaosrunner.probes.dialects import Frame as Meaning
from chaosrunner.probes.dialects.base import UNREADABLE
from chaosrunner.probes.framing import Event, TooLong
from chaosrunner.reports.format import fine, harmless, plural
from chaosrunner.reports.single import verdict
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock

NOTABLE = (
    "content-type", "content-length", "transfer-encoding", "content-encoding", "connection", "retry-after", "server",
    "via",
)  # fmt: skip
"""Headers that tell something about how a stream is carried. Those of gateways begin with `x-`."""

TIME = 10
"""Columns of a time."""
KIND = 10
"""Columns of what a frame is."""

STYLES = {
    "answer": "green",
    "reasoning": "magenta",
    "finish": "bold cyan",
    "usage": "blue",
    "done": "bold",
    "terminal": "bold",
    "error": "bold red",
    "malformed": "yellow",
    "nothing": "dim",
    "comment": "dim",
    "end": "bold",
    "cut": "bold red",
}

CUTS = {
    "reset": "reset",
    "missing_last_chunk": "closed before the last chunk",
    "short_body": "closed before its full length",
    "bad_chunk": "broken chunks",
    "stream_reset": "HTTP/2 stream reset",
}


class Frame(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One event, or some comments, of a stream."""

    at: float
    """Seconds since sending."""
    gap: float
    """Seconds since what came before, be it headers or a frame."""
    kind: str
    """answer, reasoning (a tool call too), finish, usage, done, terminal, error, malformed, nothing, comment."""
    text: str = ""
    """What it adds to the answer."""
    data: str = ""
    event: str | None = None
    """Its type, where that is not `message`."""
    finish: str | None = None
    tokens: int | None = None
    """Completion tokens, where it has usage."""
    exact: bool = False
    """Whether its time is the kernel's and its own. Else it may have come earlier: with others in one read."""


class Frames:
    """Shows frames as they come, and keeps them. A tap of `probe_once`."""

    def __init__(self, console: Console | None, spec: ProbeSpec, clock: Clock) -> None:
        """console: None shows nothing."""
        self._console = console
        self._spec = spec
        self._dialect = spec.make_dialect()
        self._framing = self._dialect.framing()
        self._sent = 0.0
        self._last = 0.0
        self._comments = 0
        self._body = 0
        self._streams = False
        self.fields: dict[str, str] = {}
        """The answer's headers."""
        self.frames: list[Frame] = []

    def began(self, row: rows.RequestSent) -> None:
        self._sent = self._last = row.at
        spec = self._spec
        what = f"{spec.dialect} to {spec.url}{spec.path or ''}" + (f", model {spec.model}" if spec.model else "")
        self._print(Text(what, style="bold"))

    def headers(self, at: float, status: int, headers: Headers) -> None:
        self.fields = dict(headers)
        self._streams = self._spec.streams and status < 300
        self._line(at, f"HTTP {status}", Text(), "bold" if status < 300 else "bold red")
        notable = {*NOTABLE, (self._spec.pod_header or "").lower()}
        for name, value in headers.items():
            if name in notable or name.startswith("x-"):
                self._print(Text.assemble(" " * (2 * TIME + 4), (harmless(f"{name}: {value}"), "dim")))

    def data(self, at: float, data: bytes, exact: bool) -> None:
        self._body += len(data)
        if not self._streams:
            self._show(at, Frame(at=0, gap=0, kind="body", data=data.decode("utf-8", "replace"), exact=exact))
            return
        try:
            events = self._framing.feed(data)
        except TooLong as error:
            self._show(at, Frame(at=0, gap=0, kind="malformed", data=str(error)))
            return
        self._take(at, events, exact)

    def ended(self, at: float, properly: bool | None, error: TransportError | None) -> None:
        if self._streams:
            self._take(self._last, self._framing.end(), False)
        if isinstance(error, StreamCut):
            self._line(at, "cut", Text(f"{CUTS[error.kind]}: {error}", style="red"), "bold red")
        elif error is not None:
            self._line(at, "no answer" if not error.after_headers else "cut", Text(str(error), style="red"), "bold red")
        else:
            self._line(at, "end", Text(self._how(properly)), "bold")

    def _how(self, properly: bool | None) -> str:
        if properly:
            chunked = "chunked" in self.fields.get("transfer-encoding", "")
            return "last chunk" if chunked else "full length"
        return "closed by the other side, which proves nothing" if properly is None else "left by us"

    def finish(self, row: rows.Request) -> None:
        self._print(Text())
        dialect = self._dialect
        for line in verdict(row, has_finish=dialect.has_finish, done_mark=dialect.done_mark):
            self._print(line)

    def _take(self, at: float, events: list[Event], exact: bool) -> None:
        if (more := self._framing.comments - self._comments) > 0:
            self._comments = self._framing.comments
            self._show(at, Frame(at=0, gap=0, kind="comment", data=plural(more, "sign") + " of life", exact=exact))
        for number, event in enumerate(events, start=1):
            meaning = self._dialect.event(event)
            self._show(
                at,
                Frame(
                    at=0,
                    gap=0,
                    kind=kind(meaning),
                    text=said(event.data) if meaning.content else "",
                    data=event.data.decode("utf-8", "replace"),
                    event=None if event.name == "message" else event.name,
                    finish=meaning.finish,
                    tokens=meaning.usage.completion_tokens if meaning.usage else None,
                    exact=exact and number == len(events),
                ),
            )

    def _show(self, at: float, frame: Frame) -> None:
        frame.at, frame.gap = at - self._sent, at - self._last
        self.frames.append(frame)
        text = Text()
        if frame.event is not None:
            text.append(f"[{harmless(frame.event)}] ", style="cyan")
        if frame.finish is not None:
            text.append(f"finish_reason {harmless(frame.finish)}  ", style="cyan")
        if frame.tokens is not None:
            text.append(f"{plural(frame.tokens, 'token')}  ", style="blue")
        if frame.text:
            text.append(f"{frame.text!r}  ", style=STYLES[frame.kind])
        text.append(harmless(frame.data), style="dim")
        self._line(at, frame.kind, text, STYLES.get(frame.kind, ""), bounded=not frame.exact)

    def _line(self, at: float, kind: str, text: Text, style: str, *, bounded: bool = False) -> None:
        gap, self._last = at - self._last, at
        line = Text(f"{'≤' if bounded else ''}{fine(at - self._sent)}".rjust(TIME))
        line.append(f"+{fine(gap)}".rjust(TIME + 2) + "  ", style="dim")
        line.append(kind.ljust(KIND), style=style)
        line.append_text(text)
        if self._console is not None:
            line.truncate(self._console.width, overflow="ellipsis")
        self._print(line)

    def _print(self, line: Text) -> None:
        if self._console is not None:
            line.rstrip()
            self._console.print(line, soft_wrap=True)


def kind(meaning: Meaning) -> str:
    """What the dialect made of an event, in one word: what weighs most for the outcome."""
    if meaning.error is not None:
        return "error"
    if meaning.malformed:
        return "malformed"
    if meaning.finish is not None:
        return "finish"
    if meaning.answer:
        return "answer"
    if meaning.content:
        return "reasoning"
    if meaning.usage is not None:
        return "usage"
    if meaning.done:
        return "done"
    return "terminal" if meaning.terminal else "nothing"


TEXTS = frozenset(
    {
        "text",
        "content",
        "reasoning",
        "reasoning_content",
        "thinking",
        "refusal",
        "arguments",
        "partial_json",
        "response",
    }
)
"""Fields that hold what a model says, in the APIs that there are."""


def said(data: bytes) -> str:
    """The text inside an event's JSON, for people to read; empty where there is none to be found."""
    try:
        return "".join(_texts(msgspec.json.decode(data)))
    except UNREADABLE:
        return ""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, str):
                # Responses has the text in `delta` itself, all others have an object there.
                if name in TEXTS or name == "delta":
                    yield inner
            else:
                yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
