"""A probe in several processes, for more streams than one core can read; all report to the one that called.

Which requests each process sends, `part` tells; what is said between them, `wire`. Nothing is shared but the machine's
monotonic clock, so each process is as exact as it would be alone, and its rows need only be put together.

A worker that dies (out of memory, a signal) takes requests with it that the service may have answered well. They get
final rows as `prober_fault`, a `Worker` row says what happened, and the other workers go on, so that what was begun is
seen to its end. What then becomes of the run is for the caller to say: the load is no longer what was asked for.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from typing import Literal

import anyio
import anyio.to_thread

from chaosrunner.errors import UserError
from chaosrunner.probes import wire
from chaosrunner.probes.maker import RequestMaker
from chaosrunner.probes.part import Part
from chaosrunner.probes.replicas import Replica, Replicas
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Emit, Request, RequestHeaders, RequestSent, Row, Worker

LEAD = 0.02
"""Seconds between the order to begin and the beginning, so that the order is there before it."""
PATIENCE = 5.0
"""Seconds that workers have, once cancelled, for the final rows of their requests; then they are killed."""


async def run_workers(
    spec: ProbeSpec,
    emit: Emit,
    clock: Clock,
    stop: anyio.Event,
    *,
    drain: float | None = None,
    replicas: Replicas | None = None,
) -> None:
    """As `run_probe`, in `spec.workers` processes. No process is left behind."""
    await _Team(spec, emit, clock, stop, drain, replicas or Replicas()).run()


class _Team:
    def __init__(
        self,
        spec: ProbeSpec,
        emit: Emit,
        clock: Clock,
        stop: anyio.Event,
        drain: float | None,
        replicas: Replicas,
    ) -> None:
        self._spec = spec
        self._emit = emit
        self._clock = clock
        self._stop = stop
        self._drain = drain
        self._replicas = replicas
        self._begun = anyio.Event()
        self._workers: list[_Process] = []
        self._ready = 0
        self._error: Exception | None = None
        self._following = anyio.CancelScope(shield=True)

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                for index in range(self._spec.workers):
                    self._workers.append(await _Process.start(Part(index, self._spec.workers)))
                group.start_soon(self._pass_replicas_on)
                group.start_soon(self._pass_stop_on)
                group.start_soon(self._pass_cancellation_on)
                with self._following:
                    async with anyio.create_task_group() as following:
                        for worker in self._workers:
                            following.start_soon(self._follow, worker)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                for worker in self._workers:
                    await worker.close()
                    self._write_off(worker, f"{self._name(worker)} did not end in time")
        if self._error is not None:
            raise self._error

    # --- orders -------------------------------------------------------------------------------------------

    async def _pass_replicas_on(self) -> None:
        await self._begun.wait()
        known: tuple[Replica, ...] = ()
        while True:
            known = await self._replicas.other_than(known)
            for worker in self._workers:
                worker.tell(wire.Aim(known))

    async def _pass_stop_on(self) -> None:
        await self._stop.wait()
        if not self._begun.is_set():
            self._following.cancel()
        for worker in self._workers:
            worker.tell(wire.Stop())

    async def _pass_cancellation_on(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self._cancel()

    def _begin(self) -> None:
        self._begun.set()
        at = self._clock.now() + LEAD
        for worker in self._workers:
            worker.tell(wire.Begin(at))
            self._tell_of(worker, "began")

    def _cancel(self) -> None:
        """End the workers, with the rows of what they have in flight."""
        for worker in self._workers:
            worker.tell(wire.Cancel())
        self._following.deadline = anyio.current_time() + (PATIENCE if self._begun.is_set() else 0)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._cancel()

    # --- reports ------------------------------------------------------------------------------------------

    async def _follow(self, worker: _Process) -> None:
        """Everything that a worker says, up to its end."""
        worker.tell(wire.Start(self._spec, worker.part, self._clock.anchor, self._drain))
        while (frame := await wire.next_frame(worker.reader)) is not None:
            match wire.read_report(frame):
                case wire.Rows(rows):
                    for row in rows:
                        worker.note(row)
                        self._emit(row)
                case wire.Ready():
                    self._ready += 1
                    if self._ready == len(self._workers):
                        self._begin()
                case wire.Done():
                    self._tell_of(worker, "ended")
                    return
                case wire.Refused(text):
                    self._fail(UserError(text))
                    return
                case wire.Failed(text):
                    self._fail(RuntimeError(f"{self._name(worker)}: {text}"))
                    self._write_off(worker, f"{self._name(worker)} failed")
                    return
        died = f"{self._name(worker)} {await worker.death()}"
        if not self._begun.is_set():
            self._fail(UserError(f"probe {self._spec.name}: {died} before it could begin"))
            return
        self._tell_of(worker, "died", died)
        self._write_off(worker, died)

    def _name(self, worker: _Process) -> str:
        return f"worker {worker.part.index + 1} of {worker.part.of}"

    def _tell_of(self, worker: _Process, event: Literal["began", "ended", "died"], reason: str | None = None) -> None:
        part = worker.part
        self._emit(
            Worker(
                at=self._clock.now(),
                probe=self._spec.name,
                worker=part.index + 1,
                of=part.of,
                event=event,
                pid=worker.pid,
                reason=reason,
            )
        )

    def _write_off(self, worker: _Process, why: str) -> None:
        """The final rows of requests whose worker can no longer tell what became of them."""
        maker = RequestMaker(self._spec)
        for sent, headers in worker.take_in_flight():
            planned = maker.make(int(sent.request.rpartition("-")[2]), request_id=sent.request)
            row = Request(
                at=self._clock.now(),
                request=sent.request,
                probe=sent.probe,
                outcome=Outcome.PROBER_FAULT,
                sent=sent.at,
                shape=sent.shape,
                replica=sent.replica,
                scheduled=sent.scheduled,
                cancel_planned=planned.cancel_after is not None,
                expected_tokens=planned.expected_tokens,
                error=why,
            )
            if headers is not None:
                row.headers, row.status = headers.at, headers.status
                row.pod, row.remote = headers.pod, headers.remote
            self._emit(row)


class _Process:
    """A worker as its parent sees it."""

    def __init__(
        self, part: Part, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.part = part
        self.pid = process.pid
        self.reader = reader
        self._process = process
        self._writer = writer
        self._in_flight: dict[str, tuple[RequestSent, RequestHeaders | None]] = {}

    @classmethod
    async def start(cls, part: Part) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = _spawn(theirs)
            except BaseException:
                ours.close()
                raise
        return cls(part, process, *await asyncio.open_unix_connection(sock=ours))

    def tell(self, order: wire.Order) -> None:
        """Give an order; to one that has ended it is given in vain."""
        if not self._writer.is_closing():
            self._writer.write(wire.framed(order))

    def note(self, row: Row) -> None:
        """Keep what its final row would need, of each request in flight."""
        match row:
            case RequestSent():
                self._in_flight[row.request] = row, None
            case RequestHeaders():
                self._in_flight[row.request] = self._in_flight[row.request][0], row
            case Request():
                self._in_flight.pop(row.request, None)

    def take_in_flight(self) -> list[tuple[RequestSent, RequestHeaders | None]]:
        taken, self._in_flight = list(self._in_flight.values()), {}
        return taken

    async def death(self) -> str:
        """How it ended, whose connection has ended unasked."""
        code = await anyio.to_thread.run_sync(self._wait)
        if code < 0:
            return f"was killed by signal {-code} ({signal.strsignal(-code)})"
        return f"ended with exit code {code}"

    async def close(self) -> None:
        self._process.kill()
        await anyio.to_thread.run_sync(self._process.wait)
        self._writer.close()

    def _wait(self) -> int:
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _spawn(channel: socket.socket) -> subprocess.Popen[bytes]:
    # Not by asyncio, which warns of processes that end just when they are killed. In a session of its own: Ctrl-C is
    # for the run, which still needs its workers to end requests.
    command = [sys.executable, "-m", "chaosrunner.probes.worker"]
    return subprocess.Popen(command, stdin=channel.fileno(), stdout=subprocess.DEVNULL, start_new_session=True)
