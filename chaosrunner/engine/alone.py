"""Runs a probe alone: its load, without any cluster, to the same facts as a drill's.

What a drill records of its traffic is recorded here too, if it is to be kept; else the rows go to the live analysis
only, which says the same.
"""

from __future__ import annotations

import platform
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import msgspec
import structlog

from chaosrunner import logs
from chaosrunner.analysis import AnalysisContext, Facts, Live
from chaosrunner.analysis.scope import OF_TRAFFIC
from chaosrunner.engine.describe import package_versions
from chaosrunner.engine.supervise import signals_held
from chaosrunner.errors import UserError
from chaosrunner.journal import process
from chaosrunner.playbook.expressions import Metric, parse, walk
from chaosrunner.probes.descriptors import make_room
from chaosrunner.probes.run import run_probe
from chaosrunner.probes.self_check import Tally, self_check
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.timeline import manifest as manifests
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.redact import Redactor
from chaosrunner.timeline.rows import Emit
from chaosrunner.timeline.writer import Writer

log = structlog.get_logger()

REPORT = "report.json"


@dataclass(frozen=True)
class Alone:
    """What to run, and until when."""

    spec: ProbeSpec
    slo: dict[str, float] = field(default_factory=dict)
    """Limits of a good request, seconds."""
    checks: tuple[str, ...] = ()
    """Expressions on the traffic."""
    duration: float | None = None
    """Seconds of load, after which no request starts; they count from when all workers are up."""
    requests: int | None = None
    """Requests after which none starts. In an open loop those that are due at the same instant still do, and what other
    workers send until they hear of it."""
    drain: float | None = None
    """Seconds for which requests in flight may then go on; to their end where None."""
    playbook: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Files that it came from: name to text."""
    hidden: tuple[str, ...] = ()
    """Credentials, which nobody may read in a recording or a report."""

    def __post_init__(self) -> None:
        for text in self.checks:
            for node in walk(parse(text)):
                if not isinstance(node, Metric):
                    continue
                if node.name not in OF_TRAFFIC:
                    raise UserError(f"check {text}: {node.name} is about a cluster, and a probe alone has none")
                if node.name in ("goodput", "good_share") and not self.slo:
                    raise UserError(f"check {text}: {node.name} needs an SLO: give --slo")

    @property
    def load(self) -> str:
        """The load in words."""
        spec = self.spec
        shared = f", in {spec.workers} processes" if spec.workers > 1 else ""
        if spec.open is None:
            users = "1 user" if spec.concurrency == 1 else f"{spec.concurrency} users"
            return users + (f", pausing {spec.pause:g} s" if spec.pause else "") + shared
        stages = [
            f"{stage.rps:g}{'' if stage.to is None else f' to {stage.to:g}'}/s for {stage.seconds:g} s"
            for stage in spec.open.stages
        ]
        most = f"at most {spec.open.max_in_flight} in flight"
        return f"{', then '.join(stages)}, {spec.open.arrivals} arrivals, {most}{shared}"


@dataclass(frozen=True)
class Ran:
    """What came of it."""

    facts: Facts
    folder: Path | None
    """The recording, where there is one."""


Follow = Callable[[Live], Emit]


async def run_alone(alone: Alone, timelines: Path | None = None, follow: tuple[Follow, ...] = ()) -> Ran:
    """Runs the probe; below `timelines` it leaves a recording, where given.

    SIGINT and SIGTERM end it early: requests in flight are read to their end, with a second signal they are cancelled.
    What each function of `follow` returns gets every row. Raises UserError for bad input.
    """
    logs.hide(alone.hidden)
    with signals_held() as signals:
        return await _Alone(alone, timelines, follow).execute(signals)


class _Alone:
    def __init__(self, alone: Alone, timelines: Path | None, follow: tuple[Follow, ...]) -> None:
        self.alone = alone
        self.clock = Clock()
        # What is wrong with the URL or the CA file, or with the load, is told before anything is written.
        alone.spec.make_client(self.clock)
        make_room(alone.spec.most_in_flight)
        self.manifest = _manifest(alone, self.clock)
        self.live = Live(AnalysisContext.of(self.manifest))
        self.tally = Tally()
        self.listeners: list[Emit] = [self.live.feed, self.tally.feed, *(each(self.live) for each in follow)]
        if alone.requests is not None:
            self.listeners.append(self._count)
        self.begun = anyio.Event()
        """The load begins (or never will)."""
        if alone.spec.workers == 1:
            self.begun.set()
        else:
            self.listeners.append(self._begin)
        self.writer: Writer | None = None
        if timelines is not None:
            folder = timelines / self.manifest.drill / self.manifest.run
            try:
                self.writer = Writer(folder, self.manifest, Redactor(alone.hidden))
            except OSError as error:
                raise UserError(f"{folder}: the recording cannot be written: {error.strerror}") from error
            for listener in self.listeners:
                self.writer.subscribe(listener)
        self.rows = 0
        self.sent = 0
        self.stop = anyio.Event()
        self.reason: str | None = None
        """Why it was ended early."""

    def emit(self, row: rows.Row) -> None:
        if self.writer is not None:
            try:
                self.writer.emit(row)
            except OSError as error:
                self._abort(f"the recording cannot be written: {error.strerror}")
            return
        self.rows += 1
        row.id = self.rows
        for listener in self.listeners:
            listener(row)

    def _count(self, row: rows.Row) -> None:
        if isinstance(row, rows.RequestSent) or (isinstance(row, rows.Request) and row.outcome == "not_sent"):
            self.sent += 1
            if self.sent == self.alone.requests:
                self.stop.set()

    def _begin(self, row: rows.Row) -> None:
        if isinstance(row, rows.Worker):
            self.begun.set()

    def _abort(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            self.stop.set()
            self.begun.set()
            self.emit(rows.Run(at=self.clock.now(), event="aborting", reason=reason))

    async def execute(self, signals: AsyncIterator[signal.Signals]) -> Ran:
        self.emit(rows.Run(at=self.clock.now(), event="started"))
        async with anyio.create_task_group() as background:
            background.start_soon(self._sample_clock)
            background.start_soon(lambda: self_check(self.emit, self.clock, tally=self.tally))
            background.start_soon(self._end)
            with anyio.CancelScope() as scope:
                background.start_soon(self._obey, signals, scope)
                await run_probe(self.alone.spec, self.emit, self.clock, self.stop, drain=self.alone.drain)
            background.cancel_scope.cancel()
        self.emit(rows.Run(at=self.clock.now(), event="ended", reason=self.reason))
        return self._close()

    async def _end(self) -> None:
        await self.begun.wait()
        if self.alone.duration is not None:
            with anyio.move_on_after(self.alone.duration):
                await self.stop.wait()
            self.stop.set()
        await self.stop.wait()
        self.emit(rows.Run(at=self.clock.now(), event="draining"))

    async def _obey(self, signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
        async for number in signals:
            if self.reason is None:
                self._abort(f"signal {number.name}")
            else:
                scope.cancel()

    async def _sample_clock(self) -> None:
        while True:
            at, wall = self.clock.sample()
            self.emit(rows.Clock(at=at, wall=wall))
            await anyio.sleep(1.0)

    def _close(self) -> Ran:
        facts = self.live.facts()
        if self.writer is None:
            return Ran(facts, None)
        manifest = self.writer.manifest
        manifest.ended, manifest.verdict, manifest.exit_code = self.clock.now(), facts.verdict, facts.exit_code
        try:
            (self.writer.folder / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")
            self.writer.close()
        except OSError as error:
            log.error("the recording is not complete", folder=str(self.writer.folder), error=error.strerror)
        return Ran(facts, self.writer.folder)


def _manifest(alone: Alone, clock: Clock) -> manifests.Manifest:
    spec, owner = alone.spec, process.current()
    return manifests.Manifest(
        run=f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        drill="probe" if spec.name == "probe" else f"probe-{spec.name}",
        playbook=alone.playbook,
        anchor=clock.anchor_wall,
        versions=package_versions(),
        host=manifests.Host(hostname=owner.host, pid=owner.pid, started=owner.started, platform=platform.platform()),
        url=spec.url,
        load=alone.load,
        workload=manifests.Workload(namespace="", selector=""),
        parameters=alone.parameters | _settings(spec),
        probes=[
            manifests.Probe(
                name=spec.name,
                dialect=spec.dialect,
                stream=spec.streams,
                shapes=[shape.name for shape in spec.shapes],
                slo=alone.slo,
                concurrency=spec.concurrency,
                workers=spec.workers,
                pod_header=spec.pod_header,
            )
        ],
        checks=[manifests.Check(expression=text) for text in alone.checks],
        sources=alone.sources,
    )


def _settings(spec: ProbeSpec) -> dict[str, Any]:
    """What was asked of the service, for those who compare two recordings."""
    longest = sorted({shape.max_tokens for shape in spec.shapes if shape.max_tokens is not None})
    found: dict[str, Any] = {
        "dialect": spec.dialect,
        "model": spec.model,
        "path": spec.path,
        "max_tokens": longest[0] if len(longest) == 1 else longest or None,
        "fixed_length": spec.fixed_length or None,
        "connection": spec.connection,
        "workers": spec.workers,
        "seed": spec.seed,
    }
    return {name: value for name, value in found.items() if value is not None}
