"""Lines as a stream: JSON Lines, also called NDJSON (github.com/ndjson/ndjson-spec, jsonlines.org)."""

from __future__ import annotations

from chaosrunner.probes.framing import LONGEST, Event, Rest


class LineParser:
    """Feed it reads, cut anywhere; each line with text is an event.

    A line ends with LF; a CR before it is white space to JSON. The last line may lack its LF. Empty lines are
    signs of life.
    """

    content_types: tuple[str, ...] = (
        "application/x-ndjson",
        "application/jsonl",
        "application/x-jsonlines",
        "application/json-lines",
    )
    any_text: bool = True

    def __init__(self, longest: int = LONGEST) -> None:
        self.comments = 0
        self._rest = Rest(longest)

    def feed(self, data: bytes) -> list[Event]:
        """Events completed by `data`. Raises TooLong."""
        return self._events(self._rest.lines(data))

    def end(self) -> list[Event]:
        rest = self._rest.take()
        return self._events([rest]) if rest.strip() else []

    def may_become(self, body: bytes) -> bool:
        return not body.strip() or body.lstrip()[:1] == b"{"

    def _events(self, lines: list[bytes]) -> list[Event]:
        events = [Event(text) for line in lines if (text := line.strip())]
        self.comments += len(lines) - len(events)
        return events
