"""Whose Pod is it in the end: the chain of controllers above an object (Pod, ReplicaSet, Deployment, ...)."""

from __future__ import annotations

from typing import Any

import structlog

from chaosrunner.cluster.resources import KNOWN, Resource, controller, meta
from chaosrunner.cluster.session import Cluster, Unreachable
from chaosrunner.timeline import rows

log = structlog.get_logger()

DEEPEST = 10
"""Owners above an object at most; owner references may form a circle."""


class Roots:
    """Looks up root controllers and remembers them by the UID of the lowest one.

    Kinds that are not known are found by discovery. What may not be read (403) or is gone ends the chain there:
    the reference alone names the owner well enough.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._roots: dict[str, rows.Owner] = {}
        self._resources: dict[tuple[str, str], Resource | None] = dict(KNOWN)
        self.asked: dict[Resource, None] = {}
        """Kinds of controllers that were read, or could not be, in the order of asking."""

    def known(self, obj: dict[str, Any]) -> rows.Owner | None:
        """The root if it has been looked up before; asks nobody."""
        owner = controller(obj)
        return self._roots.get(str(owner.get("uid"))) if owner else None

    async def resolve(self, obj: dict[str, Any]) -> rows.Owner | None:
        """The root controller of an object; None if it has no controller. Never raises for what the cluster does."""
        owner = controller(obj)
        if owner is None or (known := self.known(obj)):
            return None if owner is None else known
        lowest, namespace = str(owner.get("uid")), meta(obj).get("namespace")
        complete = False
        for _ in range(DEEPEST):
            above, complete = await self._above(owner, namespace)
            if above is None:
                break
            owner = above
        root = rows.Owner(kind=str(owner.get("kind")), name=str(owner.get("name")), uid=str(owner.get("uid")))
        if complete:
            self._roots[lowest] = root
        return root

    async def _above(self, owner: dict[str, Any], namespace: str | None) -> tuple[dict[str, Any] | None, bool]:
        """The controller of `owner`, and whether the answer will stay the same (a broken connection heals)."""
        kind = str(owner.get("apiVersion")), str(owner.get("kind"))
        try:
            resource = await self._resource(*kind)
            if resource is None:
                return None, kind in self._resources
            self.asked[resource] = None
            answer = await self._cluster.get(resource, str(owner.get("name")), namespace)
        except Unreachable:
            return None, False
        if answer.ok and meta(answer.body).get("uid") == owner.get("uid"):
            return controller(answer.body), True
        log.debug("owner cannot be read", kind=owner.get("kind"), name=owner.get("name"), status=answer.status)
        return None, answer.status < 500 and not self._cluster.passing(answer)

    async def _resource(self, api_version: str, kind: str) -> Resource | None:
        key = (api_version, kind)
        if key not in self._resources:
            prefix = "/apis/" if "/" in api_version else "/api/"
            answer = await self._cluster.request("GET", prefix + api_version)
            if self._cluster.passing(answer):
                return None  # not discovered now; the kind is asked for again
            group, _, version = api_version.rpartition("/")
            self._resources[key] = next(
                (
                    Resource(group, version, item["name"], kind, bool(item.get("namespaced")))
                    for item in answer.body.get("resources") or []
                    if item.get("kind") == kind and "/" not in item.get("name", "/")
                ),
                None,
            )
        return self._resources[key]
