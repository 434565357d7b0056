"""Starts every observer of a drill, and says when all of them have seen what there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import structlog

from chaosrunner.cluster import ApiError, Cluster, Unreachable
from chaosrunner.cluster.resources import ENDPOINT_SLICES, EVENTS, NODES, PDBS, PODS, Resource
from chaosrunner.cluster.roots import Roots
from chaosrunner.cluster.watch import Change, Timing, Watcher
from chaosrunner.observers import alerts, endpoints, events, nodes, pdbs, pods
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Emit

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertScope:
    """Which Prometheus, how often (seconds), and which alerts (empty: all)."""

    fetch: alerts.Fetch
    interval: float = 5.0
    names: tuple[str, ...] = ()
    rules: bool = True
    up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveScope:
    """What to watch. Pods are those of `selector` in `namespace`, and, with `pods_on_nodes`, all Pods on `nodes`."""

    namespace: str
    selector: str
    service: str | None = None
    nodes: frozenset[str] | None = None
    """Names; None watches all nodes, an empty set none (no cluster-wide rights needed then)."""
    pods_on_nodes: bool = False
    controller: str | None = None
    """Name of the workload's controller: Events about what is named after it are of interest."""
    alerts: AlertScope | None = None
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True)
class LastLook:
    """Before a recording ends: set `wanted`; `done` is set when every watch has told all that there is."""

    wanted: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)


async def observe(
    cluster: Cluster, scope: ObserveScope, emit: Emit, *, ready: anyio.Event, last_look: LastLook | None = None
) -> None:
    """Watch until cancelled. Sets `ready` when every first list has come, or an answer that says that it will not
    (a `forbidden` row). Trouble with the cluster becomes rows and never an exception."""
    session = _Session(cluster, scope, emit)
    await session.prime()
    watchers = session.watchers()
    async with anyio.create_task_group() as tasks:
        session.tasks = tasks
        for watcher in watchers:
            tasks.start_soon(watcher.run)
        if scope.alerts is not None:
            wanted = scope.alerts
            tasks.start_soon(
                partial(
                    alerts.poll,
                    wanted.fetch,
                    cluster.clock,
                    emit,
                    interval=wanted.interval,
                    names=wanted.names,
                    rules=wanted.rules,
                    up=wanted.up,
                )
            )
        for watcher in watchers:
            await watcher.answered.wait()
        ready.set()
        if last_look is not None:
            await last_look.wanted.wait()
            async with anyio.create_task_group() as looks:
                for watcher in watchers:
                    looks.start_soon(watcher.confirm)
            last_look.done.set()


class _Session:
    """What the observers of one run share."""

    def __init__(self, cluster: Cluster, scope: ObserveScope, emit: Emit) -> None:
        self.tasks: anyio.abc.TaskGroup | None = None
        self._cluster = cluster
        self._scope = scope
        self._emit = emit
        self._roots = Roots(cluster)
        self._resolving: set[str] = set()
        self._workload: set[str] = set()
        self._news = nodes.News()
        self._interest = events.Interest(scope.nodes)
        if scope.controller:
            self._interest.add_name(scope.controller)
        if scope.service:
            self._interest.add_name(scope.service)

    async def prime(self) -> None:
        """Look up the root controllers of the Pods that exist, so that their first rows have them."""
        try:
            listing = await self._cluster.list(PODS, self._scope.namespace, label_selector=self._scope.selector)
        except (ApiError, Unreachable) as error:
            log.debug("root controllers are looked up later", error=str(error))
            return
        for pod in listing.items:
            root = await self._roots.resolve(pod)
            self._interest.add(pods.to_row(pod, seen="LISTED", at=listing.received, root=root))

    def watchers(self) -> list[Watcher]:
        scope = self._scope
        found = [
            self._watcher(PODS, self._pod, namespace=scope.namespace, label_selector=scope.selector),
            self._watcher(PDBS, self._pdb, namespace=scope.namespace),
            self._watcher(EVENTS, self._event, namespace=scope.namespace),
        ]
        if scope.service:
            selector = f"{endpoints.SERVICE_LABEL}={scope.service}"
            found.append(
                self._watcher(ENDPOINT_SLICES, self._slice, namespace=scope.namespace, label_selector=selector)
            )
        if scope.nodes is None or scope.nodes:
            one = f"metadata.name={next(iter(scope.nodes))}" if scope.nodes and len(scope.nodes) == 1 else None
            found.append(self._watcher(NODES, self._node, field_selector=one))
            if scope.namespace != "default":  # where Events about nodes are
                about = "involvedObject.kind=Node"
                found.append(
                    self._watcher(EVENTS, self._event, name="events:nodes", namespace="default", field_selector=about)
                )
        if scope.pods_on_nodes:
            for node in sorted(scope.nodes or ()):
                selector = f"spec.nodeName={node}"
                found.append(self._watcher(PODS, self._neighbour, name=f"pods:{node}", field_selector=selector))
        return found

    def _watcher(
        self, resource: Resource, on_change: Callable[[Change], None], *, name: str | None = None, **selection: Any
    ) -> Watcher:
        return Watcher(
            cluster=self._cluster,
            resource=resource,
            on_change=on_change,
            emit=self._emit,
            name=name or resource.plural,
            timing=self._scope.timing,
            **selection,
        )

    # --- one change, one row ----------------------------------------------------------------------------

    def _pod(self, change: Change) -> None:
        root = self._roots.known(change.object)
        row = pods.to_row(change.object, seen=change.seen, at=change.at, gap=change.gap, root=root)
        self._workload.add(row.uid)
        self._interest.add(row)
        if row.owner is not None and root is None:
            self._look_up(row.owner, change.object)
        self._emit(row)

    def _neighbour(self, change: Change) -> None:
        """A Pod on a target node that is not of the workload (whose Pods have their own watch)."""
        row = pods.to_row(change.object, seen=change.seen, at=change.at, gap=change.gap)
        if row.uid not in self._workload:
            self._interest.add(row)
            self._emit(row)

    def _slice(self, change: Change) -> None:
        self._emit(endpoints.to_row(change.object, seen=change.seen, at=change.at, gap=change.gap))

    def _node(self, change: Change) -> None:
        row = nodes.to_row(change.object, seen=change.seen, at=change.at, gap=change.gap)
        if (not self._scope.nodes or row.name in self._scope.nodes) and self._news.is_new(row):
            self._emit(row)

    def _pdb(self, change: Change) -> None:
        self._emit(pdbs.to_row(change.object, seen=change.seen, at=change.at, gap=change.gap))

    def _event(self, change: Change) -> None:
        row = events.to_row(change.object, seen=change.seen, at=change.at, gap=change.gap)
        # Events are removed after an hour: their deletion is no news.
        if row.seen not in ("DELETED", "VANISHED") and self._interest.covers(row):
            self._emit(row)

    def _look_up(self, owner: rows.Owner, pod: dict[str, Any]) -> None:
        """Resolve the root of a new owner beside the watch; the Pod's next rows have it."""
        if self.tasks is None or owner.uid in self._resolving:
            return
        self._resolving.add(owner.uid)

        async def resolve() -> None:
            await self._roots.resolve(pod)
            self._resolving.discard(owner.uid)

        self.tasks.start_soon(resolve)
