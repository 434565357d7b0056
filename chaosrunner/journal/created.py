"""Objects that a run created, and how they are deleted: those only that are still as we sent them."""

from __future__ import annotations

from typing import Any

import anyio

from chaosrunner.cluster.actions import change
from chaosrunner.cluster.resources import Object, meta
from chaosrunner.cluster.session import Answer, ApiError, Cluster, delete_options
from chaosrunner.journal import fields
from chaosrunner.journal.journal import Created, Entry, State
from chaosrunner.timeline.rows import Emit

ON_ITS_WAY = 2.0
"""Seconds after which a call whose sender died has been carried out, or never will be."""

TRIES = 20
"""How often the object may change between a look and its deletion."""


def same(found: Any, ours: Any) -> bool:
    """Whether a spec is as we sent it: the API server leaves empty lists and objects out."""
    return bool(_pruned(found) == _pruned(ours))


async def undo(cluster: Cluster, entry: Entry, state: State, emit: Emit) -> fields.Decision:
    """Deletes what an entry created, if it is ours and nobody changed it. Raises Unreachable and ApiError."""
    made = entry.made
    assert isinstance(made, Created)
    found = await _look(cluster, made.path)
    if found.status == 404 and state == "intent":
        await anyio.sleep(ON_ITS_WAY)
        found = await _look(cluster, made.path)
    for _ in range(TRIES):
        if found.status == 404:
            return fields.Decision(state="not_applied" if state == "intent" else "already_undone")
        if why := _foreign(found.body, entry, made):
            return fields.Decision(state="changed_by_others", detail=f"left as others want it: {made.path} {why}")
        about = meta(found.body)
        options = delete_options(uid=about["uid"], version=about["resourceVersion"])
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        answer = await change(cluster, emit, f"undo_{entry.fault}", entry.target, "DELETE", made.path, body, undo=True)
        if not answer.ok and answer.status not in (404, 409):
            raise ApiError(f"delete {made.path}", answer)
        found = await _look(cluster, made.path)
        if answer.ok and found.status == 404:
            return fields.Decision(state="undone")
        if answer.ok and meta(found.body).get("deletionTimestamp"):
            held = ", ".join(meta(found.body).get("finalizers") or [])
            return fields.Decision(state="undo_failed", detail=f"{made.path} is being deleted, but {held} holds it")
    return fields.Decision(state="undo_failed", detail=f"{made.path} changed {TRIES} times between look and deletion")


def command(entry: Entry) -> str:
    """The command by which a person can do what undo could not."""
    assert isinstance(entry.made, Created)
    plural, name = entry.made.path.split("/")[-2:]
    return " ".join([*fields.kubectl(entry), "delete", plural, name])


async def _look(cluster: Cluster, path: str) -> Answer:
    answer = await cluster.request("GET", path)
    if not answer.ok and answer.status != 404:
        raise ApiError(f"look at {path}", answer)
    return answer


def _foreign(obj: Object, entry: Entry, made: Created) -> str | None:
    """Why an object is not ours to delete; None where it is."""
    if not fields.noted(obj, entry):
        return "does not carry our annotation any more"
    if not same(obj.get("spec"), made.spec):
        return "has another spec now"
    return None


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: kept for key, item in value.items() if (kept := _pruned(item)) not in (None, {}, [])}
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    return value
