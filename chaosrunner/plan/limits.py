"""The drill's limits, held when it is planned and again when a step fires (a node may have other Pods by then)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from chaosrunner.cluster.resources import Object, labels, meta
from chaosrunner.plan.runner import NOWHERE, Place
from chaosrunner.playbook.limits import Limits
from chaosrunner.playbook.selectors import selects

PROTECTED = ("kube-", "openshift-")
"""Beginnings of names of namespaces that hold a cluster's own parts: Kubernetes reserves the first for itself
(https://kubernetes.io/docs/concepts/overview/working-with-objects/namespaces/), OpenShift the second."""


def protected(namespace: str, limits: Limits) -> str | None:
    """Why nothing in a namespace may be changed that the limits do not name, None where it may."""
    if not namespace.startswith(PROTECTED) or namespace in (limits.namespaces or ()):
        return None
    return f"namespace {namespace} holds parts of the cluster itself; name it in limits.namespaces if it is meant"


@dataclass(frozen=True)
class Guard:
    """Judges what a step is about to take."""

    limits: Limits
    namespace: str
    """The workload's; the only one allowed where the limits name none."""
    size: int
    """Pods of the workload when the drill was planned: what `max_percent` refers to."""
    place: Place = NOWHERE
    """Where chaosrunner itself runs, which is off limits too."""

    def off_limits(self, pod: Object) -> str | None:
        """Why a Pod must not be taken away, None if it may."""
        namespace = meta(pod).get("namespace")
        if self.place.is_pod(str(meta(pod)["name"]), namespace):
            return "chaosrunner itself runs in it"
        if namespace not in (self.limits.namespaces or [self.namespace]):
            return f"namespace {namespace} is outside the drill's limits; name it in limits.namespaces"
        if reason := protected(str(namespace), self.limits):
            return reason
        if self.limits.labels and not selects(self.limits.labels, labels(pod)):
            return f"its labels are outside the drill's limits ({self.limits.labels})"
        return None

    def may_stay(self, name: str) -> bool:
        """Whether a step, or a driver, of a production drill may change what does not end by itself."""
        return name in self.limits.allow_until_undone

    def too_many_evictions(self, pods: int) -> str | None:
        """Why a drain must not evict so many Pods, whosever they are; None if it may."""
        if pods > self.limits.max_pods:
            return f"it would evict {pods} Pods, limits.max_pods is {self.limits.max_pods}"
        return None

    def too_many_nodes(self, nodes: Collection[str]) -> str | None:
        """Why these nodes must not all be cordoned at once, None if they may."""
        if len(nodes) > self.limits.max_nodes:
            names = ", ".join(sorted(nodes))
            return f"{names} would be cordoned at once, limits.max_nodes is {self.limits.max_nodes}"
        return None

    def off_limits_nodes(self, nodes: Collection[str]) -> str | None:
        """Why these nodes must not be cordoned, None if they may."""
        if own := self.own_node(nodes):
            return f"chaosrunner itself runs on node {own}"
        return self.too_many_nodes(nodes)

    def own_node(self, nodes: Collection[str]) -> str | None:
        """The one of these nodes on which chaosrunner runs as a Pod."""
        return next((node for node in nodes if self.place.pod and self.place.is_node(node)), None)

    def too_many(self, away: int) -> tuple[str, str] | None:
        """The limit (its key, and a text) that `away` Pods of the workload missing at once would break."""
        if away > self.limits.max_pods:
            return "max_pods", f"{away} Pods would be away at once, limits.max_pods is {self.limits.max_pods}"
        share = 100 * away / max(1, self.size)
        if share > self.limits.max_percent + 1e-9:
            text = f"{away} of {self.size} Pods ({share:.0f} %) would be away at once"
            return "max_percent", f"{text}, limits.max_percent is {self.limits.max_percent:g}"
        return None
