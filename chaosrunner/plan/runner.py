"""Where chaosrunner itself runs: a drill must not take its own runner away."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """The Pod and the node of this process, as far as they are known."""

    host: str
    pod: str | None = None
    namespace: str | None = None
    node: str | None = None

    def is_pod(self, name: str, namespace: str | None) -> bool:
        return self.pod == name and self.namespace in (None, namespace)

    def is_node(self, name: str) -> bool:
        """By the downward API's word, else because the host has the node's name."""
        return self.node == name or (self.node is None and self.host.partition(".")[0] == name.partition(".")[0])


def here(environ: Mapping[str, str] = os.environ, host: str | None = None) -> Place:
    """`POD_NAME`, `POD_NAMESPACE` and `NODE_NAME` (set them by the downward API); inside a cluster the host's name is
    the Pod's where POD_NAME is not set."""
    host = host or socket.gethostname()
    inside = "KUBERNETES_SERVICE_HOST" in environ
    return Place(
        host=host,
        pod=environ.get("POD_NAME") or (host if inside else None),
        namespace=environ.get("POD_NAMESPACE"),
        node=environ.get("NODE_NAME"),
    )
