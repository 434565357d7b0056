"""A drill's workload on the standing lab, and an administrator's session, for tests that are not async themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from chaosrunner.cli import lab_process
from chaosrunner.cluster import Cluster, ClusterConfig, connect
from chaosrunner.timeline.clock import Clock


@dataclass
class Serving:
    """`ready`: what the lab said of the workload. `config`: how to reach the cluster as its administrator."""

    portal: BlockingPortal
    state: Path
    ready: lab_process.Ready
    config: ClusterConfig
    admin: Cluster

    @property
    def namespace(self) -> str:
        return self.ready.namespace


@contextmanager
def serving(state: Path, spec: dict[str, Any]) -> Iterator[Serving]:
    """The workload is there for the length of the block. `state`: the folder of a lab that stands."""

    @asynccontextmanager
    async def up(portal: BlockingPortal) -> AsyncIterator[Serving]:
        async with lab_process.on_real_lab(spec, state, lambda doing: None) as ready:
            config = ClusterConfig(kubeconfig=ready.kubeconfig, context=ready.context, namespace=ready.namespace)
            async with connect(config, Clock()) as admin:
                yield Serving(portal, state, ready, config, admin)

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(up(portal)) as made:
        yield made
