from __future__ import annotations

from random import Random
from typing import Any

import pytest

from chaosrunner.errors import UserError
from chaosrunner.plan.targets import Candidate, NodeCandidate, amount, candidate, choose, choose_nodes, excluded
from chaosrunner.playbook.base import Quantity
from chaosrunner.playbook.selectors import selects
from chaosrunner.playbook.steps import Cordon, Drain, NodeTarget, Uncordon


def pod(name: str, phase: str = "Running", namespace: str = "demo", **metadata: Any) -> dict[str, Any]:
    labels = {"app": "chat"}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"u-{name}", "labels": labels, **metadata},
        "spec": {"nodeName": "n1"},
        "status": {"phase": phase, "podIP": "10.0.0.1"},
    }


def frozen(name: str, created: str = "") -> Candidate:
    return Candidate(name=name, namespace="demo", uid=f"u-{name}", created=created)


def test_candidates_are_the_running_pods_of_the_namespace() -> None:
    # chaos-mesh/chaos-mesh#4476, #4276, #1465: half of two Running Pods is one, whatever else the selector finds.
    pods = [
        pod("a"),
        pod("b"),
        pod("done", phase="Succeeded"),
        pod("going", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("c", namespace="other"),
    ]
    reasons = [excluded(p, namespace="demo", labels=None, namespaces=()) for p in pods]
    assert reasons == [None, None, "phase Succeeded", "terminating", "in namespace other"]
    left = [candidate(p) for p, reason in zip(pods, reasons, strict=True) if reason is None]
    assert [c.uid for c in left] == ["u-a", "u-b"]
    assert len(choose(left, pods=Quantity.read("50%"), pick="random", in_flight={}, random=Random(1))) == 1


def test_the_drills_limits_take_candidates_away() -> None:
    inside, outside = pod("a"), pod("b")
    inside["metadata"]["labels"] = {"app": "chat", "chaos": "yes"}
    assert excluded(inside, namespace="demo", labels="chaos=yes", namespaces=["demo"]) is None
    assert "chaos=yes" in (excluded(outside, namespace="demo", labels="chaos=yes", namespaces=()) or "")
    assert "outside" in (excluded(inside, namespace="demo", labels=None, namespaces=["staging"]) or "")


@pytest.mark.parametrize(("pods", "available"), [(4, 3), ("all", 0), ("one", 0), ("50%", 0)])
def test_amounts_that_cannot_be_taken(pods: int | str, available: int) -> None:
    with pytest.raises(UserError):
        amount(Quantity.read(pods), available)


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        ("app=chat", {"app": "chat"}, True),
        ("app==chat, tier!=batch", {"app": "chat"}, True),
        ("app=chat,tier!=batch", {"app": "chat", "tier": "batch"}, False),
        ("tier in (web, api),app", {"app": "", "tier": "api"}, True),
        ("tier notin (web,api)", {}, True),
        ("tier notin (web,api)", {"tier": "web"}, False),
        ("!canary", {"canary": "yes"}, False),
        ("! canary", {}, True),
        ("example.com/pool", {"example.com/pool": "gpu"}, True),
        ("pool", {}, False),
        ("pool=", {"pool": ""}, True),
    ],
)
def test_selectors(selector: str, labels: dict[str, str], selected: bool) -> None:
    assert selects(selector, labels) is selected


def test_the_pick_orders_and_ties_are_broken_by_name() -> None:
    pool = [
        frozen("c", "2026-01-01T00:00:02Z"),
        frozen("a", "2026-01-01T00:00:01Z"),
        frozen("b", "2026-01-01T00:00:03Z"),
    ]
    flying = {"a": 1, "b": 2, "c": 2}

    def names(pick: Any) -> list[str]:
        return [c.name for c in choose(pool, pods=Quantity.read(2), pick=pick, in_flight=flying, random=Random(0))]

    assert names("most_in_flight") == ["b", "c"]
    assert names("least_in_flight") == ["a", "b"]
    assert names("oldest") == ["a", "c"]
    assert names("newest") == ["b", "c"]


def test_a_random_choice_takes_each_pod_once_and_every_pod_sometimes() -> None:
    pool = [frozen(n) for n in "abcd"]
    random = Random(7)
    seen = set()
    for _ in range(60):
        picked = [c.name for c in choose(pool, pods=Quantity.read(2), pick="random", in_flight={}, random=random)]
        assert len(set(picked)) == 2
        seen.update(picked)
    assert seen == set("abcd")


def test_unknown_is_no_match() -> None:
    pool = [frozen("a"), frozen("b")]
    known = {"a": None, "b": True}
    picked = choose(
        pool, pods=Quantity.read(1), pick="oldest", in_flight={}, random=Random(0), matches=lambda c: known[c.name]
    )
    assert [c.name for c in picked] == ["b"]


def host(name: str, *pods: Candidate, **labels: str) -> NodeCandidate:
    return NodeCandidate(name=name, uid=f"u-{name}", labels=labels, pods=list(pods))


NODES = [host("n1", frozen("a"), frozen("b"), pool="gpu"), host("n2", frozen("c"), pool="cpu"), host("n3", pool="gpu")]


@pytest.mark.parametrize(
    ("body", "cordoned", "chosen"),
    [
        (Drain(), (), ["n2"]),  # the one with most streams of its Pods
        (Drain(pick="least_in_flight"), (), ["n1"]),
        (Drain(nodes=Quantity.read("all")), (), ["n2", "n1"]),  # only nodes that run the workload
        (Drain(selector="pool=gpu"), (), ["n1"]),
        (Drain(node="n3"), (), ["n3"]),
        (Drain(of="cordoned"), ("n3",), ["n3"]),
        (Uncordon(), ("n1", "n3"), ["n1", "n3"]),
        (Uncordon(nodes=Quantity.read(1)), ("n1", "n3"), ["n1"]),
    ],
)
def test_nodes(body: NodeTarget, cordoned: tuple[str, ...], chosen: list[str]) -> None:
    flying = {"a": 1, "b": 1, "c": 3}
    picked = choose_nodes(body, NODES, in_flight=flying, random=Random(0), cordoned=cordoned)
    assert [node.name for node in picked] == chosen


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (Drain(node="n9"), "no node n9"),
        (Drain(of="cordoned"), "cordoned no node"),
        (Cordon(selector="pool=tpu"), "no node runs"),
        (Cordon(nodes=Quantity.read(3)), "asks for 3"),
    ],
)
def test_nodes_that_cannot_be_taken(body: NodeTarget, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        choose_nodes(body, NODES, in_flight={}, random=Random(0))
