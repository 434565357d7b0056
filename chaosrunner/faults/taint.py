"""taint: a taint on nodes, and off again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chaosrunner.cluster.actions import target_of
from chaosrunner.cluster.resources import NODES, PODS, Object, finished, meta, terminating
from chaosrunner.cluster.session import Cluster
from chaosrunner.faults.base import Context, FaultResult, PlanContext, Preview, Problem, Touch
from chaosrunner.faults.setting import Setting
from chaosrunner.journal import fields
from chaosrunner.journal.journal import Field
from chaosrunner.timeline import rows

KEYS = ("key", "effect")
"""What identifies a taint: kubectl and the scheduler know no two with the same."""


class Taint(Setting):
    """Puts one taint on nodes. A node that has one of that key and effect already keeps it, with its value.

    `NoExecute` throws out Pods that do not tolerate it, past every budget: one that the drill's limits exclude, or too
    many of them, keep the nodes from being tainted.
    """

    name = "taint"
    done = "tainted"
    resource = NODES

    def __init__(
        self,
        nodes: Sequence[rows.Target],
        *,
        key: str,
        value: str = "",
        effect: str,
        off_limits: Callable[[Object], str | None] = lambda _: None,
        too_many: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        """`off_limits` and `too_many` as those of a drain."""
        super().__init__(nodes)
        self._off_limits = off_limits
        self._too_many = too_many
        self._taint: dict[str, Any] = {"key": key, "effect": effect} | ({"value": value} if value else {})

    async def plan(self, context: PlanContext) -> Preview:
        """Raises UserError, Unreachable and ApiError."""
        preview = await super().plan(context)
        pods = await self._thrown_out(context.cluster)
        preview.touches += [Touch(action="throw_out", target=target_of(pod)) for pod in pods]
        preview.problems += [
            Problem(severity="refuse", code="off_limits", text=reason) for reason in self._reasons(pods)
        ]
        return preview

    async def apply(self, context: Context) -> FaultResult:
        """Raises Unreachable and ApiError."""
        if reasons := self._reasons(await self._thrown_out(context.cluster)):
            return FaultResult(result="inconclusive", reason=f"{'; '.join(reasons)}; nothing was changed")
        return await super().apply(context)

    def _reasons(self, pods: Sequence[Object]) -> list[str]:
        """Why the Pods must not be thrown out."""
        judged = [(pod, self._off_limits(pod)) for pod in pods]
        reasons = [f"Pod {meta(pod)['name']} would be thrown out: {reason}" for pod, reason in judged if reason]
        return reasons + [text for text in [self._too_many(len(pods))] if text]

    async def _thrown_out(self, cluster: Cluster) -> list[Object]:
        """Pods on the nodes that do not tolerate the taint. Raises Unreachable and ApiError."""
        if self._taint["effect"] != "NoExecute":
            return []
        found: list[Object] = []
        for node in self.targets:
            pods = (await cluster.list(PODS, field_selector=f"spec.nodeName={node.name}")).items
            found += [pod for pod in pods if not finished(pod) and not terminating(pod) and not self._tolerated(pod)]
        return found

    def _tolerated(self, pod: Object) -> bool:
        """Whether the Pod may stay for good (kubernetes.io, Taints and Tolerations)."""
        return any(
            toleration.get("key") in (None, "", self._taint["key"])
            and toleration.get("effect") in (None, "", self._taint["effect"])
            and (toleration.get("operator") == "Exists" or toleration.get("value", "") == self._taint.get("value", ""))
            and toleration.get("tolerationSeconds") is None
            for toleration in (pod.get("spec") or {}).get("tolerations") or []
        )

    def field(self, obj: Object) -> Field:
        wanted = Field(path="/spec/taints", previous=None, desired=self._taint, keys=KEYS)
        return Field(path=wanted.path, previous=fields.value(obj, wanted), desired=self._taint, keys=KEYS)

    def told(self, field: Field) -> str | None:
        return f"{self._taint['key']}={self._taint.get('value', '')}:{self._taint['effect']}"
