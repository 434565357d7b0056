from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from chaosrunner.cluster import Cluster, connect
from chaosrunner.cluster.lease import Lease, Taken
from chaosrunner.timeline.clock import Clock

from .server import Server, kubeconfig, ok, serving, status, until

pytestmark = pytest.mark.anyio

LEASES = "/apis/coordination.k8s.io/v1/namespaces/demo/leases"


class Leases:
    """One Lease with the API server's rules: versions, conflicts, preconditions."""

    def __init__(self, server: Server) -> None:
        self.object: dict[str, Any] | None = None
        self.version = 0
        self.down: int | None = None
        for method, path in (
            ("POST", LEASES),
            ("GET", LEASES + "/x"),
            ("PUT", LEASES + "/x"),
            ("DELETE", LEASES + "/x"),
        ):
            server.on(method, path)(self.handle)

    def put(self, spec: dict[str, Any]) -> None:
        self.version += 1
        self.object = {"metadata": {"name": "x", "uid": "u", "resourceVersion": str(self.version)}, "spec": spec}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.down is not None:
            return status(self.down, "ServiceUnavailable", "down")
        body = await request.json() if request.body_exists else {}
        if request.method == "POST":
            if self.object is not None:
                return status(409, "AlreadyExists", 'leases "x" already exists')
            self.put(body["spec"])
            return ok(self.object, 201)
        if self.object is None:
            return status(404, "NotFound", "not found")
        current = self.object["metadata"]["resourceVersion"]
        if request.method == "PUT":
            if body["metadata"]["resourceVersion"] != current:
                return status(409, "Conflict", "the object has been modified")
            self.put(body["spec"])
        if request.method == "DELETE":
            if body["preconditions"] != {"uid": "u", "resourceVersion": current}:
                return status(409, "Conflict", "precondition")
            self.object = None
        return ok(self.object or {})


def stamp(age: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@asynccontextmanager
async def leasing(folder: Path) -> AsyncIterator[tuple[Cluster, Leases, Lease]]:
    async with serving() as server, connect(kubeconfig(folder, server.url), Clock()) as cluster:
        yield cluster, Leases(server), Lease(cluster=cluster, namespace="demo", name="x", holder="run-1", duration=15)


async def test_acquire_renew_release(tmp_path: Path) -> None:
    async with leasing(tmp_path) as (_, leases, lease):
        assert await lease.acquire() is None
        assert leases.object is not None
        first = leases.object["spec"]
        assert (first["holderIdentity"], first["leaseDurationSeconds"], lease.state) == ("run-1", 15, "held")
        assert await lease.renew() == "held"
        assert leases.object["spec"]["renewTime"] > first["renewTime"]
        assert leases.object["spec"]["acquireTime"] == first["acquireTime"]
        await lease.release()
        assert leases.object is None
        assert lease.state == "free"


async def test_a_renewal_that_came_through_unseen_does_not_keep_the_lease(tmp_path: Path) -> None:
    async with leasing(tmp_path) as (_, leases, lease):
        await lease.acquire()
        assert leases.object is not None
        leases.put(leases.object["spec"])  # ours, with a version that we have not seen
        await lease.release()
        assert leases.object is None


async def test_held_by_another_run(tmp_path: Path) -> None:
    async with leasing(tmp_path) as (_, leases, lease):
        renewed = stamp(20)
        leases.put({"holderIdentity": "run-0", "leaseDurationSeconds": 15, "renewTime": renewed})
        taken = await lease.acquire()
        assert isinstance(taken, Taken)
        assert (taken.holder, taken.renewed) == ("run-0", renewed)
        assert taken.until is not None  # 15 s after its renewal
        assert lease.state == "free"
        await lease.release()
        assert leases.object is not None


@pytest.mark.parametrize("spec", [{"holderIdentity": "run-0", "leaseDurationSeconds": 15, "renewTime": stamp(60)},
                                  {"holderIdentity": "", "renewTime": stamp(1)}, {}])  # fmt: skip
async def test_dead_or_released_lease_is_taken_over(tmp_path: Path, spec: dict[str, Any]) -> None:
    async with leasing(tmp_path) as (_, leases, lease):
        leases.put(spec)
        assert await lease.acquire() is None
        assert leases.object is not None
        assert leases.object["spec"]["holderIdentity"] == "run-1"


async def test_lost_only_when_somebody_else_is_seen_holding_it(tmp_path: Path) -> None:
    async with leasing(tmp_path) as (_, leases, lease):
        await lease.acquire()
        leases.down = 503
        assert await lease.renew() == "unconfirmed"
        leases.down = None
        assert await lease.renew() == "held"
        leases.put({"holderIdentity": "run-1", "renewTime": stamp(1)})  # touched, but still ours
        assert await lease.renew() == "held"
        leases.object = None  # removed by somebody who thought it stale
        assert await lease.renew() == "held"
        leases.put({"holderIdentity": "run-2", "renewTime": stamp(0)})
        assert await lease.renew() == "lost"
        assert lease.taken_by is not None
        assert lease.taken_by.holder == "run-2"
        await lease.release()
        assert leases.object is not None


async def test_keeping_it_ends_when_it_is_lost(tmp_path: Path) -> None:
    async with leasing(tmp_path) as (_, leases, lease):
        lease.duration = 0.15
        await lease.acquire()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lease.keep)
            await until(lambda: leases.version > 3)
            leases.put({"holderIdentity": "run-2"})
        assert lease.state == "lost"


async def test_unreachable_server_leaves_it_unconfirmed(tmp_path: Path) -> None:
    async with serving() as server:
        leases = Leases(server)
        config = kubeconfig(tmp_path, server.url)
        async with connect(config, Clock()) as cluster:
            lease = Lease(cluster=cluster, namespace="demo", name="x", holder="run-1")
            await lease.acquire()
            assert leases.object is not None
    async with connect(config, Clock()) as cluster:
        lease.cluster = cluster
        assert await lease.renew() == "unconfirmed"
        await lease.release()


async def test_refused_for_good(tmp_path: Path) -> None:
    async with leasing(tmp_path) as (_, leases, lease):
        leases.down = 403
        with pytest.raises(RuntimeError, match="403"):
            await lease.acquire()
