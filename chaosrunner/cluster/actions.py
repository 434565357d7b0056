"""Calls that change the cluster, each with its two rows: sent (before it leaves) and answered."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

import msgspec

from chaosrunner.cluster.answers import classify, meets, settled
from chaosrunner.cluster.resources import EVENTS, PODS, meta
from chaosrunner.cluster.session import Answer, Cluster, Unreachable
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Emit

COMPONENT = "chaosrunner"


def target_of(obj: dict[str, Any], kind: str = "Pod") -> rows.Target:
    """The target that an object is; `kind` where the object, being a list's item, does not say."""
    metadata, spec, status = meta(obj), obj.get("spec") or {}, obj.get("status") or {}
    return rows.Target(
        kind=obj.get("kind") or kind,
        name=str(metadata.get("name")),
        namespace=metadata.get("namespace"),
        uid=metadata.get("uid"),
        node=spec.get("nodeName"),
        ip=status.get("podIP"),
    )


def sent(
    cluster: Cluster,
    emit: Emit,
    action: str,
    target: rows.Target,
    *,
    step: int | None = None,
    dry_run: bool = False,
    undo: bool = False,
) -> rows.Action:
    """Emit the row of a call that is about to leave."""
    row = rows.Action(
        at=cluster.clock.now(),
        event="sent",
        call=next(cluster.calls),
        action=action,
        target=target,
        step=step,
        dry_run=dry_run,
        undo=undo,
    )
    emit(row)
    return row


def answered(emit: Emit, row: rows.Action, at: float, **fields: Any) -> rows.Action:
    """Emit the row of the answer to `row`."""
    answer = msgspec.structs.replace(row, event="answered", id=0, at=at, **fields)
    emit(answer)
    return answer


async def change(
    cluster: Cluster,
    emit: Emit,
    action: str,
    target: rows.Target,
    method: str,
    path: str,
    body: Any,
    *,
    content_type: str | None = None,
    query: dict[str, str] | None = None,
    step: int | None = None,
    dry_run: bool = False,
    undo: bool = False,
    expect: int | str | None = None,
) -> Answer:
    """Send one call, with its rows. Raises Unreachable after the row that says so (`ok` is unknown then, unless
    the call cannot have left). `expect`: an HTTP status or a class of `answers`, for the row."""
    row = sent(cluster, emit, action, target, step=step, dry_run=dry_run, undo=undo)
    try:
        answer = await cluster.request(method, path, query=query, body=body, content_type=content_type)
    except Unreachable as error:
        ok = None if error.sent else False
        answered(emit, row, cluster.clock.now(), answer="unreachable", message=str(error), ok=ok)
        raise
    kind = classify(answer.status, answer.body, answer.headers)
    answered(
        emit,
        row,
        answer.received,
        answer=kind,
        status=answer.status,
        reason=answer.reason,
        message=None if answer.ok else answer.message,
        causes=causes_of(answer),
        ok=answer.ok if settled(answer.status, answer.body) else None,
        expected=meets(expect, kind, answer.status),
    )
    return answer


async def delete_pod(
    cluster: Cluster,
    pod: dict[str, Any],
    *,
    emit: Emit,
    grace_period: float | None = None,
    force: bool = False,
    dry_run: bool = False,
    step: int | None = None,
    expect: int | str | None = None,
) -> Answer:
    """Delete a Pod, budgets aside, if it still is that Pod (UID precondition: 409 otherwise).

    `grace_period` in seconds; 0 removes the object at once, while its processes may still run, and so needs `force`,
    as in kubectl. Raises ValueError for 0 without it.
    """
    if grace_period == 0 and not force:
        raise ValueError("grace period 0 takes the Pod away from under its processes: it needs force")
    options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
    options["preconditions"] = {"uid": meta(pod)["uid"]}
    if force or grace_period is not None:
        options["gracePeriodSeconds"] = 0 if force and grace_period is None else int(-(-(grace_period or 0) // 1))
    if dry_run:
        options["dryRun"] = ["All"]
    path = PODS.path(meta(pod)["namespace"], meta(pod)["name"])
    return await change(
        cluster, emit, "delete_pod", target_of(pod), "DELETE", path, options, step=step, dry_run=dry_run, expect=expect
    )


async def create_event(
    cluster: Cluster, target: rows.Target, *, run: str, reason: str, message: str, api_version: str = "v1"
) -> Answer:
    """Leave a Kubernetes Event on the target that says which run did what, for those who look at the cluster.

    `reason` is CamelCase (`ChaosRunnerEvict`). Events about nodes live in the namespace `default`. Raises
    Unreachable.
    """
    now = datetime.fromtimestamp(cluster.clock.wall(cluster.clock.now()), UTC)
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    namespace = target.namespace or "default"
    involved = {"apiVersion": api_version, "kind": target.kind, "name": target.name, "uid": target.uid}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{target.name}.{secrets.token_hex(8)}",
            "namespace": namespace,
            "labels": {"chaosrunner.dev/run": run},
        },
        "involvedObject": involved | ({"namespace": target.namespace} if target.namespace else {}),
        "reason": reason,
        "message": message[:1024],
        "type": "Normal",
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": run,
    }
    return await cluster.create(EVENTS, event, namespace)


def causes_of(answer: Answer) -> list[dict[str, str]] | None:
    causes = (answer.body.get("details") or {}).get("causes") if not answer.ok else None
    return [{str(key): str(value) for key, value in cause.items()} for cause in causes] if causes else None
