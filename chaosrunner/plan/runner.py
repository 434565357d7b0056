"""Where chaosrunner itself runs: a drill must not take its own runner away."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from chaosrunner.cluster import Cluster, Unreachable
from chaosrunner.cluster.config import SERVICE_ACCOUNT, namespace_of
from chaosrunner.cluster.resources import PODS

LONGEST_HOSTNAME = 63
"""Characters; a kubelet cuts off the rest of a longer Pod name when it makes the hostname of it."""


class Place(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The Pod and the node of this process, as far as they are known."""

    host: str
    pod: str | None = None
    """Its name, or the hostname that was made of it. None outside of Pods."""
    namespace: str | None = None
    node: str | None = None

    def is_pod(self, name: str, namespace: str | None) -> bool:
        ours = self.pod is not None and self.pod in (name, name[:LONGEST_HOSTNAME].rstrip("-."))
        return ours and self.namespace in (None, namespace)

    def is_node(self, name: str) -> bool:
        """By the API server's word or the downward API's, else because the host has the node's name."""
        return self.node == name or (self.node is None and self.host.partition(".")[0] == name.partition(".")[0])


NOWHERE = Place(host="")
"""Of a process of which nothing is known."""


def here(environ: Mapping[str, str] = os.environ, host: str | None = None, account: Path = SERVICE_ACCOUNT) -> Place:
    """By `POD_NAME`, `POD_NAMESPACE` and `NODE_NAME`, which a Pod's spec sets by the downward API.

    Where they are not set, inside a cluster, the hostname is the Pod's name, and its namespace is in the folder of the
    ServiceAccount's token. https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
    """
    host = host or socket.gethostname()
    inside = "KUBERNETES_SERVICE_HOST" in environ
    return Place(
        host=host,
        pod=environ.get("POD_NAME") or (host if inside else None),
        namespace=environ.get("POD_NAMESPACE") or (namespace_of(account) if inside else None),
        node=environ.get("NODE_NAME") or None,
    )


async def located(place: Place, cluster: Cluster) -> Place:
    """The same with the node, where only the Pod is known and may be read."""
    if place.node is not None or place.pod is None or place.namespace is None:
        return place
    try:
        answer = await cluster.get(PODS, place.pod, place.namespace)
    except Unreachable:
        return place
    node = (answer.body.get("spec") or {}).get("nodeName") if answer.ok else None
    return msgspec.structs.replace(place, node=node) if node else place
