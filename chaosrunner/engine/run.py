"""One run of a drill, from the plan to the verdict.

    plan -> lease -> recording, journal -> observers -> probes -> steps -> undo -> drain of requests -> analysis

Whatever ends the steps (their own end, a failed step, an abort, a bug), undo, drain and analysis follow, in this order.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel
import msgspec
import structlog

from chaosrunner.analysis import AnalysisContext, Facts, Live, analyse
from chaosrunner.cluster import Cluster, ClusterConfig, connect
from chaosrunner.cluster.lease import Lease
from chaosrunner.engine.answers import answered
from chaosrunner.engine.conditions import Conditions
from chaosrunner.engine.describe import manifest_of
from chaosrunner.engine.guarding import Guarded
from chaosrunner.engine.prepare import Confirm, NameCluster, Prepared, prepared
from chaosrunner.engine.prepare import lock as lock_target
from chaosrunner.engine.replicas import Follower
from chaosrunner.engine.steps import Stage
from chaosrunner.engine.supervise import Supervisor, signals_held
from chaosrunner.errors import Refused, UserError
from chaosrunner.faults.base import PATIENCE, Context
from chaosrunner.journal import lock
from chaosrunner.journal.guardian import Watch
from chaosrunner.journal.journal import NAME as JOURNAL
from chaosrunner.journal.journal import Connection, Journal
from chaosrunner.journal.undo import command, mark, undo_all
from chaosrunner.observers import AlertScope, LastLook, ObserveScope, observe
from chaosrunner.plan.aim import Means
from chaosrunner.plan.limits import Guard
from chaosrunner.plan.plan import Plan
from chaosrunner.playbook import BoundDrill
from chaosrunner.playbook.expressions import Expression
from chaosrunner.probes.replicas import Replicas
from chaosrunner.probes.run import run_probe
from chaosrunner.probes.self_check import Tally, self_check
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.reader import Recording
from chaosrunner.timeline.rows import Emit
from chaosrunner.timeline.writer import Writer

log = structlog.get_logger()

REPORT = "report.json"

OBSERVERS_LIMIT = 30.0
"""Longest wait for the first lists of all observers, seconds."""

UNDO_PATIENCE = 60.0
"""How long the undo waits at least for a cluster that is away or not up to it, seconds."""

LAST_LOOK_LIMIT = 5.0
"""How long the run waits for the observers' last look, seconds; what is not confirmed then is a gap to the end."""

VERIFY_LIMIT = 15.0
"""Longest look at whether faults that were undone are gone, seconds."""

UNDO_LIMIT = 120.0
"""Longest undo of a run that is aborted at its deadline, seconds; what is then left is for `recover`."""

HURRY = 5.0
"""Seconds that a second signal leaves to an undo that is under way."""


@dataclass(frozen=True)
class Options:
    """What a run takes from its caller, beside the drill."""

    timelines: Path
    lab: str | None = None
    """Which lab stands in for the environment, `embedded` or `real`; only recorded."""
    stop_file: Path | None = None
    """The run is aborted when this file appears; `<recording>/stop` always does it too."""
    signals: bool = True
    """Whether SIGINT and SIGTERM abort the run; false where somebody else handles them."""
    confirm: Confirm | None = None
    """Called with the plan before anything is changed; raises Refused to stop."""
    name_cluster: NameCluster | None = None
    """Called with the plan of a production drill, for the cluster's name."""
    follow: Callable[[Path, Live], Emit] | None = None
    """Called when the run begins; what it returns gets every row."""
    measure: Callable[[Live], Emit] | None = None
    """The same, for live metrics."""
    finish: Callable[[Path], None] | None = None
    """Called with the recording's folder before it is closed, to add files to it."""


@dataclass(frozen=True)
class Finished:
    """A run that came to its end, with whatever verdict."""

    folder: Path
    facts: Facts


class _Relay:
    """Rows that come before there is a recording wait for it."""

    def __init__(self) -> None:
        self._waiting: list[rows.Row] = []
        self._emit: Emit | None = None

    def emit(self, row: rows.Row) -> None:
        if self._emit is None:
            self._waiting.append(row)
        else:
            self._emit(row)

    def attach(self, emit: Emit | None) -> None:
        """From now on rows go to `emit`; to nowhere if it is None."""
        self._emit = emit or (lambda row: None)
        for row in self._waiting:
            self._emit(row)
        self._waiting.clear()


async def run_drill(bound: BoundDrill, config: ClusterConfig, options: Options) -> Finished:
    """Runs the drill.

    Raises Refused when nothing was changed because the plan, the lease or the cluster said no, UserError for bad
    input; everything later ends in a verdict.
    """
    clock = Clock()
    relay = _Relay()
    run = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    with ExitStack() as held:  # the last to be left: no signal cuts off the analysis, or the release of the Lease
        async with connect(config, clock, relay.emit) as cluster:
            guard = partial(_guarded, run, bound, options)
            async with prepared(run, bound, cluster, clock, options.confirm, options.name_cluster, guard) as ready:
                signals = held.enter_context(signals_held()) if options.signals else None
                return await _Run(ready, relay, options, signals).execute()


def _connection(cluster: Cluster, plan: Plan) -> Connection:
    """How whoever undoes it reaches the cluster again."""
    config = cluster.config
    return Connection(
        kubeconfig=config.kubeconfig,
        context=config.context or (None if cluster.context == "in-cluster" else cluster.context),
        server=cluster.server,
        namespace=plan.workload.namespace,
        as_user=config.as_user,
        as_group=config.as_groups,
    )


def _guarded(run: str, bound: BoundDrill, options: Options, cluster: Cluster, plan: Plan, lease: Lease) -> Guarded:
    """Starts the run's guardian. Raises OSError."""
    folder = options.timelines / bound.drill.metadata.name / run
    return Guarded(
        Watch(
            pid=os.getpid(),
            journal=str((folder / JOURNAL).absolute()),
            run=run,
            deadline=bound.drill.limits.deadline,
            undo=options.lab != "embedded",
            stays=options.lab is None,
            connection=msgspec.to_builtins(_connection(cluster, plan)),
            request_timeout=cluster.config.request_timeout,
            lease=lease.name,
        )
    )


class _Run:
    def __init__(
        self, ready: Prepared, relay: _Relay, options: Options, signals: AsyncIterator[signal.Signals] | None
    ) -> None:
        self.ready = ready
        self.bound = ready.bound
        self.cluster = ready.cluster
        self.plan = ready.plan
        self.lease = ready.lease
        self.clock = ready.clock
        self.relay = relay
        self.options = options
        self.signals = signals
        self.folder = options.timelines / ready.bound.drill.metadata.name / ready.run
        manifest = manifest_of(ready, options.lab)
        self.live = Live(AnalysisContext.of(manifest))
        self.conditions = Conditions(self.live, self.clock)
        self.supervisor = Supervisor(self._aborting)
        self.lost = False
        """Whether the recording could not be written as a whole."""
        self.bug: Exception | None = None
        self.stage: Stage | None = None
        self.observed = anyio.Event()
        self.last_look = LastLook()
        self.stop = anyio.Event()
        """No request starts after this."""
        self.tally = Tally()
        self.replicas = Replicas()
        self.starting = {name: anyio.Event() for name, spec in ready.specs.items() if spec.workers > 1}
        """Probes whose processes are not up yet."""
        self.probes_done: list[anyio.Event] = []
        drill = ready.bound.drill.metadata.name
        try:
            self.writer = Writer(self.folder, manifest, ready.redactor)
            self.journal = Journal(
                self.folder / JOURNAL,
                run=ready.run,
                drill=drill,
                connection=_connection(self.cluster, self.plan),
                clock=self.clock,
                emit=self.emit,
            )
            self.lock = lock.take(self.folder / JOURNAL)
            """Nobody else undoes what this run changed, until it ends or dies."""
        except OSError as error:
            raise Refused(f"{self.folder}: the recording cannot be written: {error.strerror}") from error
        self.deadline = anyio.current_time() + ready.bound.drill.limits.deadline
        self.guarded = ready.guarded
        self.context = Context(
            cluster=ready.cluster,
            journal=self.journal,
            emit=self.emit,
            run=ready.run,
            drill=drill,
            patience=PATIENCE,
            answered=lambda uid, since: answered(self.live, uid, since),
        )

    # --- the recording ----------------------------------------------------------------------------------

    def emit(self, row: rows.Row) -> None:
        """Puts a row on the timeline. A recording that can no longer be written aborts the run."""
        try:
            self.writer.emit(row)
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.lost = True
        self.supervisor.abort(f"the recording cannot be written: {error.strerror}", late=True)

    def _hear_of_worker(self, row: rows.Row) -> None:
        """A probe begins when all its processes do; one that lost a part of itself no longer sends what was asked."""
        if not isinstance(row, rows.Worker):
            return
        if row.event == "died":
            self.supervisor.abort(f"probe {row.probe}: {row.reason}")
        elif row.event == "began" and row.probe in self.starting:
            self.starting.pop(row.probe).set()

    def _listen(self, name: str, listener: Emit, failing: Callable[[str, Exception], None]) -> None:
        """Hands rows to `listener` until it fails: who emits a row, or undoes a change, has no part in that."""
        failed = False

        def hear(row: rows.Row) -> None:
            nonlocal failed
            if failed:
                return
            try:
                listener(row)
            except Exception as error:
                failed = True
                failing(name, error)

        self.writer.subscribe(hear)

    def _aborting(self, reason: str) -> None:
        self.emit(rows.Run(at=self.clock.now(), event="aborting", reason=reason))

    # --- the run ----------------------------------------------------------------------------------------

    async def execute(self) -> Finished:
        """Raises Refused, and leaves no recording, where the target is locked by somebody else."""
        try:
            await lock_target(self.lease)  # with a recording by then that names the holder, should it die
        except BaseException:
            self._discard()
            raise
        self._listen("live analysis", self.live.feed, self._failed)
        self._listen("conditions", self.conditions.feed, self._failed)
        if self.options.follow:
            # Whoever looks on may go away (a closed terminal): the drill does not depend on it.
            self._listen("display", self.options.follow(self.folder, self.live), _gone)
        if self.options.measure:
            self._listen("metrics", self.options.measure(self.live), _gone)
        self._listen("workers", self._hear_of_worker, self._failed)
        if any(spec.replicas for spec in self.ready.specs.values()):
            way, context = self.bound.drill.endpoint.replicas, self.live.context
            follower = Follower(context.selector, context.service, way, self.replicas.set)
            self._listen("replicas", follower.feed, self._failed)
        self.emit(rows.Run(at=self.clock.now(), event="started"))
        self.relay.attach(self.emit)
        log.info("run", id=self.ready.run, folder=str(self.folder))
        try:
            async with anyio.create_task_group() as background:
                try:
                    self._watch(background)
                    await self._guarded("steps", partial(self._steps, background))
                finally:  # also where somebody cancels the run from outside
                    self.supervisor.close()
                    with anyio.CancelScope(shield=True):
                        self.guarded.ending()
                        await self._undo()
                        self.guarded.undone()
                        self.emit(rows.Run(at=self.clock.now(), event="draining"))
                        await self._drain()
                        await self._look()
                    background.cancel_scope.cancel()
        finally:
            self.journal.close()
            os.close(self.lock)
        self.emit(rows.Run(at=self.clock.now(), event="ended", reason=self.supervisor.reason))
        self.relay.attach(None)
        facts = self._close()
        if self.bug is not None:
            raise self.bug
        return Finished(self.folder, facts or self.live.facts())

    def _discard(self) -> None:
        """Nothing has begun: there is nothing to tell."""
        self.journal.close()
        os.close(self.lock)
        self.writer.discard()
        for folder in (self.folder.parent, self.options.timelines):
            with suppress(OSError):  # others are there
                folder.rmdir()

    async def _guarded(self, name: str, task: Callable[[], Awaitable[None]]) -> None:
        """Runs a part of the run. One that fails aborts the run, which is still undone, drained and analysed."""
        try:
            await task()
        except Exception as error:
            self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        """Aborts the run for an exception: the user's error, or a bug, which is raised when all else is done."""
        if isinstance(error, UserError):
            self.supervisor.abort(f"{name}: {error}", late=True)
            return
        log.error("bug", part=name, exc_info=error)
        self.bug = self.bug or error
        self.supervisor.abort(f"a bug in chaosrunner: {name}: {error!r}", late=True)

    def _watch(self, background: anyio.abc.TaskGroup) -> None:
        """Starts all that goes on beside the steps; observers first, so that what the probes cause is seen."""
        supervisor = self.supervisor
        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "observers": self._observe,
            "deadline": partial(supervisor.watch_deadline, self.bound.drill.limits.deadline),
            "stop file": partial(supervisor.watch_stop_file, self.folder / "stop"),
            "lease": self._keep_lease,
            "clock": self._sample_clock,
            "self check": partial(self_check, self.emit, self.clock, tally=self.tally),
            "sign of life": self.guarded.beat,
        }
        if self.signals is not None:
            tasks["signals"] = partial(supervisor.watch_signals, self.signals)
        if self.options.stop_file:
            tasks["stop file of the caller"] = partial(supervisor.watch_stop_file, self.options.stop_file)
        for name, task in tasks.items():
            background.start_soon(self._guarded, name, task)

    async def _steps(self, background: anyio.abc.TaskGroup) -> None:
        self.stage = stage = Stage(
            steps=self.bound.playbook.steps,
            plan=self.plan,
            live=self.live,
            conditions=self.conditions,
            context=self.context,
            probes=self.ready.specs,
            lease=self.lease,
            guard=Guard(self.bound.drill.limits, self.plan.workload.namespace, self.plan.size, self.plan.runner),
            means=Means(self.bound.drill, self.plan.workload),
            clock=self.clock,
            emit=self.emit,
            abort=self.supervisor.abort,
            random=Random(self.ready.run),
        )
        abort = self.bound.playbook.abort
        with self.supervisor.steps:
            with anyio.move_on_after(OBSERVERS_LIMIT):
                await self.observed.wait()
            if not self.observed.is_set():
                self.supervisor.abort(f"the first lists did not come within {OBSERVERS_LIMIT:g} s")
            await self.guarded.watched()
            await anyio.lowlevel.checkpoint()  # an abort so far ends the steps here, before any traffic
            for spec in self.ready.specs.values():
                done = anyio.Event()
                self.probes_done.append(done)
                background.start_soon(self._probe, spec, done)
            for begun in list(self.starting.values()):  # no step's time counts before there is traffic
                await begun.wait()
            async with anyio.create_task_group() as group:
                if abort is not None:
                    group.start_soon(self._abort_when, abort, stage.baseline_done)
                await stage.run()
                group.cancel_scope.cancel()

    async def _abort_when(self, expression: Expression, baseline: anyio.Event) -> None:
        await baseline.wait()
        while not self.conditions.holds(expression):
            await self.conditions.news()
        self.supervisor.abort(f"abort condition of the playbook: {expression}")

    async def _undo(self) -> None:
        """Puts back whatever the faults changed; each entry of the journal is tried.

        A cluster that is away is asked again until the drill's deadline, and `UNDO_PATIENCE` at least. A second signal
        ends the wait: each entry was tried by then, or is within `HURRY`.
        """
        patience = max(UNDO_PATIENCE, self.deadline - anyio.current_time())
        limit, why = patience + UNDO_LIMIT - UNDO_PATIENCE, ""

        async def undo() -> None:
            for undone in await undo_all(self.cluster, self.journal, self.emit, patience=patience):
                if not undone.ok:
                    log.error("undo failed", target=undone.target.name, detail=undone.detail, command=undone.command)

        async def hurry(scope: anyio.CancelScope) -> None:
            nonlocal why
            await self.supervisor.hurry.wait()
            await anyio.sleep(HURRY)
            why = "a second signal came before it could be undone"
            scope.cancel()

        with anyio.move_on_after(limit):
            async with anyio.create_task_group() as group:
                group.start_soon(hurry, group.cancel_scope)
                await self._guarded("undo", undo)
                group.cancel_scope.cancel()
        if self.stage is not None:
            with anyio.move_on_after(VERIFY_LIMIT):
                await self._guarded("look at what was undone", self.stage.verify_undone)
        for entry in self.journal.open():
            if self.journal.state(entry) != "undo_failed":
                detail = why or f"not undone within {limit:.0f} s"
                log.error("undo failed", target=entry.target.name, detail=detail, command=command(entry))
                await mark(self.journal, entry, "undo_failed", detail)

    def _counted(self, row: rows.Row) -> None:
        """As `emit`, for rows of what this process sends."""
        self.tally.feed(row)
        self.emit(row)

    async def _probe(self, spec: ProbeSpec, done: anyio.Event) -> None:
        run = partial(run_probe, spec, self._counted, self.clock, self.stop, replicas=self.replicas)
        try:
            await self._guarded(f"probe {spec.name}", run)
            if not self.stop.is_set():
                self.supervisor.abort(f"probe {spec.name} ended by itself")
        finally:
            done.set()

    async def _observe(self) -> None:
        async with AsyncExitStack() as stack:
            if self.ready.fetcher is not None:
                await stack.enter_async_context(self.ready.fetcher)
            await observe(self.cluster, self._scope(), self.emit, ready=self.observed, last_look=self.last_look)

    async def _drain(self) -> None:
        """Lets requests in flight end. A second signal does not wait for them."""
        self.stop.set()
        async with anyio.create_task_group() as group:
            group.start_soon(self._until_hurry, group.cancel_scope)
            for done in self.probes_done:
                await done.wait()
            group.cancel_scope.cancel()

    async def _look(self) -> None:
        """Makes sure that what the watches had to tell has come. A second signal does not wait for it."""
        if not self.observed.is_set():
            return
        self.last_look.wanted.set()
        with anyio.move_on_after(LAST_LOOK_LIMIT):
            async with anyio.create_task_group() as group:
                group.start_soon(self._until_hurry, group.cancel_scope)
                await self.last_look.done.wait()
                group.cancel_scope.cancel()

    async def _until_hurry(self, scope: anyio.CancelScope) -> None:
        await self.supervisor.hurry.wait()
        scope.cancel()

    async def _keep_lease(self) -> None:
        await self.lease.keep()
        taken = self.lease.taken_by
        self.supervisor.abort(f"lease lost: held by {taken.holder if taken else 'somebody else'}")

    async def _sample_clock(self) -> None:
        while True:
            at, wall = self.clock.sample()
            self.emit(rows.Clock(at=at, wall=wall))
            await anyio.sleep(1.0)

    def _scope(self) -> ObserveScope:
        prometheus = self.bound.drill.prometheus
        alerts = None
        if prometheus is not None and self.ready.fetcher is not None:
            alerts = AlertScope(
                fetch=self.ready.fetcher.get, interval=prometheus.interval, rules=prometheus.rules, up=True
            )
        workload = self.plan.workload
        return ObserveScope(
            namespace=workload.namespace,
            selector=workload.selector,
            service=workload.service,
            controller=workload.controller.partition("/")[2] if workload.controller else None,
            alerts=alerts,
        )

    def _close(self) -> Facts | None:
        """Ends the recording. The facts as it tells them; None where it does not hold all that was seen."""
        facts: Facts | None = None
        try:
            if not self.lost:
                facts = self._report()
        except OSError as error:
            self._lose(error)
        except Exception as error:
            self._failed("analysis", error)
        self.writer.manifest.ended = self.clock.now()
        try:
            self.writer.close()
        except OSError as error:
            self._lose(error)
        return None if self.lost else facts

    def _report(self) -> Facts:
        if self.options.finish:
            self.options.finish(self.folder)
        recording = Recording.open(self.folder)
        facts = analyse(recording, AnalysisContext.of(recording.manifest))
        (self.folder / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")
        self.writer.manifest.verdict = facts.verdict
        self.writer.manifest.exit_code = facts.exit_code
        return facts


def _gone(name: str, error: Exception) -> None:
    log.warning("no longer followed", listener=name, error=repr(error))
