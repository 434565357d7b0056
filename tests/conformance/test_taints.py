"""Taints: what a NoExecute taint does to the Pods of a node, tolerated for ever, for a while, or not at all.

On a node that is an object alone, so that no other test's Pods are there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.scripts import pod
from tests.labs import Json, Namespace

KEY = "drill.example/away"
SHORT = 3


@pytest.fixture
def node(ns: Namespace) -> Iterator[str]:
    name = f"n-{ns.name}"
    ns.do("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    # Its silence counts from here: it is not unreachable before the test is over.
    ns.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    # A Pod that is to go because of one taint is not looked at again for another: none is there when Pods come.
    ns.until(lambda: not thrown_out(ns, name), what=f"{name} is unreachable")
    yield name
    ns.do("DELETE", f"/api/v1/nodes/{name}")


def thrown_out(ns: Namespace, node: str) -> list[Json]:
    """Its NoExecute taints."""
    taints = ns.do("GET", f"/api/v1/nodes/{node}")["spec"].get("taints") or []
    return [one for one in taints if one["effect"] == "NoExecute"]


def taint(ns: Namespace, node: str, *taints: Json) -> None:
    body = {"spec": {"taints": list(taints) or None}}
    ns.patch(f"/api/v1/nodes/{node}", body, "merge")


def going(ns: Namespace) -> set[str]:
    return {entry["metadata"]["name"] for entry in ns.items("pods") if "deletionTimestamp" in entry["metadata"]}


def test_noexecute_deletes_what_does_not_tolerate_it(ns: Namespace, node: str) -> None:
    forever: dict[str, Any] = {"key": KEY, "operator": "Exists", "effect": "NoExecute"}
    tolerating = {"none": [], "short": [forever | {"tolerationSeconds": SHORT}], "forever": [forever]}
    for name, tolerations in tolerating.items():
        ns.create("pods", pod(name, nodeName=node, tolerations=tolerations))
    sent = time.monotonic()
    taint(ns, node, {"key": KEY, "value": "x", "effect": "NoExecute"})
    ns.until(lambda: "none" in going(ns), what="a Pod without a toleration stays")
    assert "short" not in going(ns)
    ns.until(lambda: "short" in going(ns), what="a Pod that tolerates for a while stays")
    assert SHORT - 0.5 <= time.monotonic() - sent <= SHORT + 4
    assert "forever" not in going(ns)
    (mark,) = (entry for entry in ns.get("pods/none")["status"]["conditions"] if entry["type"] == "DisruptionTarget")
    assert (mark["status"], mark["reason"]) == ("True", "DeletionByTaintManager")


def test_a_taint_that_is_gone_in_time_deletes_nothing(ns: Namespace, node: str) -> None:
    patient = {"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SHORT}
    ns.create("pods", pod("short", nodeName=node, tolerations=[patient]))
    ns.create("pods", pod("none", nodeName=node))
    taint(ns, node, {"key": KEY, "effect": "NoExecute"})
    ns.until(lambda: "none" in going(ns), what="a Pod without a toleration stays")
    taint(ns, node)
    time.sleep(SHORT + 1)
    assert going(ns) == {"none"}


@pytest.mark.parametrize("effect", ["NoSchedule", "PreferNoSchedule"])
def test_other_effects_leave_running_pods_alone(ns: Namespace, node: str, effect: str) -> None:
    ns.create("pods", pod("p", nodeName=node))
    taint(ns, node, {"key": KEY, "effect": effect})
    time.sleep(1)
    assert going(ns) == set()
