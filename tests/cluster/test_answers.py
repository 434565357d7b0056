from __future__ import annotations

import json
from typing import Any

import pytest

from chaosrunner.cluster.answers import CLASSES, budgets_named, classify, meets, passing, settled

from .server import DATA

RECORDED_137 = {
    "evict-missing": "not_found",
    "evict-dry-run": "accepted",
    "evict-name-mismatch": "bad_request",
    "evict-ok": "accepted",
    "evict-blocked-by-pdb": "blocked_by_budget",
    "evict-blocked-dry-run": "blocked_by_budget",
    "evict-already-terminating": "accepted",
    "evict-wrong-uid": "precondition_failed",
    "evict-right-uid-after-burnt-budget": "blocked_by_budget",
    "evict-wrong-rv": "precondition_failed",
    "evict-v1beta1-dry-run": "accepted",
    "evict-two-pdbs": "multiple_budgets",
    "evict-pending": "accepted",
    "evict-unready-if-healthy-budget": "blocked_by_budget",
    "evict-unready-always-allow": "accepted",
    "rbac-forbidden-evict": "forbidden",
    "evict-slow": "accepted",
}

RECORDED_120 = {
    "evict a, PDB status not observed": "budget_not_observed",
    "evict a policy/v1 body": "bad_request",
    "evict a, blocked by PDB": "blocked_by_budget",
    "evict a dryRun blocked": "blocked_by_budget",
    "evict a dryRun allowed": "accepted",
    "evict a wrong uid": "precondition_failed",
    "evict a allowed": "blocked_by_budget",
    "evict a again (terminating)": "blocked_by_budget",
    "evict missing": "not_found",
    "evict name mismatch": "bad_request",
    "evict c two PDBs": "multiple_budgets",
}


def evictions(calls: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {call["label"]: call for call in calls if call.get("path", "").partition("?")[0].endswith("/eviction")}


def test_every_recorded_eviction_of_1_37() -> None:
    lines = (DATA / "k8s-1.37/requests.jsonl").read_text().splitlines()
    calls = evictions([json.loads(line) for line in lines])
    found = {label: classify(call["status"], call["response"], call["headers"]) for label, call in calls.items()}
    assert found == RECORDED_137
    blocked = calls["evict-blocked-by-pdb"]["response"]
    assert budgets_named(blocked) == ["chat"]


def test_every_recorded_eviction_of_1_20() -> None:
    calls = evictions(json.loads((DATA / "k8s-1.20/rest_calls.json").read_text()))
    found = {label: classify(call["status"], call["response"], call["headers"]) for label, call in calls.items()}
    assert found == RECORDED_120
    assert budgets_named(calls["evict a, PDB status not observed"]["response"]) == ["llm"]


def failure(code: int, message: str = "", **details: Any) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "message": message, "code": code, "details": details}


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        # kubernetes/kubernetes#75957: no reason, no details; the message alone tells
        (500, {"status": "Failure", "message": "more than one PodDisruptionBudget"}, "multiple_budgets"),
        (500, failure(500, "etcdserver: request timed out"), "server_error"),
        (429, failure(429, "too many requests, please try again later"), "throttled"),
        (429, {}, "throttled"),
        (
            403,
            failure(403, "...", causes=[{"reason": "NamespaceTerminating", "message": "x is being terminated"}]),
            "namespace_terminating",
        ),
        (
            403,
            failure(403, "pdb disruptions allowed is negative", kind="poddisruptionbudget", name="b"),
            "blocked_by_budget",
        ),
        (401, failure(401, "Unauthorized"), "forbidden"),
        (
            409,
            failure(409, "Operation cannot be fulfilled on poddisruptionbudgets: the object has been modified"),
            "conflict",
        ),
        (504, failure(504, "Timeout: request did not complete within requested timeout"), "server_error"),
        (503, {}, "server_error"),
        (415, failure(415), "bad_request"),
        # a success on the wire that is a failure in its body
        (
            201,
            failure(429, causes=[{"reason": "DisruptionBudget", "message": "The disruption budget b needs 2"}]),
            "blocked_by_budget",
        ),
        (200, {"kind": "Status", "status": "Success"}, "accepted"),
        (
            429,
            failure(
                429,
                causes=[
                    {
                        "reason": "DisruptionBudget",
                        "message": "The disruption budget b does not allow evicting pods: it failed sync",
                    }
                ],
            ),
            "blocked_by_budget",
        ),
    ],
)
def test_answers_that_were_not_recorded(status: int, body: dict[str, Any], expected: str) -> None:
    assert classify(status, body, {}) == expected
    assert expected in CLASSES


def test_expected_by_status_or_by_class() -> None:
    assert meets(429, "blocked_by_budget", 429) is True
    assert meets("accepted", "already_terminating", 201) is True
    assert meets("accepted", "blocked_by_budget", 429) is False
    assert meets(None, "accepted", 201) is None


@pytest.mark.parametrize(
    ("status", "message", "by_itself", "known"),
    [
        (401, "Unauthorized", True, True),
        (403, 'pods is forbidden: User "u" cannot list resource "pods" in API group ""', False, True),
        (403, 'pods is forbidden: User "u" cannot ...: RBAC: role.rbac.authorization.k8s.io "r" not found', True, True),
        (404, 'pods "x" not found', False, True),
        (409, "the object has been modified", False, True),
        (422, "invalid", False, True),
        (429, "too many requests, please try again later", True, True),
        (429, "storage is (re)initializing", True, True),
        (500, "etcdserver: request timed out", True, False),
        (500, "etcdserver: leader changed", True, False),
        (500, 'Internal error occurred: failed calling webhook "v.leaderworkerset.example": failed to call webhook: '
         'Post "https://lws.example:443/v?timeout=10s": dial tcp 10.96.3.4:443: connect: connection refused', False,
         True),
        (500, "rpc error: code = Unavailable desc = error reading from server: EOF", True, False),
        (500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.", False,
         True),
        (503, "apiserver not ready", True, False),
        (503, "upstream connect error or disconnect/reset before headers", True, False),
        (504, "Timeout: request did not complete within requested timeout", True, False),
    ],
)  # fmt: skip
def test_what_goes_by_itself_and_what_says_whether_it_was_done(
    status: int, message: str, by_itself: bool, known: bool
) -> None:
    body = {"kind": "Status", "message": message}
    assert (passing(status, body), settled(status, body)) == (by_itself, known)


def test_a_budgets_429_does_not_go_by_itself() -> None:
    cause = {"reason": "DisruptionBudget", "message": "The disruption budget chat needs 2 healthy pods and has 2"}
    assert not passing(429, {"details": {"causes": [cause]}})
