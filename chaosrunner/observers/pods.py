"""Pods as rows: conditions, container states, restarts, deletion."""

from __future__ import annotations

from typing import Literal

from chaosrunner.cluster.resources import Object, controller, labels, meta
from chaosrunner.observers.values import conditions, identity, part, text
from chaosrunner.timeline import rows

State = Literal["waiting", "running", "terminated"]

_STATES: tuple[State, ...] = ("terminated", "running", "waiting")


def to_row(
    obj: Object, *, seen: rows.Seen, at: float, gap: int | None = None, root: rows.Owner | None = None
) -> rows.Pod:
    """One Pod as it was seen at `at`; `root` is its root controller where that was looked up."""
    metadata, status, owner = meta(obj), part(obj, "status"), controller(obj)
    grace = metadata.get("deletionGracePeriodSeconds")
    return rows.Pod(
        **identity(obj, seen, at, gap),
        phase=status.get("phase"),
        reason=status.get("reason"),
        node=part(obj, "spec").get("nodeName"),
        ip=status.get("podIP"),
        addresses=[item["ip"] for item in status.get("podIPs") or [] if item.get("ip")],
        labels={name: text(value) for name, value in labels(obj).items()},
        owner=_owner(owner) if owner else None,
        root=root,
        created_time=metadata.get("creationTimestamp"),
        deletion_time=metadata.get("deletionTimestamp"),
        deletion_grace=None if grace is None else float(grace),
        conditions=conditions(status),
        containers=[
            *(_container(item, init=True) for item in status.get("initContainerStatuses") or []),
            *(_container(item, init=False) for item in status.get("containerStatuses") or []),
        ],
        finalizers=metadata.get("finalizers") or [],
    )


def _owner(reference: Object) -> rows.Owner:
    return rows.Owner(
        kind=text(reference.get("kind")), name=text(reference.get("name")), uid=text(reference.get("uid"))
    )


def _container(status: Object, *, init: bool) -> rows.ContainerState:
    states = part(status, "state")
    state = next((name for name in _STATES if name in states), None)
    now: Object = part(states, state) if state else {}
    last = part(status, "lastState", "terminated")
    return rows.ContainerState(
        name=text(status.get("name")),
        ready=bool(status.get("ready")),
        started=status.get("started"),
        restarts=int(status.get("restartCount") or 0),
        state=state,
        reason=now.get("reason"),
        exit_code=now.get("exitCode"),
        signal=now.get("signal"),
        started_time=now.get("startedAt"),
        finished_time=now.get("finishedAt"),
        container_id=status.get("containerID") or None,
        last_exit_code=last.get("exitCode"),
        last_reason=last.get("reason"),
        last_finished_time=last.get("finishedAt"),
        init=init,
    )
