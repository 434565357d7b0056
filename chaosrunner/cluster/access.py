"""May we? One SelfSubjectAccessReview for each thing that a drill will do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from chaosrunner.cluster.resources import ACCESS_REVIEWS
from chaosrunner.cluster.session import Cluster, Unreachable


@dataclass(frozen=True, slots=True)
class Access:
    """One permission, in the words of an RBAC rule. `namespace` None: cluster-wide. `name` empty: of any name."""

    verb: str
    resource: str
    namespace: str | None = None
    group: str = ""
    subresource: str = ""
    name: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        resource += f"/{self.subresource}" if self.subresource else ""
        named = f" {self.name}" if self.name else ""
        return f"{self.verb} {resource}{named}" + (f" in {self.namespace}" if self.namespace else "")

    def covers(self, other: Access) -> bool:
        """Whether who has this has `other` too."""
        return (
            (self.verb, self.resource, self.group, self.subresource)
            == (other.verb, other.resource, other.group, other.subresource)
            and self.namespace in (None, other.namespace)
            and self.name in ("", other.name)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """The server's word on one access; `allowed` None where it could not be asked."""

    access: Access
    allowed: bool | None
    reason: str = ""


async def review(cluster: Cluster, accesses: Sequence[Access]) -> list[Permission]:
    """Ask for all of them, in the order given. Never raises for what the cluster does."""
    permissions: list[Permission | None] = [None] * len(accesses)
    limit = anyio.CapacityLimiter(8)

    async def ask(index: int, access: Access) -> None:
        async with limit:
            permissions[index] = await _review(cluster, access)

    async with anyio.create_task_group() as tasks:
        for index, access in enumerate(accesses):
            tasks.start_soon(ask, index, access)
    return [permission for permission in permissions if permission is not None]


async def _review(cluster: Cluster, access: Access) -> Permission:
    attributes = {
        "verb": access.verb,
        "group": access.group,
        "resource": access.resource,
        "subresource": access.subresource,
        "namespace": access.namespace or "",
        "name": access.name,
    }
    body = {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "spec": {"resourceAttributes": attributes},
    }
    try:
        answer = await cluster.create(ACCESS_REVIEWS, body)
    except Unreachable as error:
        return Permission(access=access, allowed=None, reason=str(error))
    if not answer.ok:
        return Permission(access=access, allowed=None, reason=f"{answer.status} {answer.message}")
    status = answer.body.get("status") or {}
    return Permission(
        access=access,
        allowed=bool(status.get("allowed")),
        reason=status.get("evaluationError") or status.get("reason") or "",
    )
