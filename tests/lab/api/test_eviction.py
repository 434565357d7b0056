"""The order of checks in the eviction handler; the recorded answers themselves are in test_recorded_answers."""

from __future__ import annotations

from typing import Any

import pytest

from chaosrunner.lab.embedded.eviction import evict
from chaosrunner.lab.embedded.store import ApiError, Store
from tests.lab.api.objects import add_budget, add_pod

OPEN = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
SHUT = {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}


def body(name: str = "p", **options: Any) -> dict[str, Any]:
    return {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": name}, "deleteOptions": options}


def budget(store: Store) -> dict[str, Any]:
    return store.get("poddisruptionbudgets", "chat")["status"]


def is_going(store: Store, name: str = "p") -> bool:
    pod = store.find("pods", name)
    return pod is None or "deletionTimestamp" in pod["metadata"]


def test_an_eviction_spends_the_budget_then_marks_then_deletes() -> None:
    store = Store()
    add_pod(store, "p")
    add_budget(store, **OPEN)
    log: list[str] = []
    store.subscribe("poddisruptionbudgets", lambda type_, obj, old: log.append("budget"))
    store.subscribe(
        "pods",
        lambda type_, obj, old: log.append("going" if "deletionTimestamp" in obj["metadata"] else "marked"),
    )
    assert evict(store, "default", "p", body(gracePeriodSeconds=7))["code"] == 201
    assert log == ["budget", "marked", "going"]
    assert budget(store)["disruptionsAllowed"] == 0
    assert list(budget(store)["disruptedPods"]) == ["p"]
    assert budget(store)["conditions"][0] | {"lastTransitionTime": ""} == {
        "type": "DisruptionAllowed",
        "status": "False",
        "reason": "InsufficientPods",
        "lastTransitionTime": "",
    }
    pod = store.get("pods", "p")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 7
    assert pod["status"]["conditions"][-1]["reason"] == "EvictionByEvictionAPI"


def test_without_a_budget_a_pod_goes() -> None:
    store = Store()
    add_pod(store, "p")
    evict(store, "default", "p", body())
    assert is_going(store)


@pytest.mark.parametrize("state", ["Pending", "Succeeded", "Failed", "terminating"])
def test_budgets_are_not_looked_at_for_pods_that_serve_nobody(state: str) -> None:
    store = Store()
    add_pod(store, "p", node=None if state == "Pending" else "node1")
    add_budget(store, **SHUT)
    # kubernetes/kubernetes#75957: not even two of them matter then
    add_budget(store, "second", **SHUT)
    if state == "terminating":
        store.delete("pods", "p")
    else:
        store.mutate("pods", "p", "default", lambda pod: pod["status"].update(phase=state), subresource="status")
    evict(store, "default", "p", body())
    assert is_going(store)


def refusal(store: Store, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        evict(store, "default", "p", body(**options))
    assert not is_going(store)
    return error.value


def test_two_budgets_are_a_server_error_without_a_reason() -> None:
    # kubernetes/kubernetes#75957
    store = Store()
    add_pod(store, "p")
    add_budget(store, **OPEN)
    add_budget(store, "second", **OPEN)
    error = refusal(store)
    assert error.status == 500
    assert error.reason == ""


@pytest.mark.parametrize(
    ("policy", "status", "accepted"),
    [
        (None, SHUT, True),  # healthy enough without it: 1 of 1
        (None, SHUT | {"currentHealthy": 0}, False),
        (None, SHUT | {"currentHealthy": 0, "desiredHealthy": 0}, False),
        ("AlwaysAllow", SHUT | {"currentHealthy": 0}, True),
        ("IfHealthyBudget", SHUT | {"currentHealthy": 0}, False),
    ],
)
def test_unready_pods(policy: str | None, status: dict[str, int], accepted: bool) -> None:
    store = Store()
    add_pod(store, "p", ready=False)
    add_budget(store, policy=policy, **status)
    if accepted:
        evict(store, "default", "p", body())
        assert is_going(store)
        assert "disruptedPods" not in budget(store)
    else:
        assert refusal(store).status == 429


def test_a_budget_that_is_not_observed_yet_says_when_to_retry() -> None:
    store = Store()
    add_pod(store, "p")
    add_budget(store, observed=False, **OPEN)
    error = refusal(store)
    assert (error.status, error.body["details"]["retryAfterSeconds"]) == (429, 10)
    assert (
        error.body["details"]["causes"][0]["message"]
        == "The disruption budget chat is still being processed by the server."
    )


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (SHUT, "The disruption budget chat needs 1 healthy pods and has 1 currently"),
        (SHUT | {"currentHealthy": 5}, "The disruption budget chat does not allow evicting pods currently"),
        (
            # kubernetes/kubernetes#70312: the controller cannot count, and nothing may go
            SHUT
            | {
                "conditions": [
                    {"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "no"}
                ]
            },
            "The disruption budget chat does not allow evicting pods currently because it failed sync: no",
        ),
    ],
)
def test_no_disruption_allowed(status: dict[str, Any], message: str) -> None:
    store = Store()
    add_pod(store, "p")
    add_budget(store, **status)
    error = refusal(store)
    assert error.status == 429
    assert error.body["details"] == {"causes": [{"reason": "DisruptionBudget", "message": message}]}


@pytest.mark.parametrize(
    "status",
    [OPEN | {"disruptionsAllowed": -1}, OPEN | {"disruptedPods": {f"p{number}": "" for number in range(2001)}}],
)
def test_a_budget_that_makes_no_sense_is_forbidden(status: dict[str, Any]) -> None:
    store = Store()
    add_pod(store, "p")
    add_budget(store, **status)
    assert refusal(store).status == 403


def test_dry_runs_all_see_the_same_budget() -> None:
    store = Store()
    add_pod(store, "p")
    add_pod(store, "q")
    add_budget(store, **OPEN)
    version = store.resource_version
    for name in ("p", "q", "p"):
        assert evict(store, "default", name, body(name, dryRun=["All"]))["code"] == 201
    assert evict(store, "default", "p", body(), dry_run=True)["code"] == 201
    assert store.resource_version == version


@pytest.mark.parametrize("precondition", [{"uid": "another"}, {"resourceVersion": "1"}])
def test_a_failed_precondition_burns_the_budget(precondition: dict[str, str]) -> None:
    # Recorded on a real 1.37 (mark "wrong UID burns the budget")
    store = Store()
    pod = add_pod(store, "p")
    add_budget(store, **OPEN)
    assert refusal(store, preconditions=precondition).status == 409
    assert budget(store)["disruptionsAllowed"] == 0
    assert list(budget(store)["disruptedPods"]) == ["p"]
    assert store.get("pods", "p") is pod
    assert refusal(store, preconditions={"uid": pod["metadata"]["uid"]}).status == 429


def test_a_failed_precondition_of_a_dry_run_burns_nothing() -> None:
    store = Store()
    add_pod(store, "p")
    add_budget(store, **OPEN)
    assert refusal(store, preconditions={"uid": "another"}, dryRun=["All"]).status == 409
    assert budget(store)["disruptionsAllowed"] == 1


def test_right_preconditions() -> None:
    store = Store()
    meta = add_pod(store, "p")["metadata"]
    evict(store, "default", "p", body(preconditions={"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}))
    assert is_going(store)


def test_a_namespace_that_goes_away_says_so() -> None:
    store = Store()
    store.create("namespaces", {"metadata": {"name": "n"}})
    store.create("configmaps", {"metadata": {"name": "held", "finalizers": ["x"]}}, namespace="n")
    store.delete("namespaces", "n")
    with pytest.raises(ApiError) as error:
        evict(store, "n", "p", body())
    assert error.value.status == 403
    assert error.value.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
