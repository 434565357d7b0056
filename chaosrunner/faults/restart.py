"""rollout-restart: all Pods of the workload replaced by the rules of its controller."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio

from chaosrunner.cluster.actions import change
from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import Object, Resource
from chaosrunner.cluster.session import Unreachable
from chaosrunner.errors import UserError
from chaosrunner.faults.base import Context, FaultResult, PlanContext, Preview, Problem, TargetResult, Touch
from chaosrunner.journal import fields
from chaosrunner.journal.undo import UndoResult
from chaosrunner.timeline import rows

ANNOTATION = "kubectl.kubernetes.io/restartedAt"
"""As `kubectl rollout restart` sets it in the Pod template: any change there makes the controller roll."""

POINTER = "/spec/template/metadata/annotations/" + ANNOTATION.replace("/", "~1")


class RolloutRestart:
    """Changes the Pod template's annotation. It cannot be undone; the annotation stays, as it does after kubectl."""

    name = "rollout_restart"

    def __init__(self, resource: Resource, target: rows.Target) -> None:
        self._resource = resource
        self._target = target
        self._stamp = ""

    async def plan(self, context: PlanContext) -> Preview:
        answer = await context.cluster.get(self._resource, self._target.name, self._target.namespace)
        if not answer.ok:
            raise UserError(f"{self._resource.kind} {self._target.name}: {answer.status} {answer.message}")
        preview = Preview(stays=f"the annotation {ANNOTATION} in the Pod template, as after kubectl rollout restart")
        if fields.get(answer.body, "/spec/template") is None or fields.get(answer.body, "/spec/paused"):
            text = f"{self._resource.kind} {self._target.name} does not roll: it is paused, or has no Pod template"
            preview.problems.append(Problem(severity="refuse", code="no_rollout", text=text))
        strategy = fields.get(answer.body, "/spec/strategy") or fields.get(answer.body, "/spec/updateStrategy") or {}
        limits = ", ".join(f"{key} {value}" for key, value in (strategy.get("rollingUpdate") or {}).items())
        told = " ".join(filter(None, [strategy.get("type"), f"({limits})" if limits else None]))
        preview.touches.append(
            Touch(action=self.name, target=self._target, predicted="accepted", reason=told or "by its own rules")
        )
        return preview

    async def apply(self, context: Context) -> FaultResult:
        """Raises Unreachable. Sent again, with the same time stamp, while the API server is away."""
        backoff, until = Backoff(), context.now + context.patience
        self._stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {"spec": {"template": {"metadata": {"annotations": {ANNOTATION: self._stamp}}}}}
        path = self._resource.path(self._target.namespace, self._target.name)
        attempts = 0
        while True:
            attempts += 1
            try:
                with anyio.CancelScope(shield=True):
                    answer = await change(
                        context.cluster,
                        context.emit,
                        self.name,
                        self._target,
                        "PATCH",
                        path,
                        body,
                        content_type="application/merge-patch+json",
                        query={"fieldManager": fields.MANAGER},
                        step=context.step,
                    )
            except Unreachable:
                if context.now + (pause := backoff.next()) > until:
                    raise
                await anyio.sleep(pause)
                continue
            pause = backoff.next(answer.retry_after)
            if answer.ok or not context.cluster.passing(answer) or context.now + pause > until:
                break
            await anyio.sleep(pause)
        said = f"{answer.status} {answer.message}".strip()
        done = TargetResult(
            target=self._target,
            answer="accepted" if answer.ok else "rejected",
            expected=answer.ok,
            status=answer.status,
            attempts=attempts,
            detail=None if answer.ok else said,
            unknown=context.cluster.passing(answer),
        )
        if answer.ok:
            await context.announce(self._target, self.name, "restarted")
            return FaultResult(targets=[done])
        result = "inconclusive" if done.unknown else "failed"
        return FaultResult(result=result, reason=f"{self._target.name}: {said}", targets=[done])  # type: ignore[arg-type]

    async def verify(self, context: Context) -> FaultResult:
        """Whether the template carries our stamp. Raises Unreachable."""
        answer = await context.cluster.get(
            self._resource, self._target.name, self._target.namespace, patience=context.patience
        )
        bitten = answer.ok and _stamped(answer.body) == self._stamp
        done = TargetResult(target=self._target, answer="seen", expected=bitten, bitten=bitten)
        if bitten:
            return FaultResult(targets=[done])
        reason = f"{self._target.name} does not carry the annotation that makes it roll"
        return FaultResult(result="inconclusive", reason=reason, targets=[done])

    async def undo(self, context: Context) -> list[UndoResult]:
        """Nothing: Pods that were replaced do not come back."""
        return []

    async def verify_undone(self, context: Context) -> bool:
        return True


def _stamped(obj: Object) -> str | None:
    stamp = fields.get(obj, POINTER)
    return stamp if isinstance(stamp, str) else None
