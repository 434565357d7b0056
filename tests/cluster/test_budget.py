from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.cluster.budget import (
    Budgets,
    allowed,
    assess,
    desired_healthy,
    matches,
    predict,
    risks,
    scaled,
)

from .server import DATA

CHAT = {"matchLabels": {"app": "chat"}}


def make_pod(name: str, *, app: str = "chat", kind: str | None = "ReplicaSet", node: str = "n1", ready: bool = True,
             phase: str = "Running", deleting: bool = False, **labels: str) -> dict[str, Any]:  # fmt: skip
    owner = [{"kind": kind, "name": f"{name}-owner", "uid": f"o-{kind}", "controller": True}] if kind else []
    return {
        "metadata": {
            "name": name,
            "namespace": "demo",
            "uid": f"uid-{name}",
            "labels": {"app": app, **labels},
            "ownerReferences": owner,
            **({"deletionTimestamp": "2026-03-02T10:00:00Z"} if deleting else {}),
        },
        "spec": {"nodeName": node},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def make_pdb(name: str, spec: dict[str, Any], *, condition: str | None = None, generation: int = 1, observed: int = 1,
             **status: int) -> dict[str, Any]:  # fmt: skip
    conditions = [{"type": "DisruptionAllowed", "status": "False", "reason": condition}] if condition else []
    return {
        "metadata": {"name": name, "namespace": "demo", "generation": generation},
        "spec": {"selector": CHAT, **spec},
        "status": {"observedGeneration": observed, "conditions": conditions, **status},
    }


@pytest.mark.parametrize(
    ("spec", "desired", "permitted"),
    [
        # case B4 v: percentages are rounded up, for both fields
        ({"minAvailable": "50%"}, 2, 1),
        ({"maxUnavailable": "30%"}, 2, 1),
        ({"minAvailable": "67%"}, 3, 0),
        ({"minAvailable": 2}, 2, 1),
        ({"maxUnavailable": 0}, 3, 0),
        ({"maxUnavailable": "100%"}, 0, 3),
    ],
)
def test_three_healthy_of_three(spec: dict[str, Any], desired: int, permitted: int) -> None:
    assert desired_healthy(spec, 3) == desired
    assert allowed(spec, 3, 3) == permitted


@given(percent=st.integers(0, 100), expected=st.integers(0, 1000))
def test_a_percentage_is_rounded_up(percent: int, expected: int) -> None:
    value = scaled(f"{percent}%", expected)
    assert value - 1 < percent * expected / 100 <= value


def test_arithmetic_agrees_with_every_recorded_budget() -> None:
    checked = 0
    for line in (DATA / "k8s-1.37/watch-pdbs.jsonl").read_text().splitlines():
        pdb = json.loads(line).get("object")
        status = (pdb or {}).get("status") or {}
        if not pdb or "disruptedPods" in status or "observedGeneration" not in status:
            continue  # between a spent disruption and its sync the server's own figures run ahead of the controller's
        expected, healthy = status["expectedPods"], status["currentHealthy"]
        assert desired_healthy(pdb["spec"], expected) == status["desiredHealthy"], pdb["metadata"]["name"]
        assert allowed(pdb["spec"], expected, healthy) == status["disruptionsAllowed"], pdb["metadata"]["name"]
        checked += 1
    assert checked > 20


def test_selectors() -> None:
    assert matches({}, {"a": "b"})
    assert not matches(None, {"a": "b"})
    among = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["chat", "embed"]}]}
    assert matches(among, {"app": "embed"})
    assert not matches(among, {})
    no_role = {"matchLabels": {"app": "chat"}, "matchExpressions": [{"key": "role", "operator": "DoesNotExist"}]}
    assert matches(no_role, {"app": "chat"})
    assert not matches(no_role, {"app": "chat", "role": "x"})
    assert matches({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["chat"]}]}, {})
    assert matches({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, {"app": ""})
    with pytest.raises(ValueError, match="Gt"):
        matches({"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}, {})


# --- case B4: budgets that do not do what they seem to ---


def test_selector_that_also_matches_a_job() -> None:
    # bucketeer-io/bucketeer#2609, kubernetes/kubernetes#70312
    pods = [make_pod("chat-a"), make_pod("chat-b"), make_pod("warm-1", kind="Job")]
    pdb = make_pdb("chat", {"maxUnavailable": 1}, condition="SyncFailed", disruptionsAllowed=0, expectedPods=0)
    verdict = assess(pdb, pods)
    assert (verdict.verdict, verdict.culprits, verdict.blocks) == ("pdb_sync_failed", ("warm-1",), True)


def test_empty_selector_matches_every_pod_of_its_namespace() -> None:
    # kubernetes/kubernetes#119731, #119732
    pdb = make_pdb("all", {"selector": {}, "minAvailable": 1}, disruptionsAllowed=0, expectedPods=1, currentHealthy=1,
                   desiredHealthy=1)  # fmt: skip
    (predicted,) = predict([make_pod("chat-a")], [pdb])
    assert (predicted.answer, predicted.pdbs) == ("blocked_by_budget", ("all",))


def test_selector_with_a_typo_protects_nothing_and_blocks_nothing() -> None:
    # jupyterhub/zero-to-jupyterhub-k8s#1934
    pdb = make_pdb("chat", {"selector": {"matchLabels": {"app": "caht"}}, "minAvailable": 1}, disruptionsAllowed=0,
                   expectedPods=0)  # fmt: skip
    verdict = assess(pdb, [make_pod("chat-a")], workload_replicas=1)
    assert (verdict.verdict, verdict.blocks) == ("matches_nothing", False)
    assert [risk.code for risk in risks([make_pod("chat-a"), make_pod("chat-b", node="n2")], [pdb])] == ["no_budget"]


def test_budget_of_a_workload_scaled_to_zero_is_no_alarm() -> None:
    # HolmesGPT/holmesgpt#2361: allowed 0 blocks only where Pods are expected
    pdb = make_pdb("chat", {"minAvailable": 1}, disruptionsAllowed=0, expectedPods=0)
    verdict = assess(pdb, [], workload_replicas=0)
    assert (verdict.verdict, verdict.blocks) == ("scaled_to_zero", False)


def test_one_of_one() -> None:
    # nais/naiserator#268, flexprice/flexprice#2789
    pdb = make_pdb("chat", {"minAvailable": 1}, disruptionsAllowed=0, expectedPods=1, currentHealthy=1)
    verdict = assess(pdb, [make_pod("chat-a")])
    assert (verdict.verdict, verdict.blocks) == ("drain_would_never_finish", True)
    assert [risk.code for risk in risks([make_pod("chat-a")], [pdb])] == ["single_replica"]


def test_too_few_healthy_and_not_observed_and_ok() -> None:
    pods = [make_pod(f"chat-{n}") for n in "abc"]
    short = make_pdb("chat", {"minAvailable": 2}, disruptionsAllowed=0, expectedPods=3, currentHealthy=2)
    assert assess(short, pods).verdict == "blocked_now"
    changed = make_pdb("chat", {"minAvailable": 2}, generation=2, disruptionsAllowed=1, expectedPods=3)
    assert assess(changed, pods).verdict == "not_observed"
    good = make_pdb("chat", {"minAvailable": 2}, disruptionsAllowed=1, expectedPods=3, currentHealthy=3)
    assert assess(good, pods) == assess(good, pods)
    assert (assess(good, pods).verdict, assess(good, pods).blocks) == ("ok", False)


# --- predictions ---


def budget(permitted: int, **more: Any) -> dict[str, Any]:
    figures = {"disruptionsAllowed": permitted, "expectedPods": 3, "currentHealthy": 3, "desiredHealthy": 2}
    return make_pdb("chat", {"minAvailable": 2, **more}, **figures)


def test_the_second_eviction_is_blocked_although_each_dry_run_says_yes() -> None:
    answers = predict([make_pod("chat-a"), make_pod("chat-b"), make_pod("chat-c")], [budget(1)])
    assert [p.answer for p in answers] == ["accepted", "blocked_by_budget", "blocked_by_budget"]
    assert [p.spends for p in answers] == [True, False, False]
    assert "after those before it" in answers[1].reason


def test_pod_under_two_budgets() -> None:
    # kubernetes/kubernetes#75957, gardener/gardener-extension-shoot-dns-service#176
    dns = make_pod("dns-7", app="dns", role="ctl")
    external = make_pdb("dns-ext", {"selector": {"matchLabels": {"app": "dns"}}}, disruptionsAllowed=1)
    control = make_pdb("dns-ctl", {"selector": {"matchLabels": {"app": "dns", "role": "ctl"}}}, disruptionsAllowed=1)
    (predicted,) = predict([dns], [external, control])
    assert (predicted.answer, predicted.pdbs) == ("multiple_budgets", ("dns-ctl", "dns-ext"))
    overlap = next(risk for risk in risks([dns, make_pod("o", app="dns")], [external, control]) if risk.pdbs)
    assert (overlap.code, overlap.pods, overlap.pdbs) == ("multiple_budgets", ("dns-7",), ("dns-ctl", "dns-ext"))
    # Pending or deleting Pods: budgets are not looked at
    pending, deleting = make_pod("p", app="dns", role="ctl", phase="Pending"), make_pod("d", app="dns", deleting=True)
    assert [p.answer for p in predict([pending, deleting], [external, control])] == ["accepted", "already_terminating"]


def test_unready_pods() -> None:
    bad = make_pod("chat-a", ready=False)
    broken = make_pdb(
        "chat", {"minAvailable": 1}, disruptionsAllowed=0, expectedPods=1, currentHealthy=0, desiredHealthy=1
    )
    assert Budgets([broken]).predict(bad).answer == "blocked_by_budget"
    broken["spec"]["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    assert Budgets([broken]).predict(bad).answer == "accepted"
    healthy = Budgets([budget(1)])
    assert healthy.predict(bad).spends is False
    assert healthy.predict(make_pod("chat-b")).answer == "accepted"


def test_budget_changed_and_not_observed() -> None:
    pdb = make_pdb("chat", {"minAvailable": 2}, generation=2, disruptionsAllowed=1)
    assert predict([make_pod("chat-a")], [pdb])[0].answer == "budget_not_observed"


def test_another_namespace_has_budgets_of_its_own() -> None:
    pdb = budget(0)
    pdb["metadata"]["namespace"] = "other"
    assert predict([make_pod("chat-a")], [pdb])[0].reason == "no budget matches"


def test_all_replicas_on_one_node_without_a_budget() -> None:
    # Systemorph/MeshWeaver#3772: a drain was an outage of 90 s
    found = risks([make_pod("x"), make_pod("y"), make_pod("done", phase="Succeeded", node="n2")], [])
    assert [(risk.code, risk.pods) for risk in found] == [("all_on_one_node", ("x", "y")), ("no_budget", ("x", "y"))]
    assert "n1" in found[0].detail


def test_bare_pod() -> None:
    found = risks([make_pod("x", kind=None), make_pod("y", node="n2")], [budget(1)])
    assert [(risk.code, risk.pods) for risk in found] == [("bare_pod", ("x",))]
