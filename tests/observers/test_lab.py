"""The cluster room and the observers against the embedded lab, run as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from chaosrunner.cluster import Cluster, ClusterConfig, connect
from chaosrunner.cluster.access import Access, review
from chaosrunner.cluster.actions import create_event, target_of
from chaosrunner.cluster.budget import Budgets, assess, predict
from chaosrunner.cluster.drain import DrainOptions, select
from chaosrunner.cluster.eviction import evict
from chaosrunner.cluster.lease import Lease
from chaosrunner.cluster.resources import NODES, PDBS, PODS, meta
from chaosrunner.observers import AlertScope, ObserveScope, observe
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from tests.cluster.server import Recorder, until

pytestmark = [pytest.mark.anyio, pytest.mark.lab]

SPEC = {"nodes": 3, "replicas": 3, "startup": 0.3, "grace": 5, "pdb": {"min_available": 2}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("lab")
    (folder / "spec.json").write_text(json.dumps(SPEC))
    command = [sys.executable, "-m", "chaosrunner.lab", "--spec", str(folder / "spec.json"), "--until-stdin-closes"]
    with subprocess.Popen(
        [*command, "--state", str(folder / "state")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.wait(20) == 0


@asynccontextmanager
async def session(lab: Mapping[str, Any], recorder: Recorder) -> AsyncIterator[Cluster]:
    async with connect(ClusterConfig(kubeconfig=lab["kubeconfig"]), Clock(), recorder) as cluster:
        yield cluster


async def test_session(lab: dict[str, Any]) -> None:
    recorder = Recorder()
    async with session(lab, recorder) as cluster:
        assert (cluster.context, cluster.namespace) == ("lab", "lab")
        version = await cluster.version()
        assert (version.major, version.minor) == (1, 37)
        permissions = await review(cluster, [Access("create", "pods", "lab", subresource="eviction")])
        assert [permission.allowed for permission in permissions] == [True]
        nodes = await cluster.list(NODES)
        assert len(nodes.items) >= 3
    assert recorder.of(rows.Skew)


async def test_lease(lab: dict[str, Any]) -> None:
    async with session(lab, Recorder()) as cluster:
        mine = Lease(cluster=cluster, namespace="lab", name="drill-test", holder="a")
        other = Lease(cluster=cluster, namespace="lab", name="drill-test", holder="b")
        assert await mine.acquire() is None
        taken = await other.acquire()
        assert taken is not None
        assert taken.holder == "a"
        assert await mine.renew() == "held"
        await mine.release()
        assert await other.acquire() is None
        await other.release()


async def test_observers_see_an_eviction_through(lab: dict[str, Any]) -> None:
    recorder, ready = Recorder(), anyio.Event()

    async def fetch(path: str, params: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        raise ConnectionRefusedError(path)  # the observer of alerts is tested with recordings

    scope = ObserveScope(
        namespace="lab",
        selector="app=model",
        service="model",
        controller="model",
        alerts=AlertScope(fetch=fetch, interval=0.5),
    )
    async with session(lab, recorder) as cluster, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: observe(cluster, scope, recorder, ready=ready))
        with anyio.fail_after(10):
            await ready.wait()
        assert {row.resource for row in recorder.of(rows.Watch) if row.event == "listed"} == {
            "pods", "poddisruptionbudgets", "events", "endpointslices", "nodes", "events:nodes",
        }  # fmt: skip
        listed = recorder.of(rows.Pod)
        assert {row.seen for row in listed} == {"LISTED"}
        assert all(row.root and (row.root.kind, row.root.name) == ("Deployment", "model") for row in listed)

        pods = (await cluster.list(PODS, "lab", label_selector="app=model")).items
        pdbs = (await cluster.list(PDBS, "lab")).items
        assert [assess(pdb, pods).verdict for pdb in pdbs] == ["ok"]
        assert [p.answer for p in predict(pods[:2], pdbs)] == ["accepted", "blocked_by_budget"]
        assert {d.verdict for d in select(pods, DrainOptions(ignore_daemonsets=True))} == {"evict"}
        assert [(await evict(cluster, pod, dry_run=True)).answer for pod in pods[:2]] == ["accepted", "accepted"]

        victim, other = pods[0], pods[1]
        mark = len(recorder.rows)
        first = await evict(cluster, victim, emit=recorder, expect="accepted")
        second = await evict(cluster, other, emit=recorder, expect=429)
        again = await evict(cluster, victim, emit=recorder)
        assert [first.answer, second.answer, again.answer] == ["accepted", "blocked_by_budget", "already_terminating"]
        assert second.pdbs == tuple(str(meta(pdb)["name"]) for pdb in pdbs)
        assert Budgets((await cluster.list(PDBS, "lab")).items).predict(other).answer == "blocked_by_budget"
        announced = await create_event(
            cluster, target_of(victim), run="r", reason="ChaosRunnerDrill", message="evicted"
        )
        assert announced.ok

        uid = meta(victim)["uid"]
        await until(lambda: any(r.seen == "DELETED" and r.uid == uid for r in recorder.of(rows.Pod)), 20)
        before = {meta(pod)["uid"] for pod in pods}

        def replacement_serves() -> bool:
            return any(
                e.ready and e.uid not in before and e.uid for s in recorder.of(rows.EndpointSlice) for e in s.endpoints
            )

        await until(replacement_serves, 20)
        tasks.cancel_scope.cancel()

    later = recorder.rows[mark:]
    victims = [row for row in later if isinstance(row, rows.Pod) and row.uid == uid]
    going = next(row for row in victims if row.deletion_time)
    assert any(c.reason == "EvictionByEvictionAPI" for c in going.conditions)
    assert first.sent is not None
    assert 0 <= going.at - first.sent < 1
    drained = next(
        s
        for s in later
        if isinstance(s, rows.EndpointSlice) and any(e.uid == uid and e.terminating for e in s.endpoints)
    )
    assert next((e.ready, e.terminating) for e in drained.endpoints if e.uid == uid) == (False, True)
    replacement = next(row for row in later if isinstance(row, rows.Pod) and row.seen == "ADDED")
    assert replacement.root == victims[0].root
    assert any(row.allowed == 0 and victim["metadata"]["name"] in row.disrupted_times for row in recorder.of(rows.Pdb))
    events = recorder.of(rows.Event)
    assert {"Killing", "ChaosRunnerDrill"} <= {row.reason for row in events if row.object_uid == uid}
    assert not [row for row in recorder.of(rows.Watch) if row.event in ("gap_opened", "forbidden")]
    assert {row.ok for row in recorder.of(rows.Alerts)} == {False}
    # heartbeats are most of what the watch of nodes says, and none of it is a row
    assert len(recorder.of(rows.Node)) == len({row.uid for row in recorder.of(rows.Node)})
