"""Run probes against scripted servers and keep their rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import anyio

from chaosrunner.probes import Expect, Limits, Overrides, ProbeSpec, Shape, probe_once, run_probe
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Request, RequestHeaders, RequestSent, Row
from tests.http.scripted import Script, serve

QUICK = Limits(connect=1, first_byte=0.4, byte_idle=0.4, token_idle=0.8, total=5, linger=0.3)


def spec_for(url: str, **changes: object) -> ProbeSpec:
    spec = ProbeSpec(name="chat", url=url, limits=QUICK, shapes=(Shape(prompt="hello", max_tokens=8),))
    return replace(spec, **changes)  # type: ignore[arg-type]


class Rows(list[Row]):
    """Emit target that asserts the contract of each request's rows as they come."""

    def emit(self, row: Row) -> None:
        self.append(row)

    @property
    def sent(self) -> list[RequestSent]:
        return [row for row in self if isinstance(row, RequestSent)]

    @property
    def headers(self) -> list[RequestHeaders]:
        return [row for row in self if isinstance(row, RequestHeaders)]

    @property
    def requests(self) -> list[Request]:
        return [row for row in self if isinstance(row, Request)]

    def check(self) -> None:
        """Each request is sent once, ends once, in that order; headers lie between."""
        assert sorted(row.request for row in self.sent) == sorted(row.request for row in self.requests)
        kinds = defaultdict(list)
        for row in self:
            kinds[getattr(row, "request", None)].append(type(row))
        for request in self.requests:
            found = kinds[request.request]
            assert found in ([RequestSent, Request], [RequestSent, RequestHeaders, Request])
            assert (request.status is not None) == (len(found) == 3)


async def until(holds: Callable[[], object]) -> None:
    with anyio.fail_after(30):
        while not holds():  # noqa: ASYNC110 - rows come without an event
            await anyio.sleep(0.005)


async def ask(url: str, **changes: object) -> Request:
    """One request to `url`; its final row."""
    rows = Rows()
    row = await probe_once(spec_for(url, **changes), Overrides(), Expect(), rows.emit, Clock())
    rows.check()
    return row


async def ask_script(script: Script, **changes: object) -> Request:
    async with serve(script) as server:
        return await ask(server.url, **changes)


async def run_until(spec: ProbeSpec, requests: int, rows: Rows, *, drain: float | None = None) -> None:
    """Run a probe until so many requests have ended, then stop and let it finish."""
    stop = anyio.Event()
    ended = 0

    def emit(row: Row) -> None:
        nonlocal ended
        rows.emit(row)
        ended += isinstance(row, Request)
        if ended >= requests:
            stop.set()

    with anyio.fail_after(60):
        await run_probe(spec, emit, Clock(), stop, drain=drain)
    rows.check()
