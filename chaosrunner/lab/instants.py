"""The lab's own log of instants, against which an analysis of the same drill can be checked.

One JSON object a line: {"wall": unix seconds, "what": ..., "namespace", "pod", "uid", ...}. What there is of a Pod:
created, scheduled, started (container, process), ready, not_ready, endpoint_ready, endpoint_not_ready, endpoint_gone,
evicted (the Eviction API or another disruption marked it), deleting, exited (container, exit_code; it may be started
again), terminated (its last process is gone), deleted, and of a model server first_request and first_complete. Of a
node: node_ready, node_lost, cut, healed. `gap` (resource, since): between `since` and `wall` nobody watched, and what
follows from the list after it happened at some time in between.

Rows are in the order in which they became known; `wall` is when it happened.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaosrunner.lab.objects import Json, condition, is_ready, is_terminating

Changed = Callable[[str, Json, Json | None], None]
"""changed(type, object, what it was): ADDED, MODIFIED or DELETED, as a watch tells."""

TAIL_SECONDS = 0.1
"""How often whoever runs a lab should read the request logs."""


class Instants:
    """Writes the log. What becomes of objects is told through `watched`, by whichever source a lab has; `note` is for
    whoever knows an instant at first hand. All methods may be called from any thread.
    """

    def __init__(self, path: Path, request_logs: Path) -> None:
        self._file = path.open("a")
        self._request_logs = request_logs
        self._lock = threading.RLock()
        self._offsets: dict[Path, int] = {}
        self._pods: dict[str, Json] = {}
        self._seen: set[tuple[str, str]] = set()

    def watched(self) -> dict[str, Changed]:
        """Whom to tell of changed objects, by the plural of their kind."""
        return {"pods": self._pod_changed, "endpointslices": self._slice_changed, "nodes": self._node_changed}

    def note(self, what: str, pod: Json, *, wall: float | None = None, **more: Any) -> None:
        """Log an instant of a Pod, which is now unless `wall` says when."""
        meta = pod["metadata"]
        self._write(what, wall=wall, namespace=meta["namespace"], pod=meta["name"], uid=meta["uid"], **more)

    def note_node(self, what: str, node: str, *, wall: float | None = None) -> None:
        """Log an instant of a node, which is now unless `wall` says when."""
        self._write(what, wall=wall, node=node)

    def note_gap(self, resource: str, since: float) -> None:
        """Log that nobody watched a kind of objects between `since` (unix seconds) and now."""
        self._write("gap", resource=resource, since=round(since, 6))

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _write(self, what: str, *, wall: float | None = None, **fields: Any) -> None:
        row = {"wall": round(time.time() if wall is None else wall, 6), "what": what} | fields
        with self._lock:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    # -- objects -------------------------------------------------------------------------------------------------------

    def _pod_changed(self, type_: str, pod: Json, old: Json | None) -> None:
        if old is None:
            with self._lock:
                self._pods[pod["metadata"]["name"]] = pod
            self.note("created", pod)
            # A first sight may be a late one.
            old = {"metadata": {}, "spec": {}}
        if type_ == "DELETED":
            self.note("deleted", pod)
            return
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
            return {
                entry["targetRef"]["uid"]: (entry["targetRef"], entry["conditions"]["ready"])
                for entry in entries
                if "targetRef" in entry  # the API server's own have none
            }

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

    # -- requests ------------------------------------------------------------------------------------------------------

    def read_requests(self) -> None:
        """Read on in the model servers' own logs; their first requests are instants too."""
        for path in self._request_logs.glob("*.jsonl"):
            pod = self._pods.get(path.stem)
            if pod is not None:
                self._read_requests(path, pod)

    def _read_requests(self, path: Path, pod: Json) -> None:
        for line in read_on(path, self._offsets):
            row = json.loads(line)
            if row["event"] == "received":
                self._first("first_request", pod, row["received"])
            elif row["event"] == "request" and row["ended"] == "complete":
                self._first("first_complete", pod, row["at"])

    def _first(self, what: str, pod: Json, wall: float) -> None:
        key = what, pod["metadata"]["uid"]
        if key not in self._seen:
            self._seen.add(key)
            self.note(what, pod, wall=wall)


def read_on(path: Path, offsets: dict[Path, int]) -> list[bytes]:
    """The whole lines that a growing file has gained since the last call; `offsets` keeps the place, in bytes."""
    with path.open("rb") as file:
        file.seek(offsets.get(path, 0))
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    offsets[path] = offsets.get(path, 0) + len(whole)
    return whole.splitlines()
