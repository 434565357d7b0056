"""Small objects for tests."""

from __future__ import annotations

from typing import Any

from chaosrunner.lab.embedded.store import Store

Json = dict[str, Any]
SPEC: Json = {"containers": [{"name": "engine", "image": "lab/model:1"}]}


def template() -> Json:
    return {
        "selector": {"matchLabels": {"app": "chat"}},
        "template": {"metadata": {"labels": {"app": "chat"}}, "spec": SPEC},
    }


def owned_by(owner: Json) -> list[Json]:
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    return [reference | {"controller": True, "blockOwnerDeletion": True}]


def add_pod(store: Store, name: str, *, node: str | None = "node1", ready: bool = True, **meta: Any) -> Json:
    """A Pod with label app=chat: Running on a node, or Pending without one."""
    store.create("pods", {"metadata": {"name": name, "labels": {"app": "chat"}} | meta, "spec": SPEC})
    if node:
        store.bind("default", name, node)

        def run(pod: Json) -> None:
            pod["status"]["phase"] = "Running"
            pod["status"]["conditions"].append({"type": "Ready", "status": "True" if ready else "False"})

        store.mutate("pods", name, "default", run, subresource="status")
    return store.get("pods", name)


def add_budget(
    store: Store, name: str = "chat", *, observed: bool = True, policy: str | None = None, **status: Any
) -> Json:
    """A PodDisruptionBudget over app=chat with the status that a controller would have given it."""
    spec: Json = {"minAvailable": 1, "selector": {"matchLabels": {"app": "chat"}}}
    if policy:
        spec["unhealthyPodEvictionPolicy"] = policy
    store.create("poddisruptionbudgets", {"metadata": {"name": name}, "spec": spec})

    def observe(budget: Json) -> None:
        budget["status"] |= {"observedGeneration": 1 if observed else 0} | status
        condition = {"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods"}
        budget["status"].setdefault("conditions", [condition])

    return store.mutate("poddisruptionbudgets", name, "default", observe, subresource="status")
