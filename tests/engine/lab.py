"""The lab as the tests see it: a process of its own, and what its API server says of nodes and Leases."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import yaml

from chaosrunner.cluster import Cluster, ClusterConfig, connect
from chaosrunner.cluster.resources import ENDPOINT_SLICES, LEASES, NODES, PODS
from chaosrunner.journal.fields import ANNOTATION
from chaosrunner.timeline.clock import Clock

Object = dict[str, Any]


@dataclass(frozen=True)
class Lab:
    """The lab's ready line."""

    kubeconfig: str
    context: str
    namespace: str
    url: str
    prometheus: str
    log: str
    control: str
    pod_header: str | None
    toxiproxy: str | None
    pid: int

    @property
    def server(self) -> str:
        config = yaml.safe_load(Path(self.kubeconfig).read_text())
        return str(config["clusters"][0]["cluster"]["server"])

    def kubeconfig_for(self, server: str, path: Path) -> str:
        """The lab's kubeconfig with another address of the API server."""
        config = yaml.safe_load(Path(self.kubeconfig).read_text())
        config["clusters"][0]["cluster"]["server"] = server
        path.write_text(yaml.safe_dump(config))
        return str(path)

    def ask(self, task: Callable[[Cluster], Any]) -> Any:
        """Runs an async function with a session of the lab's administrator."""

        async def run() -> Any:
            async with connect(ClusterConfig(kubeconfig=self.kubeconfig, context=self.context), Clock()) as cluster:
                return await task(cluster)

        return anyio.run(run)

    def nodes(self) -> dict[str, tuple[Object, Object]]:
        """Spec and annotations of each node: all that a cordon may touch."""

        async def read(cluster: Cluster) -> dict[str, tuple[Object, Object]]:
            return {
                node["metadata"]["name"]: (node["spec"], node["metadata"].get("annotations", {}))
                for node in (await cluster.list(NODES)).items
            }

        return self.ask(read)  # type: ignore[no-any-return]

    def cordoned(self) -> list[str]:
        return [name for name, (spec, _) in self.nodes().items() if spec.get("unschedulable")]

    def cordon(self, name: str, unschedulable: bool = True) -> None:
        """As an operator does it, with kubectl."""

        async def patch(cluster: Cluster) -> None:
            answer = await cluster.request(
                "PATCH",
                NODES.path(name=name),
                body={"spec": {"unschedulable": unschedulable or None}},
                content_type="application/merge-patch+json",
                query={"fieldManager": "kubectl-cordon"},
            )
            assert answer.ok, answer.message

        self.ask(patch)

    def restore(self) -> None:
        """Takes away every cordon, undo annotation and Lease."""

        async def patch(cluster: Cluster) -> None:
            for node in (await cluster.list(NODES)).items:
                spec, annotations = node["spec"], node["metadata"].get("annotations", {})
                ours = {name: None for name in annotations if name.startswith(ANNOTATION)}
                if spec.get("unschedulable") or ours:
                    body = {"spec": {"unschedulable": None}, "metadata": {"annotations": ours}}
                    path, kind = NODES.path(name=node["metadata"]["name"]), "application/merge-patch+json"
                    await cluster.request("PATCH", path, body=body, content_type=kind)

        self.ask(patch)
        for lease in self.leases():
            self.ask(lambda cluster, name=lease["metadata"]["name"]: cluster.delete(LEASES, name, self.namespace))

    def pods(self) -> dict[str, str]:
        """Name and UID of the workload's Pods."""

        async def read(cluster: Cluster) -> dict[str, str]:
            listed = await cluster.list(PODS, self.namespace, label_selector="app=model")
            return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in listed.items}

        return self.ask(read)  # type: ignore[no-any-return]

    def model_addresses(self) -> dict[str, str]:
        """`address:port` of each endpoint of the workload, by the name of its Pod."""

        async def read(cluster: Cluster) -> dict[str, str]:
            (found,) = (await cluster.list(ENDPOINT_SLICES, self.namespace, label_selector="app=model")).items
            port = found["ports"][0]["port"]
            return {one["targetRef"]["name"]: f"{one['addresses'][0]}:{port}" for one in found["endpoints"]}

        return self.ask(read)  # type: ignore[no-any-return]

    def workload_nodes(self) -> list[str]:
        """Nodes that run a Pod of the workload."""

        async def read(cluster: Cluster) -> list[str]:
            listed = await cluster.list(PODS, self.namespace, label_selector="app=model")
            return sorted({pod["spec"]["nodeName"] for pod in listed.items})

        return self.ask(read)  # type: ignore[no-any-return]

    def leases(self) -> list[Object]:
        async def read(cluster: Cluster) -> list[Object]:
            listed = (await cluster.list(LEASES, self.namespace)).items
            return [lease for lease in listed if lease["metadata"]["name"].startswith("chaosrunner-")]

        return self.ask(read)  # type: ignore[no-any-return]


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true value of `what`."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)  # looking is work too, taken from whom is waited for
    return found
