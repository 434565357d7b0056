from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from chaosrunner.cluster import Cluster, Unreachable, connect
from chaosrunner.cluster.actions import create_event, delete_pod, target_of
from chaosrunner.cluster.budget import HELD
from chaosrunner.cluster.eviction import evict
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock

from .server import DATA, Recorder, Server, always, kubeconfig, listing, ok, pod, serving, status

pytestmark = pytest.mark.anyio

POD = pod("chat-1", "5", metadata={"labels": {"app": "chat"}})
POD_PATH = "/api/v1/namespaces/demo/pods/chat-1"
PDB_PATH = "/apis/policy/v1/namespaces/demo/poddisruptionbudgets"


def recorded(label: str) -> dict[str, Any]:
    for line in (DATA / "k8s-1.37/requests.jsonl").read_text().splitlines():
        call: dict[str, Any] = json.loads(line)
        if call.get("label") == label:
            return call
    raise AssertionError(label)


def replay(*labels: str) -> Any:
    """Answers evictions as a real server did, one label after the other."""
    left = list(labels)

    async def answer(request: web.Request) -> web.StreamResponse:
        call = recorded(left.pop(0))
        return web.json_response(call["response"], status=call["status"])

    return answer


def pdb(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {"selector": {"matchLabels": {"app": "chat"}}, "minAvailable": 2},
    }


@asynccontextmanager
async def cluster_of(
    folder: Path, eviction: Any, current: dict[str, Any] = POD, *pdbs: str
) -> AsyncIterator[tuple[Cluster, Server, Recorder]]:
    async with serving() as server:
        server.on("GET", POD_PATH)(always(current))
        server.on("POST", POD_PATH + "/eviction")(eviction)

        @server.on("GET", PDB_PATH)
        async def _(request: web.Request) -> web.StreamResponse:
            return listing("1", map(pdb, pdbs))

        async with connect(kubeconfig(folder, server.url), Clock()) as cluster:
            yield cluster, server, Recorder()


async def test_accepted(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, replay("evict-ok")) as (cluster, server, recorder):
        answer = await evict(cluster, POD, emit=recorder, grace_period=7.2, step=3, expect="accepted")
    assert (answer.answer, answer.status, answer.ok) == ("accepted", 201, True)
    body = server.asked("POST", "eviction")[0][4]
    assert body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "chat-1", "namespace": "demo"},
        "deleteOptions": {"preconditions": {"uid": "uid-chat-1"}, "gracePeriodSeconds": 8},
    }
    sent, answered = recorder.of(rows.Action)
    assert (sent.event, sent.call, sent.answer, sent.step) == ("sent", answered.call, None, 3)
    assert (answered.event, answered.answer, answered.status, answered.ok, answered.expected) == (
        "answered", "accepted", 201, True, True,
    )  # fmt: skip
    assert answered.target == rows.Target(kind="Pod", name="chat-1", namespace="demo", uid="uid-chat-1")
    assert sent.at == answer.sent
    assert sent.at <= answered.at


async def test_dry_run_by_a_plan_leaves_no_rows(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, replay("evict-dry-run")) as (cluster, server, _):
        answer = await evict(cluster, POD, dry_run=True)
    assert answer.answer == "accepted"
    assert server.asked("POST", "eviction")[0][4]["deleteOptions"]["dryRun"] == ["All"]


async def test_already_terminating_is_no_new_disruption(tmp_path: Path) -> None:
    going = pod("chat-1", "6", metadata={"deletionTimestamp": "2026-11-29T16:19:15Z"})
    async with cluster_of(tmp_path, replay("evict-already-terminating"), going) as (cluster, _, recorder):
        answer = await evict(cluster, POD, emit=recorder)
    assert (answer.answer, answer.ok) == ("already_terminating", True)


async def test_replaced_pod_is_never_evicted(tmp_path: Path) -> None:
    # case B7: a wrong UID would spend the budget
    async with cluster_of(tmp_path, replay(), pod("chat-1", "9", uid="another")) as (cluster, server, recorder):
        answer = await evict(cluster, POD, emit=recorder)
    assert (answer.answer, answer.sent, answer.ok) == ("not_found", None, False)
    assert server.asked("POST", "") == []
    assert [(row.event, row.answer) for row in recorder.of(rows.Action)] == [("answered", "not_found")]


async def test_failed_precondition_holds_the_budget_and_what_follows_is_self_inflicted(tmp_path: Path) -> None:
    # case B7, as recorded: 409, and then the right eviction gets 429 for up to two minutes
    script = replay("evict-wrong-uid", "evict-right-uid-after-burnt-budget")
    async with cluster_of(tmp_path, script, POD, "chat") as (cluster, _, recorder):
        failed = await evict(cluster, POD, emit=recorder)
        after = await evict(cluster, POD, emit=recorder)
    assert (failed.answer, failed.pdbs, failed.ok) == ("precondition_failed", ("chat",), False)
    assert failed.held_until == pytest.approx(recorder.of(rows.Action)[1].at + HELD)
    assert "chat may be held by this failed eviction for 120 s" in str(failed.message)
    assert (after.answer, after.self_inflicted, after.held_until) == ("blocked_by_budget", True, failed.held_until)
    assert "held by our own failed eviction" in str(after.message)
    assert recorder.of(rows.Action)[1].pdbs == ["chat"]


async def test_blocked_by_a_budget_of_the_workload_is_not_self_inflicted(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, replay("evict-blocked-by-pdb"), POD, "chat") as (cluster, _, recorder):
        answer = await evict(cluster, POD, emit=recorder, expect=429)
    assert (answer.answer, answer.pdbs, answer.self_inflicted) == ("blocked_by_budget", ("chat",), False)
    row = recorder.of(rows.Action)[1]
    assert row.causes == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget chat needs 2 healthy pods and has 2 currently",
        }
    ]
    assert row.expected is True


async def test_two_budgets_are_named(tmp_path: Path) -> None:
    # kubernetes/kubernetes#75957, eksctl-io/eksctl#783 (the message names neither Pod nor budgets)
    async with cluster_of(tmp_path, replay("evict-two-pdbs"), POD, "chat-too", "chat") as (cluster, server, recorder):
        answer = await evict(cluster, POD, emit=recorder)
    assert (answer.answer, answer.pdbs, answer.ok) == ("multiple_budgets", ("chat", "chat-too"), False)
    assert "configuration error" in str(answer.message)
    assert len(server.asked("POST", "eviction")) == 1


async def test_no_answer_leaves_open_whether_it_happened(tmp_path: Path) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return ok({})

    async with cluster_of(tmp_path, cut) as (cluster, _, recorder):
        answer = await evict(cluster, POD, emit=recorder, expect="accepted")
    assert (answer.answer, answer.ok) == ("unreachable", None)
    assert answer.sent is not None
    assert [(r.event, r.answer, r.expected) for r in recorder.of(rows.Action)] == [
        ("sent", None, None), ("answered", "unreachable", False),
    ]  # fmt: skip


async def test_delete_has_a_precondition_and_force_must_be_said(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, replay()) as (cluster, server, recorder):

        @server.on("DELETE", POD_PATH)
        async def _(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            if body["preconditions"]["uid"] != "uid-chat-1":
                return status(409, "Conflict", "the UID in the precondition (x) does not match")
            return ok(POD)

        with pytest.raises(ValueError, match="force"):
            await delete_pod(cluster, POD, emit=recorder, grace_period=0)
        assert (await delete_pod(cluster, POD, emit=recorder, grace_period=0, force=True)).ok
        other = pod("chat-1", "5", uid="x")
        assert (await delete_pod(cluster, other, emit=recorder, dry_run=True, expect="accepted")).status == 409
    bodies = [request[4] for request in server.asked("DELETE", "")]
    assert [body.get("gracePeriodSeconds") for body in bodies] == [0, None]
    assert bodies[1]["dryRun"] == ["All"]
    assert [(r.answer, r.ok, r.expected) for r in recorder.of(rows.Action) if r.event == "answered"] == [
        ("accepted", True, None), ("precondition_failed", False, False),
    ]  # fmt: skip


async def test_a_call_that_finds_no_server(tmp_path: Path) -> None:
    recorder = Recorder()
    async with connect(kubeconfig(tmp_path, "http://127.0.0.1:1"), Clock()) as cluster:
        with pytest.raises(Unreachable):
            await delete_pod(cluster, POD, emit=recorder)
        answer = await evict(cluster, POD, emit=recorder)
    assert (answer.answer, answer.sent) == ("unreachable", None)
    assert [(row.event, row.ok) for row in recorder.of(rows.Action)] == [
        ("sent", None), ("answered", False), ("answered", False),
    ]  # fmt: skip


async def test_event_on_a_target(tmp_path: Path) -> None:
    async with serving() as server:
        server.on("POST", "/api/v1/namespaces/default/events")(always({}))
        async with connect(kubeconfig(tmp_path, server.url), Clock()) as cluster:
            node = target_of({"metadata": {"name": "n1", "uid": "u"}}, "Node")
            answer = await create_event(cluster, node, run="r1", reason="ChaosRunnerDrillCordon", message="m" * 2000)
    assert answer.ok
    body = server.requests[0][4]
    assert body["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}
    assert (body["metadata"]["namespace"], body["reason"], len(body["message"])) == (
        "default", "ChaosRunnerDrillCordon", 1024,
    )  # fmt: skip
