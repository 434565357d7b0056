"""Evictions and budgets in states that they are really seen in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaosrunner.cluster.answers import classify, settled
from chaosrunner.cluster.budget import allowed, assess, desired_healthy, predict
from chaosrunner.cluster.drain import DrainOptions, next_move, select
from chaosrunner.cluster.eviction import evict
from chaosrunner.timeline import rows
from tests.analysis.tape import Tape, context, facts, time
from tests.cluster.server import status
from tests.cluster.test_eviction import POD, cluster_of


def pod(name: str = "chat-1", *, ready: bool = True, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "demo",
            "labels": {"app": "chat"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "chat", "uid": "u", "controller": True}],
            **metadata,
        },
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def pdb(spec: dict[str, Any], status: dict[str, Any] | None, generation: int = 1) -> dict[str, Any]:
    found = {
        "metadata": {"name": "chat", "namespace": "demo", "generation": generation},
        "spec": {"selector": {"matchLabels": {"app": "chat"}}} | spec,
    }
    return found if status is None else found | {"status": {"observedGeneration": 1} | status}


def counted(expected: int, healthy: int, desired: int, permitted: int) -> dict[str, int]:
    return {
        "expectedPods": expected,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": permitted,
    }


NO_PATH = "the server could not find the requested resource"
THREE = [pod(f"chat-{number}") for number in range(3)]


@pytest.mark.parametrize(
    ("budget", "verdict", "blocks"),
    [
        (pdb({"maxUnavailable": 0}, counted(3, 3, 3, 0)), "drain_would_never_finish", True),
        (pdb({"maxUnavailable": "0%"}, counted(3, 3, 3, 0)), "drain_would_never_finish", True),
        (pdb({"minAvailable": "100%"}, counted(3, 3, 3, 0)), "drain_would_never_finish", True),
        (pdb({"minAvailable": 5}, counted(3, 3, 5, 0)), "drain_would_never_finish", True),
        (pdb({"minAvailable": 0}, counted(3, 3, 0, 3)), "ok", False),
        (pdb({"maxUnavailable": "100%"}, counted(3, 3, 0, 3)), "ok", False),
        (pdb({"maxUnavailable": 1}, counted(3, 2, 2, 0)), "blocked_now", True),
        # the server refuses a negative allowance with 403
        (pdb({"maxUnavailable": 1}, counted(3, 1, 2, -1)), "blocked_now", True),
        (pdb({"maxUnavailable": 1}, None), "not_observed", True),
        (pdb({"maxUnavailable": 1}, {}, generation=2), "not_observed", True),
        # its Pods are there, and their controllers want none: scaled down a moment ago
        (pdb({"maxUnavailable": 1}, counted(0, 0, 0, 0)), "blocked_now", True),
    ],
)
def test_verdicts_of_budgets(budget: dict[str, Any], verdict: str, blocks: bool) -> None:
    # kubernetes/kubernetes#99598, #70312; jupyterhub/zero-to-jupyterhub-k8s#1934
    found = assess(budget, THREE, 3)
    assert (found.verdict, found.blocks) == (verdict, blocks)


@pytest.mark.parametrize(
    ("spec", "expected", "healthy", "desired", "permitted"),
    [
        ({"minAvailable": "34%"}, 3, 3, 2, 1),
        ({"maxUnavailable": "1%"}, 100, 100, 99, 1),
        ({"maxUnavailable": "1%"}, 3, 3, 2, 1),
        ({"minAvailable": "0%"}, 3, 3, 0, 3),
        ({"maxUnavailable": "200%"}, 3, 3, 0, 3),
        ({"minAvailable": 1}, 0, 0, 1, 0),
        # neither is given: one must be available
        ({}, 3, 3, 1, 2),
    ],
)
def test_arithmetic(spec: dict[str, Any], expected: int, healthy: int, desired: int, permitted: int) -> None:
    assert (desired_healthy(spec, expected), allowed(spec, expected, healthy)) == (desired, permitted)


@pytest.mark.parametrize(
    ("victim", "budgets", "answer"),
    [
        (pod(), [pdb({"maxUnavailable": 1}, None)], "budget_not_observed"),
        (pod(), [pdb({"maxUnavailable": 1}, counted(3, 3, 2, -1))], "blocked_by_budget"),
        (pod(ready=False), [pdb({"maxUnavailable": 1}, counted(3, 2, 2, 0))], "accepted"),
        (pod(ready=False), [pdb({"maxUnavailable": 1}, counted(3, 1, 2, 0))], "blocked_by_budget"),
        (
            pod(ready=False),
            [pdb({"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"}, counted(3, 1, 2, 0))],
            "accepted",
        ),
        # minAvailable 0: desiredHealthy 0 gives an unready Pod no free pass, but there is a budget to spend
        (pod(ready=False), [pdb({"minAvailable": 0}, counted(3, 0, 0, 0))], "blocked_by_budget"),
        (pod(phase="Pending", ready=False), [pdb({"maxUnavailable": 0}, counted(3, 3, 3, 0))], "accepted"),
        (pod(phase="Succeeded", ready=False), [pdb({"maxUnavailable": 0}, counted(3, 3, 3, 0))], "accepted"),
        (pod(deletionTimestamp="2026-11-29T17:00:00Z"), [], "already_terminating"),
        # a budget whose selector is null matches nothing, one with {} everything
        (pod(), [pdb({"selector": None}, counted(0, 0, 0, 0))], "accepted"),
        (pod(), [pdb({"selector": {}}, counted(3, 2, 2, 0))], "blocked_by_budget"),
    ],
)
def test_predictions(victim: dict[str, Any], budgets: list[dict[str, Any]], answer: str) -> None:
    # kubernetes/kubernetes#119731, kubernetes/enhancements (KEP 3017, unhealthyPodEvictionPolicy)
    assert [one.answer for one in predict([victim], budgets)] == [answer]


@pytest.mark.parametrize(
    ("code", "body", "answer", "known"),
    [
        # A proxy's, or an API server's without the subresource: nothing about the Pod, so a drain must not say "gone".
        (404, {"reason": "NotFound", "message": NO_PATH, "details": {}}, "bad_request", True),
        (404, {"message": "404 page not found"}, "bad_request", True),
        (404, {}, "bad_request", True),
        (404, {"reason": "NotFound", "details": {"name": "chat-1", "kind": "pods"}}, "not_found", True),
        (504, {"reason": "Timeout", "message": "Timeout: request did not complete"}, "server_error", False),
        (500, {"reason": "InternalError", "message": "etcdserver: request timed out"}, "server_error", False),
        (500, {"reason": "InternalError", "message": "context deadline exceeded"}, "server_error", False),
        (502, {}, "server_error", False),
        (500, {"message": "more than one PodDisruptionBudget"}, "multiple_budgets", True),
        (500, {"reason": "InternalError", "message": "an error on the server"}, "server_error", True),
        (429, {}, "throttled", True),
        (201, {}, "accepted", True),
    ],
)
def test_answers(code: int, body: dict[str, Any], answer: str, known: bool) -> None:
    assert (classify(code, body, {}), settled(code, body)) == (answer, known)


def test_a_wrong_path_does_not_make_a_drain_say_that_the_pod_is_gone() -> None:
    kind = classify(404, {"reason": "NotFound", "message": NO_PATH}, {})
    assert next_move(kind, was_terminating=False) == "fail"


@pytest.mark.anyio
async def test_an_answer_that_timed_out_leaves_open_whether_it_happened(tmp_path: Path) -> None:
    async def eviction(_: Any) -> Any:
        return status(504, "Timeout", "Timeout: request did not complete within requested timeout")

    async with cluster_of(tmp_path, eviction) as (cluster, _, recorder):
        answer = await evict(cluster, POD, emit=recorder)
    assert (answer.answer, answer.status, answer.ok) == ("server_error", 504, None)


@pytest.mark.parametrize("went", [True, False])
def test_an_eviction_that_timed_out_counts_if_the_pod_was_seen_to_go(went: bool) -> None:
    tape = Tape()
    tape.pod(0.0, "a", "LISTED", ready=True)
    tape.pod(0.0, "b", "LISTED", ready=True)
    tape.request(9.0, 11.0, "cut_stream", status=200, pod="a", headers=9.1)
    target = rows.Target(kind="Pod", name="a", namespace="demo", uid="u-a")
    tape.add(rows.Action(at=10.0, event="sent", call=1, action="evict", target=target))
    answer: dict[str, Any] = {"answer": "server_error", "status": 504, "ok": None}
    tape.add(rows.Action(at=12.0, event="answered", call=1, action="evict", target=target, **answer))
    if went:
        tape.pod(10.1, "a", deletion_time=time(40), deletion_grace=30.0)
    tape.end(60.0)
    exposure = facts(tape, context()).exposure
    assert (exposure.exposed, exposure.lost) == ((1, 1) if went else (0, 0))


@pytest.mark.parametrize(
    ("changes", "options", "verdict"),
    [
        ({}, DrainOptions(), "evict"),
        # kubernetes/kubernetes#20232: an owner that is no controller replaces nothing
        ({"ownerReferences": [{"kind": "ReplicaSet", "name": "x", "uid": "u"}]}, DrainOptions(), "block"),
        ({"annotations": {"kubernetes.io/config.mirror": ""}}, DrainOptions(), "skip"),
        ({"annotations": None, "ownerReferences": None}, DrainOptions(force=True), "evict"),
        (
            {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]},
            DrainOptions(force=True),
            "block",
        ),
        ({"finalizers": ["x/y"], "deletionTimestamp": "2026-11-29T17:00:00Z"}, DrainOptions(), "wait"),
    ],
)
def test_what_a_drain_takes(changes: dict[str, Any], options: DrainOptions, verdict: str) -> None:
    (decision,) = select([pod(**changes)], options)
    assert decision.verdict == verdict
