"""Controllers upon a store alone: no processes, a few lines stand in for the node agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from chaosrunner.lab.embedded.controllers.deployment import DeploymentController
from chaosrunner.lab.embedded.controllers.disruption import DisruptionController
from chaosrunner.lab.embedded.controllers.endpointslice import EndpointSliceController
from chaosrunner.lab.embedded.controllers.nodes import NodeController, TaintEvictionController
from chaosrunner.lab.embedded.controllers.podgc import PodGarbageCollector
from chaosrunner.lab.embedded.controllers.queue import Controller
from chaosrunner.lab.embedded.controllers.replicaset import ReplicaSetController, rank_for_deletion
from chaosrunner.lab.embedded.controllers.scheduler import Scheduler
from chaosrunner.lab.embedded.eviction import evict
from chaosrunner.lab.embedded.store import ApiError, Store, timestamp
from chaosrunner.lab.objects import Json

pytestmark = pytest.mark.anyio


class Cluster:
    """A store with running controllers, and a clock that can be moved."""

    def __init__(self) -> None:
        self.shift = timedelta()
        self.store = Store(now=lambda: datetime.now(UTC) + self.shift)

    async def settle(self) -> None:
        """Let the controllers work until they have nothing more to do."""
        version = -1
        while version != self.store.resource_version:
            version = self.store.resource_version
            await anyio.sleep(0.03)

    def nodes(self, *names: str, **spec: Any) -> None:
        for name in names:
            labels = {"kubernetes.io/hostname": name}
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": None, "lastTransitionTime": None}
            self.store.create(
                "nodes", {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"conditions": [ready]}}
            )

    def deployment(self, name: str = "chat", replicas: int = 3, pod: Json | None = None, **spec: Any) -> None:
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": POD | (pod or {})}
        self.store.create(
            "deployments",
            {
                "metadata": {"name": name},
                "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template, **spec},
            },
        )

    def pod(self, name: str, labels: dict[str, str] | None = None, *, owner: Json | None = None, **spec: Any) -> Json:
        meta = {"name": name, "labels": labels or {}, "ownerReferences": [owner] if owner else []}
        return self.store.create("pods", {"metadata": meta, "spec": POD | spec})

    def pods(self, **labels: str) -> list[Json]:
        return [pod for pod in self.store.list("pods") if labels.items() <= pod["metadata"].get("labels", {}).items()]

    def make_ready(self, *names: str, ready: bool = True) -> None:
        """Say of Pods what an agent would say: running, with an address, ready or not."""
        for name in names:
            number = abs(hash(name)) % 250

            def change(new: Json, number: int = number) -> None:
                now = timestamp(self.store.now())
                conditions = [entry for entry in new["status"].get("conditions", []) if entry["type"] != "Ready"]
                state = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now}
                new["status"] |= {
                    "phase": "Running",
                    "podIP": f"10.0.0.{number}",
                    "conditions": [*conditions, state],
                }

            self.store.mutate("pods", name, "default", change, subresource="status")

    async def make_all_ready(self) -> None:
        await self.settle()
        self.make_ready(*(pod["metadata"]["name"] for pod in self.pods()))
        await self.settle()

    def budget(self, name: str = "chat", app: str | None = None, **spec: Any) -> None:
        selector = {"matchLabels": {"app": app or name}}
        self.store.create("poddisruptionbudgets", {"metadata": {"name": name}, "spec": {"selector": selector, **spec}})

    def budget_status(self, name: str = "chat") -> Json:
        return dict(self.store.get("poddisruptionbudgets", name)["status"])

    def node_of(self, pod: Json) -> str:
        return str(self.store.get("pods", pod["metadata"]["name"])["spec"].get("nodeName", ""))

    def events(self, name: str) -> list[tuple[str, str]]:
        return [
            (event["reason"], event["message"])
            for event in self.store.list("events")
            if event["involvedObject"]["name"] == name
        ]


POD: Json = {"containers": [{"name": "engine", "image": "x", "ports": [{"name": "http", "containerPort": 8000}]}]}


@asynccontextmanager
async def running() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    store = cluster.store
    controllers: list[Controller] = [
        DeploymentController(store),
        ReplicaSetController(store),
        Scheduler(store),
        EndpointSliceController(store),
        DisruptionController(store),
        NodeController(store, grace=60, period=60),
        TaintEvictionController(store),
        PodGarbageCollector(store, quarantine=0),
    ]
    async with anyio.create_task_group() as group:
        for controller in controllers:
            controller.start()
            group.start_soon(controller.run)
        yield cluster
        group.cancel_scope.cancel()


# -- disruption --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "desired", "allowed"),
    [
        ({"minAvailable": "50%"}, 2, 1),
        ({"maxUnavailable": "30%"}, 2, 1),
        ({"minAvailable": "67%"}, 3, 0),
        ({"minAvailable": 2}, 2, 1),
        ({"maxUnavailable": 1}, 2, 1),
    ],
)
async def test_budgets_round_percentages_up(spec: Json, desired: int, allowed: int) -> None:
    # kubernetes/kubernetes#99598, bucketeer-io/bucketeer#2609: what budgets really allow of 3 healthy Pods.
    async with running() as cluster:
        cluster.nodes("n1", "n2", "n3")
        cluster.deployment()
        cluster.budget(**spec)
        await cluster.make_all_ready()
        status = cluster.budget_status()
        assert (status["expectedPods"], status["currentHealthy"]) == (3, 3)
        assert (status["desiredHealthy"], status["disruptionsAllowed"]) == (desired, allowed)


async def test_a_budget_of_one_replica_allows_nothing() -> None:
    # jupyterhub/zero-to-jupyterhub-k8s#1934
    async with running() as cluster:
        cluster.nodes("n1")
        cluster.deployment(replicas=1)
        cluster.budget(minAvailable=1)
        await cluster.make_all_ready()
        assert cluster.budget_status()["disruptionsAllowed"] == 0


async def test_a_budget_that_matches_nothing_expects_nothing() -> None:
    async with running() as cluster:
        cluster.budget("nothing", app="typo", minAvailable=1)
        await cluster.settle()
        status = cluster.budget_status("nothing")
        assert (status["expectedPods"], status["disruptionsAllowed"], status["desiredHealthy"]) == (0, 0, 1)
        assert ("NoPods", "No matching pods found") in cluster.events("nothing")


async def test_a_job_pod_makes_maxunavailable_fail_to_sync() -> None:
    # bucketeer-io/bucketeer#2609, kubernetes/kubernetes#70312: a selector that also matches a Job's Pods.
    async with running() as cluster:
        cluster.nodes("n1")
        cluster.deployment(replicas=2)
        job = {"apiVersion": "batch/v1", "kind": "Job", "name": "load", "uid": "j1", "controller": True}
        cluster.pod("load-x1", {"app": "chat"}, owner=job)
        cluster.budget(maxUnavailable=1)
        await cluster.make_all_ready()
        status = cluster.budget_status()
        condition = status["conditions"][0]
        assert status["disruptionsAllowed"] == 0
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "DisruptionAllowed",
            "False",
            "SyncFailed",
        )
        assert "jobs.batch does not implement the scale subresource" in condition["message"]
        with pytest.raises(ApiError, match="Cannot evict") as refused:
            evict(cluster.store, "default", "load-x1", {"metadata": {"name": "load-x1"}})
        assert refused.value.status == 429


async def test_a_bare_pod_is_left_out_of_the_scale() -> None:
    async with running() as cluster:
        cluster.nodes("n1")
        cluster.deployment(replicas=2)
        cluster.pod("bare", {"app": "chat"})
        cluster.budget(maxUnavailable=1)
        await cluster.make_all_ready()
        status = cluster.budget_status()
        assert (status["expectedPods"], status["currentHealthy"], status["disruptionsAllowed"]) == (2, 3, 2)
        assert "UnmanagedPods" in [reason for reason, _ in cluster.events("chat")]


async def test_a_failed_precondition_holds_the_budget_for_two_minutes() -> None:
    # Recorded on a real 1.37: the budget is spent before the precondition is looked at.
    async with running() as cluster:
        cluster.nodes("n1", "n2", "n3")
        cluster.deployment()
        cluster.budget(minAvailable=2)
        await cluster.make_all_ready()
        victim = cluster.pods(app="chat")[0]["metadata"]["name"]
        with pytest.raises(ApiError) as refused:
            evict(
                cluster.store,
                "default",
                victim,
                {"metadata": {"name": victim}, "deleteOptions": {"preconditions": {"uid": "other"}}},
            )
        assert refused.value.status == 409
        await cluster.settle()
        status = cluster.budget_status()
        assert (status["disruptionsAllowed"], status["currentHealthy"]) == (0, 2)
        assert list(status["disruptedPods"]) == [victim]
        cluster.shift = timedelta(seconds=121)
        cluster.make_ready(cluster.pods(app="chat")[1]["metadata"]["name"])
        await cluster.settle()
        status = cluster.budget_status()
        assert (status["disruptionsAllowed"], status["currentHealthy"]) == (1, 3)
        assert "disruptedPods" not in status
        assert "NotDeleted" in [reason for reason, _ in cluster.events(victim)]


async def test_dry_runs_spend_nothing() -> None:
    async with running() as cluster:
        cluster.nodes("n1", "n2", "n3")
        cluster.deployment()
        cluster.budget(minAvailable=2)
        await cluster.make_all_ready()
        for pod in cluster.pods(app="chat")[:2]:
            assert (
                evict(cluster.store, "default", pod["metadata"]["name"], {"metadata": pod["metadata"]}, dry_run=True)[
                    "code"
                ]
                == 201
            )


# -- scheduler ---------------------------------------------------------------------------------------------------------


async def test_replicas_spread_over_nodes() -> None:
    async with running() as cluster:
        cluster.nodes("n1", "n2", "n3")
        cluster.deployment(replicas=6)
        await cluster.settle()
        nodes = sorted(cluster.node_of(pod) for pod in cluster.pods())
        assert nodes == ["n1", "n1", "n2", "n2", "n3", "n3"]


async def test_an_impossible_selector_is_told_and_resolved_when_a_node_fits() -> None:
    async with running() as cluster:
        cluster.nodes("n1", "n2", "n3")
        pod = cluster.pod("stuck", nodeSelector={"no": "where"})
        await cluster.settle()
        message = (
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. "
            "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
        )
        assert ("FailedScheduling", message) in cluster.events("stuck")
        condition = cluster.store.get("pods", "stuck")["status"]["conditions"][0]
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "PodScheduled",
            "False",
            "Unschedulable",
        )
        cluster.store.mutate("nodes", "n2", None, lambda node: node["metadata"]["labels"].update(no="where"))
        await cluster.settle()
        assert cluster.node_of(pod) == "n2"


@pytest.mark.parametrize(
    ("taint", "toleration", "bound"),
    [
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, None, False),
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "effect": "NoSchedule"}, {"operator": "Exists"}, True),
        ({"key": "gpu", "effect": "NoSchedule"}, {"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "effect": "PreferNoSchedule"}, None, True),
    ],
)
async def test_taints_need_tolerations(taint: Json, toleration: Json | None, bound: bool) -> None:
    async with running() as cluster:
        cluster.nodes("n1", taints=[taint])
        pod = cluster.pod("p", tolerations=[toleration] if toleration else [])
        await cluster.settle()
        assert bool(cluster.node_of(pod)) is bound


async def test_required_anti_affinity_leaves_the_surplus_pending() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "chat"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    async with running() as cluster:
        cluster.nodes("n1", "n2")
        cluster.deployment(replicas=3, pod={"affinity": affinity})
        await cluster.settle()
        assert sorted(cluster.node_of(pod) for pod in cluster.pods()) == ["", "n1", "n2"]
        pending = next(pod for pod in cluster.pods() if not cluster.node_of(pod))
        _, message = cluster.events(pending["metadata"]["name"])[0]
        assert message == (
            "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules. "
            "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
        )


async def test_preferred_anti_affinity_only_prefers() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
    weighted = [{"weight": 100, "podAffinityTerm": term}]
    affinity = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}
    async with running() as cluster:
        cluster.nodes("n1", "n2")
        cluster.pod("first", {"app": "a"}, nodeName="n1")
        for name in ("x", "y"):
            cluster.pod(name, nodeName="n2")
        pod = cluster.pod("second", {"app": "a"}, affinity=affinity)
        await cluster.settle()
        assert cluster.node_of(pod) == "n2"


async def test_an_unschedulable_node_is_avoided_and_tainted() -> None:
    async with running() as cluster:
        cluster.nodes("n1", "n2")
        cluster.store.mutate("nodes", "n1", None, lambda node: node["spec"].update(unschedulable=True))
        await cluster.settle()
        assert cluster.store.get("nodes", "n1")["spec"]["taints"][0]["key"] == "node.kubernetes.io/unschedulable"
        assert {cluster.node_of(cluster.pod(name)) or "n2" for name in "abc"} == {"n2"}
        cluster.store.mutate("nodes", "n1", None, lambda node: node["spec"].pop("unschedulable"))
        await cluster.settle()
        assert "taints" not in cluster.store.get("nodes", "n1")["spec"]


# -- endpoints ---------------------------------------------------------------------------------------------------------


def service(cluster: Cluster, name: str = "chat", **spec: Any) -> None:
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    cluster.store.create(
        "services", {"metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": ports, **spec}}
    )


async def test_a_service_without_pods_has_one_slice_with_nothing_in_it() -> None:
    # kubernetes-client/python#2423: endpoints and ports are null.
    async with running() as cluster:
        service(cluster)
        await cluster.settle()
        (only,) = cluster.store.list("endpointslices")
        assert (only["endpoints"], only["ports"]) == (None, None)


async def test_pods_with_different_ports_get_slices_of_their_own() -> None:
    async with running() as cluster:
        cluster.nodes("n1")
        service(cluster)
        for name, port in (("a", 8001), ("b", 8002), ("c", 8001)):
            container = {"name": "engine", "image": "x", "ports": [{"name": "http", "containerPort": port}]}
            cluster.pod(name, {"app": "chat"}, containers=[container])
        await cluster.make_all_ready()
        slices = cluster.store.list("endpointslices")
        found = {obj["ports"][0]["port"]: sorted(e["targetRef"]["name"] for e in obj["endpoints"]) for obj in slices}
        assert found == {8001: ["a", "c"], 8002: ["b"]}
        for name in "abc":
            cluster.store.delete("pods", name, grace=0)
        await cluster.settle()
        (only,) = cluster.store.list("endpointslices")
        assert only["endpoints"] is None


async def test_not_ready_addresses_are_published_where_asked_for() -> None:
    async with running() as cluster:
        cluster.nodes("n1")
        service(cluster, publishNotReadyAddresses=True)
        cluster.pod("a", {"app": "chat"})
        await cluster.settle()
        cluster.make_ready("a", ready=False)
        await cluster.settle()
        (only,) = cluster.store.list("endpointslices")
        assert only["endpoints"][0]["conditions"] == {"ready": True, "serving": False, "terminating": False}


# -- replicas ----------------------------------------------------------------------------------------------------------


async def test_pods_to_delete_are_ranked() -> None:
    def pod(
        name: str, node: str | None, phase: str, ready: bool, since: str = "2026-01-01T00:00:00Z", **meta: Any
    ) -> Json:
        condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": since}
        return {
            "metadata": {"name": name, "creationTimestamp": since, **meta},
            "spec": {"nodeName": node} if node else {},
            "status": {"phase": phase, "conditions": [condition]},
        }

    cheap = {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-5"}}
    pods = [
        pod("old", "n1", "Running", True),
        pod("young", "n2", "Running", True, "2026-01-02T00:00:00Z"),
        pod("crowded", "n3", "Running", True),
        pod("cheap", "n4", "Running", True, **cheap),
        pod("unready", "n3", "Running", False),
        pod("pending", "n5", "Pending", False),
        pod("unbound", None, "Pending", False),
    ]
    ranked = [pod["metadata"]["name"] for pod in rank_for_deletion(pods)]
    assert ranked == ["unbound", "pending", "unready", "cheap", "crowded", "young", "old"]


async def test_recreate_waits_until_the_old_pods_are_gone() -> None:
    async with running() as cluster:
        cluster.nodes("n1")
        cluster.deployment(replicas=2, strategy={"type": "Recreate"})
        await cluster.make_all_ready()
        old = [pod["metadata"]["name"] for pod in cluster.pods()]
        annotations = {"restartedAt": "now"}
        cluster.store.mutate(
            "deployments", "chat", None, lambda new: new["spec"]["template"]["metadata"].update(annotations=annotations)
        )
        await cluster.settle()
        assert [pod["metadata"]["name"] for pod in cluster.pods()] == old
        assert all("deletionTimestamp" in pod["metadata"] for pod in cluster.pods())
        for name in old:
            cluster.store.delete("pods", name, grace=0)
        await cluster.settle()
        assert len(cluster.pods()) == 2
        assert not {pod["metadata"]["name"] for pod in cluster.pods()} & set(old)


async def test_a_paused_deployment_scales_but_does_not_roll() -> None:
    async with running() as cluster:
        cluster.nodes("n1")
        cluster.deployment(replicas=2)
        await cluster.make_all_ready()

        def change(new: Json) -> None:
            new["spec"] |= {"paused": True, "replicas": 3}
            new["spec"]["template"]["metadata"]["annotations"] = {"v": "2"}

        cluster.store.mutate("deployments", "chat", None, change)
        await cluster.settle()
        assert len(cluster.store.list("replicasets")) == 1
        assert len(cluster.pods()) == 3


async def test_old_replicasets_are_forgotten_beyond_the_history_limit() -> None:
    async with running() as cluster:
        cluster.nodes("n1")
        cluster.deployment(replicas=1, revisionHistoryLimit=1)
        await cluster.make_all_ready()
        for version in "234":
            annotations = {"v": version}
            cluster.store.mutate(
                "deployments",
                "chat",
                None,
                lambda new, a=annotations: new["spec"]["template"]["metadata"].update(annotations=a),
            )
            for _ in range(3):
                await cluster.make_all_ready()
                for pod in cluster.pods():
                    if "deletionTimestamp" in pod["metadata"]:
                        cluster.store.delete("pods", pod["metadata"]["name"], grace=0)
            await cluster.settle()
        revisions = [
            obj["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
            for obj in cluster.store.list("replicasets")
        ]
        assert sorted(revisions) == ["3", "4"]


async def test_a_rollout_that_stands_still_exceeds_its_deadline() -> None:
    async with running() as cluster:
        cluster.nodes("n1")
        cluster.deployment(replicas=1, progressDeadlineSeconds=5)
        await cluster.settle()
        cluster.shift = timedelta(seconds=6)
        cluster.store.mutate("deployments", "chat", None, lambda new: new["metadata"].update(labels={"look": "again"}))
        await cluster.settle()
        conditions = cluster.store.get("deployments", "chat")["status"]["conditions"]
        progressing = next(entry for entry in conditions if entry["type"] == "Progressing")
        assert (progressing["status"], progressing["reason"]) == ("False", "ProgressDeadlineExceeded")


# -- nodes -------------------------------------------------------------------------------------------------------------


async def test_pods_of_a_deleted_node_are_collected() -> None:
    async with running() as cluster:
        cluster.nodes("n1")
        pod = cluster.pod("p")
        await cluster.settle()
        assert cluster.node_of(pod) == "n1"
        cluster.store.delete("nodes", "n1")
        await cluster.settle()
        assert cluster.store.find("pods", "p") is None


async def test_noexecute_deletes_pods_when_their_patience_ends() -> None:
    async with running() as cluster:
        cluster.nodes("n1")
        short = {"key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
        forever = {"key": "maintenance", "operator": "Exists", "effect": "NoExecute"}
        later = short | {"tolerationSeconds": 300}
        for name, tolerations in (("none", []), ("short", [short]), ("later", [later]), ("forever", [forever])):
            cluster.pod(name, tolerations=tolerations)
        await cluster.settle()
        taint = {"key": "maintenance", "effect": "NoExecute"}
        cluster.store.mutate("nodes", "n1", None, lambda node: node["spec"].update(taints=[taint]))
        await cluster.settle()
        going = {pod["metadata"]["name"] for pod in cluster.pods() if "deletionTimestamp" in pod["metadata"]}
        assert going == {"none", "short"}
        reasons = [entry.get("reason") for entry in cluster.store.get("pods", "none")["status"]["conditions"]]
        assert "DeletionByTaintManager" in reasons
        cluster.store.mutate("nodes", "n1", None, lambda node: node["spec"].update(taints=[]))
        await cluster.settle()
        assert cluster.events("later")[-1] == ("TaintManagerEviction", "Cancelling deletion of Pod default/later")
