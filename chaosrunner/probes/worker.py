"""One of several processes of a probe: `python -m chaosrunner.probes.worker`, started by `run_workers` alone.

Its standard input is a socket to its parent, over which go orders, rows and secrets (see `wire`). Signals that reach
all processes of a terminal or a service do nothing here: whether to stop is the parent's business. When the parent is
gone, so is the worker, at once: there is nobody to whom it could tell what it sees.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import traceback
from typing import NoReturn

import anyio

from chaosrunner.errors import UserError
from chaosrunner.probes import wire
from chaosrunner.probes.outbox import Outbox
from chaosrunner.probes.replicas import Replicas
from chaosrunner.probes.run import run_part
from chaosrunner.probes.self_check import Tally, self_check
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Prober, Row


async def _work(channel: socket.socket) -> None:
    outbox = Outbox(channel.dup(), _orphaned)
    reader, _ = await asyncio.open_unix_connection(sock=channel)
    try:
        await _probe(reader, outbox)
    except Exception as error:
        first: Exception = error
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        if isinstance(first, UserError):
            outbox.tell(wire.Refused(str(first)))
        else:
            outbox.tell(wire.Failed("".join(traceback.format_exception(error))))
    else:
        outbox.tell(wire.Done())
    outbox.finish()


async def _probe(reader: asyncio.StreamReader, outbox: Outbox) -> None:
    start = await _order(reader)
    assert isinstance(start, wire.Start)
    spec, part, clock = start.spec, start.part, Clock.anchored(start.anchor)
    spec.make_client(clock)  # what is wrong with the URL or the CA file is told before any worker begins
    outbox.tell(wire.Ready())
    begin = await _order(reader)
    assert isinstance(begin, wire.Begin)
    stop = anyio.Event()
    tally = Tally()
    replicas = Replicas()

    def emit(row: Row) -> None:
        tally.feed(row)
        outbox.emit(row)

    def emit_own(row: Row) -> None:
        assert isinstance(row, Prober)
        row.probe, row.worker = spec.name, part.index + 1
        outbox.emit(row)

    async def obey() -> None:
        while True:
            match await _order(reader):
                case wire.Aim(known):
                    replicas.set(known)
                case wire.Stop():
                    stop.set()
                case wire.Cancel():
                    scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: self_check(emit_own, clock, tally=tally, queue=lambda: outbox.waiting))
        with anyio.CancelScope() as scope:
            group.start_soon(obey)
            await run_part(spec, emit, clock, stop, part=part, begin=begin.at, drain=start.drain, replicas=replicas)
        group.cancel_scope.cancel()


async def _order(reader: asyncio.StreamReader) -> wire.Order:
    frame = await wire.next_frame(reader)
    return _orphaned() if frame is None else wire.read_order(frame)


def _orphaned() -> NoReturn:
    os._exit(1)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    anyio.run(_work, socket.socket(fileno=0))


if __name__ == "__main__":
    main()
