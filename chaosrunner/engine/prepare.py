"""Everything that comes before the first row: the plan, the credentials, the lock. Nothing but the lock is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import anyio
import structlog

from chaosrunner import logs
from chaosrunner.cluster import ApiError, Cluster, Unreachable
from chaosrunner.cluster.lease import Lease, name_for
from chaosrunner.engine import traffic
from chaosrunner.engine.credentials import credentials
from chaosrunner.engine.guarding import Guarded
from chaosrunner.errors import Locked, Refused
from chaosrunner.http.fetch import JsonFetcher
from chaosrunner.plan.plan import Plan, make_plan
from chaosrunner.playbook import BoundDrill
from chaosrunner.playbook.endpoint import resolve_headers
from chaosrunner.probes.descriptors import make_room
from chaosrunner.probes.spec import ProbeSpec
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.redact import Redactor

log = structlog.get_logger()

Confirm = Callable[[Plan], Awaitable[None]]
"""Called with the plan before anything is changed; raises Refused to stop."""

Guard = Callable[[Cluster, Plan, Lease], Guarded]
"""Starts a run's guardian. Raises OSError."""

NameCluster = Callable[[Plan], Awaitable[str]]
"""Called with the plan of a production drill; what it returns must be the cluster's name. Raises Refused to stop."""


@dataclass(frozen=True)
class Prepared:
    """A run that may begin."""

    run: str
    """Its id."""
    bound: BoundDrill
    cluster: Cluster
    clock: Clock
    plan: Plan
    specs: dict[str, ProbeSpec]
    """By the probe's name."""
    fetcher: JsonFetcher | None
    """Asks Prometheus, where the drill names one."""
    lease: Lease
    guarded: Guarded
    server_version: dict[str, str]
    redactor: Redactor


@asynccontextmanager
async def prepared(
    run: str,
    bound: BoundDrill,
    cluster: Cluster,
    clock: Clock,
    confirm: Confirm | None,
    name_cluster: NameCluster | None,
    guard: Guard,
) -> AsyncIterator[Prepared]:
    """Plans, asks, and starts a guardian; the Lease on the target, which `lock` takes, is released after the block.

    Raises Refused when the plan, the lease or the cluster says no, UserError for bad input.
    """
    with _reachable():
        plan = await make_plan(bound, cluster)
        server_version = await _server_version(cluster)
        if confirm:
            await confirm(plan)
        if plan.refused:
            reasons = [f"  {problem.text}" for problem in plan.problems if problem.severity == "refuse"]
            raise Refused("\n".join(["the plan was refused:", *reasons]))
        if bound.drill.production:
            await _named(plan, name_cluster)
        specs = {probe.name: traffic.spec_of(probe, bound.drill.endpoint, seed=run) for probe in bound.playbook.probes}
        # Replacements come before those are gone whom they replace.
        most = 2 * max(plan.size, plan.workload.replicas or 0)
        make_room(sum(spec.most_in_flight * (most if spec.replicas else 1) for spec in specs.values()))
        fetcher, headers = _prometheus(bound, clock)
        hidden = credentials(bound.drill, specs.values(), headers)
        logs.hide(hidden)
        lease = _lease(cluster, plan, run)
        guarded = _guarded(guard, cluster, plan, lease)
    try:
        yield Prepared(
            run=run,
            bound=bound,
            cluster=cluster,
            clock=clock,
            plan=plan,
            specs=specs,
            fetcher=fetcher,
            lease=lease,
            guarded=guarded,
            server_version=server_version,
            redactor=Redactor(hidden),
        )
    finally:
        with anyio.CancelScope(shield=True):
            await lease.release()
            await guarded.end()  # the last: until here a run that dies is put back, and its Lease freed


async def _named(plan: Plan, name_cluster: NameCluster | None) -> None:
    """Raises Refused where nobody says on which cluster a production drill runs, or says another."""
    if name_cluster is None:
        raise Refused("this is a production drill, and nobody named its cluster; nothing was changed")
    said = await name_cluster(plan)
    if said != plan.cluster:
        raise Refused(f"this is a production drill on cluster {plan.cluster}, not on {said}; nothing was changed")


@contextmanager
def _reachable() -> Iterator[None]:
    """Before anything was changed, a cluster that cannot be reached refuses the run."""
    try:
        yield
    except Unreachable as error:
        raise Refused(f"the cluster cannot be reached: {error}") from error


def _prometheus(bound: BoundDrill, clock: Clock) -> tuple[JsonFetcher | None, dict[str, str]]:
    """Who asks Prometheus, and the headers that are sent there. Raises UserError where a credential cannot be had."""
    asked = bound.drill.prometheus
    if asked is None or asked.url is None:
        return None, {}
    headers = resolve_headers(asked.headers)
    return JsonFetcher(asked.url, clock=clock, headers=headers, ca=asked.ca, insecure=asked.insecure), headers


def _guarded(guard: Guard, cluster: Cluster, plan: Plan, lease: Lease) -> Guarded:
    try:
        return guard(cluster, plan, lease)
    except OSError as error:
        raise Refused(f"no guardian could be started beside the run: {error.strerror}") from error


def _lease(cluster: Cluster, plan: Plan, run: str) -> Lease:
    """The Lease on the drill's target, not taken yet."""
    name = name_for(plan.workload.controller or plan.workload.selector)
    return Lease(cluster=cluster, namespace=plan.workload.namespace, name=name, holder=run)


async def lock(lease: Lease) -> None:
    """Takes the Lease. Raises Refused if somebody else holds it, or the cluster cannot be reached."""
    try:
        with _reachable():
            taken = await lease.acquire()
    except RuntimeError as error:
        raise Refused(str(error)) from None
    if taken:
        raise Locked(f"another drill is running on this target: {taken} ({lease.name})", taken.holder)


async def _server_version(cluster: Cluster) -> dict[str, str]:
    try:
        return {"kubernetes": (await cluster.version()).git}
    except ApiError as error:  # /version may be closed to us; the run does not depend on it
        log.info("the server does not tell its version", error=str(error))
        return {}
