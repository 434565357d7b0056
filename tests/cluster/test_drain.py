from __future__ import annotations

from typing import Any

import pytest

from chaosrunner.cluster.drain import DrainOptions, Leaving, gone, leaving, next_move, select
from chaosrunner.cluster.session import Answer


def make_pod(name: str, owner: str | None = None, *, emptydir: bool = False, phase: str = "Running", **metadata: Any
             ) -> dict[str, Any]:  # fmt: skip
    references = [{"kind": owner, "name": "owner", "uid": "o", "controller": True}] if owner else []
    return {
        "metadata": {
            "name": name,
            "namespace": "demo",
            "uid": f"uid-{name}",
            "ownerReferences": references,
            **metadata,
        },
        "spec": {"volumes": [{"name": "scratch", "emptyDir": {}}] if emptydir else []},
        "status": {"phase": phase},
    }


# case B6: kubernetes-sigs/headlamp#7268, kubernetes/kubernetes#26667, #20232, longhorn/longhorn#3481
PODS = [
    make_pod("a", annotations={"kubernetes.io/config.mirror": "x"}),
    make_pod("b", "DaemonSet"),
    make_pod("c", "ReplicaSet"),
    make_pod("d", "ReplicaSet", emptydir=True),
    make_pod("e"),
    make_pod("f", "Job", phase="Succeeded"),
    make_pod("g", "ReplicaSet", deletionTimestamp="2026-03-02T10:00:00Z"),
    make_pod("h", "DaemonSet", emptydir=True),
]


def verdicts(pods: list[dict[str, Any]], daemonsets: Any = None, **options: bool) -> dict[str, str]:
    return {d.name: d.verdict for d in select(pods, DrainOptions(**options), daemonsets)}


def test_kubectls_choice() -> None:
    assert verdicts(PODS, ignore_daemonsets=True) == {
        "a": "skip", "b": "skip", "c": "evict", "d": "block", "e": "block", "f": "evict", "g": "wait", "h": "skip",
    }  # fmt: skip
    reasons = {d.name: d.reason for d in select(PODS, DrainOptions(ignore_daemonsets=True))}
    assert "delete_emptydir_data" in reasons["d"]
    assert "force" in reasons["e"]


def test_with_every_flag_nothing_blocks() -> None:
    found = verdicts(PODS, ignore_daemonsets=True, delete_emptydir_data=True, force=True)
    assert "block" not in found.values()
    assert (found["d"], found["e"]) == ("evict", "evict")


def test_without_flags_daemonsets_block() -> None:
    assert verdicts(PODS)["b"] == "block"


@pytest.mark.parametrize(("force", "verdict"), [(False, "block"), (True, "evict")])
def test_pod_of_a_daemonset_that_is_gone(force: bool, verdict: str) -> None:
    assert verdicts([PODS[1]], daemonsets=set(), ignore_daemonsets=True, force=force) == {"b": verdict}
    assert verdicts([PODS[1]], daemonsets={("demo", "owner")}, ignore_daemonsets=True, force=force) == {"b": "skip"}


def test_finished_pods_go_whatever_they_hold() -> None:
    assert verdicts([make_pod("x", emptydir=True, phase="Failed")]) == {"x": "evict"}


@pytest.mark.parametrize(
    ("answer", "terminating", "move"),
    [
        ("accepted", False, "wait"),
        ("not_found", False, "done"),
        ("blocked_by_budget", False, "retry"),
        ("namespace_terminating", True, "wait"),
        ("namespace_terminating", False, "retry"),
        ("multiple_budgets", False, "fail"),  # kubernetes/kubernetes#113891: looks retryable, never heals
        ("forbidden", False, "fail"),
        ("server_error", False, "fail"),
    ],
)
def test_next_move(answer: Any, terminating: bool, move: str) -> None:
    assert next_move(answer, was_terminating=terminating) == move


def test_gone_is_404_or_another_uid() -> None:
    def answer(status: int, body: dict[str, Any]) -> Answer:
        return Answer(status=status, body=body, headers={}, sent=0, received=0)

    assert gone(PODS[2], answer(404, {}))
    assert gone(PODS[2], answer(200, make_pod("c", uid="another")))
    assert not gone(PODS[2], answer(200, PODS[2]))
    assert not gone(PODS[2], answer(503, {}))


def test_stuck_on_a_finalizer() -> None:
    # ansible-collections/kubernetes.core#769, poseidon/fleetlock#271
    stuck = make_pod("z", "ReplicaSet", deletionTimestamp="1970-01-01T00:01:40Z", finalizers=["x/y"])
    stuck["status"]["containerStatuses"] = [{"name": "engine", "state": {"terminated": {"exitCode": 0}}}]
    assert leaving(stuck, wall=220.0) == Leaving(
        deadline="1970-01-01T00:01:40Z", overdue=120.0, finalizers=("x/y",), stopped=True
    )
    assert leaving(PODS[2], wall=0.0).overdue is None
