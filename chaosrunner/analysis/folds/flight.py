"""Requests in flight: sent, not yet ended."""

from __future__ import annotations

from dataclasses import dataclass

from chaosrunner.timeline.rows import Request, RequestHeaders, RequestSent


@dataclass
class Flying:
    sent: RequestSent
    label: str | None = None
    """The serving Pod as the response named it; None before the headers, or where they name none."""
    remote: str | None = None
    """The other end of the connection; None before the headers."""
    status: int | None = None
    headers: float | None = None
    """When the headers came, seconds."""


class Flight:
    def __init__(self) -> None:
        self.requests: dict[str, Flying] = {}

    def feed_sent(self, row: RequestSent) -> None:
        self.requests[row.request] = Flying(row)

    def feed_headers(self, row: RequestHeaders) -> None:
        flying = self.requests.get(row.request)
        if flying is not None:
            flying.label, flying.remote, flying.headers, flying.status = row.pod, row.remote, row.at, row.status

    def feed_end(self, row: Request) -> None:
        self.requests.pop(row.request, None)
