"""A drill of each kind, with phases of a second, and how somebody else changes what it changed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaosrunner.cluster import Cluster
from chaosrunner.cluster.resources import DEPLOYMENTS, NETWORK_POLICIES, NODES, Resource, meta
from tests.torture.state import Snapshot, toxics, toxiproxy
from tests.torture.world import Lab

MERGE_PATCH = "application/merge-patch+json"

HOLD = 0.5
"""Seconds that a fault lasts."""

Foreign = Callable[[Cluster, Lab, Snapshot], Awaitable[Snapshot]]
"""Changes what the drill has changed, as somebody else would; what of the state is then as they want it."""


Steps = Callable[[Path, float], list[dict[str, Any]]]
"""Steps of a drill; the folder is for its marks, the fault lasts so many seconds."""


@dataclass(frozen=True)
class Kind:
    """One kind of drill."""

    name: str
    steps: Steps
    """What it does after its baseline."""
    drill: dict[str, Any]
    """What its drill says beside the usual."""
    foreign: tuple[Foreign, ...] = ()
    moments: int = 7
    """How many instants it tells of at least (`moments`): announced, sent, answered, applied, and back again."""
    heals: bool = False
    """Whether the target ends it by itself."""


def hold(seconds: float) -> dict[str, Any]:
    return {"hold": {"for": f"{seconds}s"}}


async def _patch(cluster: Cluster, resource: Resource, name: str, namespace: str | None, body: Any) -> None:
    answer = await cluster.request(
        "PATCH",
        resource.path(namespace, name),
        body=body,
        content_type=MERGE_PATCH,
        query={"fieldManager": "somebody"},
    )
    assert answer.ok, answer.message


def _changed_node(now: Snapshot, part: str) -> str:
    return next(key.split("/")[1] for key in now if key.startswith("node/") and key.split("/")[2] == part)


async def label_node(cluster: Cluster, lab: Lab, now: Snapshot) -> Snapshot:
    name = next(key.split("/")[1] for key in now if key.startswith("node/") and "/undo/" in key)
    await _patch(cluster, NODES, name, None, {"metadata": {"labels": {"somebody": "else"}}})
    return {f"node/{name}/label/somebody": "else"}


async def cordon_too(cluster: Cluster, lab: Lab, now: Snapshot) -> Snapshot:
    """Brings the node back and cordons it again: to write the same value over ours changes nothing, and the API server
    notes no writer for it."""
    name = _changed_node(now, "unschedulable")
    for wanted in (None, True):
        await _patch(cluster, NODES, name, None, {"spec": {"unschedulable": wanted}})
    return {f"node/{name}/unschedulable": True}


async def taint_too(cluster: Cluster, lab: Lab, now: Snapshot) -> Snapshot:
    name = _changed_node(now, "taint")
    node = (await cluster.get(NODES, name)).body
    other = {"key": "somebody", "value": "else", "effect": "PreferNoSchedule"}
    taints = [*(node["spec"].get("taints") or []), other]
    body = {"metadata": {"resourceVersion": meta(node)["resourceVersion"]}, "spec": {"taints": taints}}
    await _patch(cluster, NODES, name, None, body)
    return {f"node/{name}/taint/somebody:PreferNoSchedule": "else"}


async def scale_too(cluster: Cluster, lab: Lab, now: Snapshot) -> Snapshot:
    await _patch(cluster, DEPLOYMENTS, lab.deployment, lab.namespace, {"spec": {"replicas": 4}})
    return {f"deployment/{lab.deployment}/replicas": 4}


async def change_policy(cluster: Cluster, lab: Lab, now: Snapshot) -> Snapshot:
    name = next(key.split("/")[1] for key in now if key.startswith("policy/"))
    body = {"spec": {"podSelector": {"matchLabels": {"somebody": "else"}}}}
    await _patch(cluster, NETWORK_POLICIES, name, lab.namespace, body)
    policy = (await cluster.get(NETWORK_POLICIES, name, lab.namespace)).body
    return {f"policy/{name}": json.dumps(policy["spec"], sort_keys=True)}


async def change_toxic(cluster: Cluster, lab: Lab, now: Snapshot) -> Snapshot:
    key = next(key for key in now if key.startswith("toxic/"))
    _, proxy, name = key.split("/")
    toxiproxy(lab, "POST", f"/proxies/{proxy}/toxics/{name}", {"attributes": {"latency": 7}})
    return {key: toxics(lab)[key]}


def _network(effect: dict[str, Any]) -> Steps:
    return lambda _, seconds: [
        {"network": {"pods": 1, "for": f"{seconds}s", "peer": "everywhere", **effect}},
        hold(seconds + 0.2),
    ]


def _touch(folder: Path, seconds: float) -> list[dict[str, Any]]:
    mark = str(folder / "marks" / "{{ pod }}")
    command = {
        "pods": 1,
        "apply": ["touch", mark],
        "undo": ["rm", "-f", mark],
        "verify_undone": ["test", "!", "-e", mark],
        "for": f"{seconds}s",
    }
    return [{"command": command}, hold(seconds + 0.2)]


def _held(step: dict[str, Any]) -> Steps:
    """A step whose change stays until the end of the run."""
    return lambda _, seconds: [step, hold(seconds)]


def _timed(step: str, **options: Any) -> Steps:
    """A step that ends by itself before the run does."""
    return lambda _, seconds: [{step: {**options, "for": f"{seconds}s"}}, hold(seconds + 0.2)]


def _freeze(_: Path, seconds: float) -> list[dict[str, Any]]:
    return [{"freeze": {"pods": 1, "for": f"{max(1.5, seconds)}s"}}, hold(seconds)]


TAINT = {"key": "torture", "value": "x"}

TOXIPROXY = {"drivers": {"network": "toxiproxy"}}
KINDS = {
    kind.name: kind
    for kind in (
        Kind("cordon", _held({"cordon": {"nodes": 1, "of": "workload"}}), {}, (label_node,)),
        Kind("cordon-again", _held({"cordon": {"nodes": 1, "of": "workload"}}), {}, (cordon_too,)),
        Kind("cordon-all", _held({"cordon": {"nodes": "all", "of": "workload"}}), {}, (label_node,)),
        Kind("drain", _held({"drain": {"nodes": 1, "of": "workload", "retry_every": "200ms"}}), {}, (label_node,)),
        Kind("taint", _timed("taint", nodes=1, of="workload", **TAINT), {}, (label_node, taint_too)),
        Kind("scale", _timed("scale", by=1), {}, (scale_too,)),
        Kind("scale-down", _held({"scale": {"by": -1}}), {}, (scale_too,)),
        Kind("restart", _held({"rollout-restart": {}}), {}, moments=2),
        Kind("evict", _held({"evict": {"pods": 1}}), {}, moments=2),
        Kind("delete-pod", _held({"delete-pod": {"pods": 1}}), {}, moments=2),
        Kind("freeze", _freeze, {}, moments=4, heals=True),
        Kind("kill", _held({"kill": {"pods": 1}}), {}, moments=2),
        Kind("command", _touch, {}),
        Kind("toxiproxy-latency", _network({"latency": "50ms", "peer": "gateway"}), TOXIPROXY, (change_toxic,)),
        Kind("toxiproxy-partition", _network({"partition": True, "peer": "gateway"}), TOXIPROXY),
        Kind(
            "network-policy",
            _network({"partition": True, "peer": {"cidr": ["10.0.0.0/8"]}, "direction": "in"}),
            {"drivers": {"network": "network-policy"}},
            (change_policy,),
        ),
    )
}
"""On both labs."""

IN_THE_POD = {"drivers": {"network": "ephemeral-container"}}
EFFECTS: dict[str, dict[str, Any]] = {
    "partition": {"partition": True},
    "reject": {"reject": True},
    "loss": {"loss": "30%"},
    "rate": {"rate": "1mbit"},
    "isolate": {"partition": True, "ready": "lost"},
}
REAL = KINDS | {
    f"pod-{name}": Kind(f"pod-{name}", _network(effect), IN_THE_POD, moments=4, heals=True)
    for name, effect in EFFECTS.items()
}
"""On the real lab, where Pods have networks of their own."""
