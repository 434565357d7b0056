"""Nodes as rows; heartbeats, which are most of what their watch says, are none."""

from __future__ import annotations

import msgspec

from chaosrunner.cluster.resources import Object
from chaosrunner.observers.values import conditions, identity, part, text
from chaosrunner.timeline import rows


def to_row(obj: Object, *, seen: rows.Seen, at: float, gap: int | None = None) -> rows.Node:
    """One node, without what changes at every heartbeat: the time of the last one is kept where there are no more."""
    spec, status = part(obj, "spec"), part(obj, "status")
    found = conditions(status)
    ready: Object = next((one for one in status.get("conditions") or [] if one.get("type") == "Ready"), {})
    return rows.Node(
        **identity(obj, seen, at, gap),
        unschedulable=bool(spec.get("unschedulable")),
        ready=ready.get("status"),
        heartbeat_time=ready.get("lastHeartbeatTime") if ready.get("status") == "Unknown" else None,
        conditions=found,
        taints=[
            rows.Taint(key=text(taint.get("key")), effect=text(taint.get("effect")), value=taint.get("value") or None)
            for taint in spec.get("taints") or []
        ],
    )


class News:
    """Tells rows that say something new from heartbeats."""

    def __init__(self) -> None:
        self._last: dict[str, rows.Node] = {}

    def is_new(self, row: rows.Node) -> bool:
        """Whether the row differs from the last one of the same node in more than its version."""
        if row.seen in ("DELETED", "VANISHED"):
            self._last.pop(row.uid, None)
            return True
        last = self._last.get(row.uid)
        self._last[row.uid] = row
        return last is None or _content(last) != _content(row)


def _content(row: rows.Node) -> rows.Node:
    return msgspec.structs.replace(row, at=0.0, id=0, version="", seen="MODIFIED", gap=None)
