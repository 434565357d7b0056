"""The lab's own log of instants, against which an analysis of the same drill can be checked.

One JSON object a line: {"wall": unix seconds, "what": ..., "namespace", "pod", "uid", ...}. What there is of a Pod:
created, scheduled, started (container, process), ready, not_ready, endpoint_ready, endpoint_not_ready, endpoint_gone,
evicted (the Eviction API or another disruption marked it), deleting, terminated (its last process is gone), deleted,
and of a model server first_request and first_complete. Of a node: node_ready, node_lost, cut, healed.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio

from chaosrunner.lab.embedded.store import Store
from chaosrunner.lab.objects import Json, condition, is_ready, is_terminating

_TAIL_SECONDS = 0.1


class Instants:
    """Writes the log. `note` is for whoever knows an instant at first hand; the rest is read off the store."""

    def __init__(self, path: Path, store: Store, request_logs: Path) -> None:
        self._file = path.open("a")
        self._store = store
        self._request_logs = request_logs
        self._offsets: dict[Path, int] = {}
        self._endpoints: dict[str, Json] = {}
        self._pods: dict[str, Json] = {}
        self._seen: set[tuple[str, str]] = set()
        store.subscribe("pods", self._pod_changed)
        store.subscribe("endpointslices", self._slice_changed)
        store.subscribe("nodes", self._node_changed)

    def note(self, what: str, pod: Json, **more: Any) -> None:
        """Log an instant of a Pod that is now."""
        meta = pod["metadata"]
        self._write(what, namespace=meta["namespace"], pod=meta["name"], uid=meta["uid"], **more)

    def note_node(self, what: str, node: str) -> None:
        """Log an instant of a node that is now."""
        self._write(what, node=node)

    def _write(self, what: str, *, wall: float | None = None, **fields: Any) -> None:
        row = {"wall": round(time.time() if wall is None else wall, 6), "what": what} | fields
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def _pod_changed(self, type_: str, pod: Json, old: Json | None) -> None:
        if type_ == "ADDED":
            self._pods[pod["metadata"]["name"]] = pod
            self.note("created", pod)
            return
        if type_ == "DELETED":
            self.note("deleted", pod)
            return
        assert old is not None
        if pod["spec"].get("nodeName") and not old["spec"].get("nodeName"):
            self.note("scheduled", pod, node=pod["spec"]["nodeName"])
        if is_ready(pod) != is_ready(old):
            self.note("ready" if is_ready(pod) else "not_ready", pod)
        target = condition(pod, "DisruptionTarget")
        if target is not None and target["status"] == "True" and condition(old, "DisruptionTarget") is None:
            self.note("evicted", pod, reason=target.get("reason", ""))
        if is_terminating(pod) and not is_terminating(old):
            self.note("deleting", pod)

    def _slice_changed(self, type_: str, slice_: Json, old: Json | None) -> None:
        def ready(state: Json | None) -> dict[str, tuple[Json, bool]]:
            entries = (state or {}).get("endpoints") or ()
            return {entry["targetRef"]["uid"]: (entry["targetRef"], entry["conditions"]["ready"]) for entry in entries}

        before, after = ready(old), {} if type_ == "DELETED" else ready(slice_)
        for uid, (reference, is_up) in after.items():
            if uid not in before or before[uid][1] != is_up:
                self._endpoint("endpoint_ready" if is_up else "endpoint_not_ready", reference)
        for uid, (reference, _) in before.items():
            if uid not in after:
                self._endpoint("endpoint_gone", reference)

    def _endpoint(self, what: str, reference: Json) -> None:
        self._write(what, namespace=reference["namespace"], pod=reference["name"], uid=reference["uid"])

    def _node_changed(self, type_: str, node: Json, old: Json | None) -> None:
        def state(of: Json | None) -> str:
            ready = condition(of, "Ready") if of is not None else None
            return str(ready["status"]) if ready else ""

        if type_ != "DELETED" and state(node) != state(old):
            self.note_node("node_ready" if state(node) == "True" else "node_lost", node["metadata"]["name"])

    async def follow_requests(self) -> None:
        """Read the model servers' own logs as they grow; their first requests are instants too."""
        while True:
            for path in self._request_logs.glob("*.jsonl"):
                pod = self._pods.get(path.stem)
                if pod is not None:
                    self._read_requests(path, pod)
            await anyio.sleep(_TAIL_SECONDS)

    def _read_requests(self, path: Path, pod: Json) -> None:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offsets[path] = self._offsets.get(path, 0) + len(line)
                row = json.loads(line)
                if row["event"] == "received":
                    self._first("first_request", pod, row["received"])
                elif row["event"] == "request" and row["ended"] == "complete":
                    self._first("first_complete", pod, row["at"])

    def _first(self, what: str, pod: Json, wall: float) -> None:
        meta = pod["metadata"]
        if (what, meta["uid"]) not in self._seen:
            self._seen.add((what, meta["uid"]))
            self._write(what, wall=wall, namespace=meta["namespace"], pod=meta["name"], uid=meta["uid"])
