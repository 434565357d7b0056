"""One embedded lab for all tests here that plan, or that run small drills and leave it as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from chaosrunner.cli import lab_process
from chaosrunner.cluster import Cluster, ClusterConfig, connect
from chaosrunner.playbook import BoundDrill
from chaosrunner.timeline.clock import Clock
from tests.drills.rehearsal import load
from tests.engine.lab import Lab
from tests.plan import rights


@dataclass
class Standing:
    """`config`: how to reach the lab as a ServiceAccount. `trail`: the API server's audit log."""

    portal: BlockingPortal
    lab: Lab
    trail: Path
    admin: Cluster
    config: ClusterConfig

    @contextmanager
    def granted(self, bound: BoundDrill, missing: rights.Missing | None = None) -> Iterator[None]:
        """The ServiceAccount has the rights of a drill, without one rule, for the length of the block."""
        objects = rights.manifests(rights.granted(bound, self.lab.namespace), missing)
        with self.portal.wrap_async_context_manager(rights.applied(self.admin, objects)):
            yield


@pytest.fixture(scope="package")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    @asynccontextmanager
    async def up(portal: BlockingPortal) -> AsyncIterator[Standing]:
        spec = lab_process.lab_spec(load("lab-drain-node", **{"lab.startup": "200ms"}))
        folder = tmp_path_factory.mktemp("rights")
        async with lab_process.running_lab(spec) as (ready, state):
            told = msgspec.to_builtins(ready)
            lab = Lab(**{name: told[name] for name in Lab.__dataclass_fields__})
            config = ClusterConfig(kubeconfig=ready.kubeconfig, context=ready.context, namespace=ready.namespace)
            async with connect(config, Clock()) as admin:
                path = await rights.account(admin, ready.namespace, ready.kubeconfig, folder)
                as_account = replace(config, kubeconfig=path)
                yield Standing(portal, lab, state / "audit.jsonl", admin, as_account)

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(up(portal)) as made:
        yield made
