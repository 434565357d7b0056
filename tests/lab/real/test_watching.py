"""What a watch of the API notes, held against what the embedded lab notes of itself."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.lab.instants import Instants
from chaosrunner.lab.real.api import Api
from chaosrunner.lab.real.watching import Watching, note_cable
from tests.lab.test_lab import RunningLab

pytestmark = pytest.mark.lab


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def of(pod: str, path: Path) -> list[tuple[str, float]]:
    """What was noted of a Pod, but for what only its node or containerd knows."""
    return [
        (row["what"], row["wall"])
        for row in rows(path)
        if row.get("pod") == pod and row["what"] not in ("started", "terminated")
    ]


def test_a_watch_notes_what_the_lab_notes_of_itself(running: RunningLab, api: Api, tmp_path: Path) -> None:
    own = Path(running.ready["log"])
    events = tmp_path / "events"
    events.mkdir()
    log = tmp_path / "instants.jsonl"
    instants = Instants(log, own.parent / "requests")
    watching = Watching(api.server, instants, ("lab",), events)
    watching.start()
    before = {pod["metadata"]["name"] for pod in api.items("/api/v1/namespaces/lab/pods")}
    victim = sorted(before)[0]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": victim, "namespace": "lab"}}
    api.request("POST", f"/api/v1/namespaces/lab/pods/{victim}/eviction", eviction)
    end = time.monotonic() + 30
    while not any(row["what"] == "endpoint_ready" and row["pod"] not in before for row in rows(log)):
        assert time.monotonic() < end
        time.sleep(0.1)
    (replacement,) = {row["pod"] for row in rows(log) if row.get("pod")} - before
    while running.complete() != replacement:
        assert time.monotonic() < end
    time.sleep(0.5)
    watching.close()
    instants.close()
    assert not {row.get("namespace") for row in rows(log)} - {"lab", None}
    assert {row["node"] for row in rows(log) if row["what"] == "node_ready"} == {"node1", "node2", "infra"}
    for pod in (victim, replacement):
        since = of(pod, log)
        until = of(pod, own)
        if pod == victim:
            # It was there before: what came of it until then is told at once.
            since, until = since[since.index(next(row for row in since if row[0] == "evicted")) :], until
            until = until[until.index(next(row for row in until if row[0] == "evicted")) :]
        assert sorted(what for what, _ in since) == sorted(what for what, _ in until)
        seen = dict(since)
        for what, wall in dict(until).items():
            assert seen[what] == pytest.approx(wall, abs=0.25), what


def test_a_cable_that_is_pulled_is_an_instant_of_its_node(running: RunningLab, api: Api, tmp_path: Path) -> None:
    note_cable(tmp_path, "cut", "node1")  # before anybody watched
    instants = Instants(tmp_path / "log", tmp_path / "requests")
    watching = Watching(api.server, instants, ("lab",), tmp_path)
    watching.start()
    began = time.time()
    note_cable(tmp_path, "cut", "node2")
    note_cable(tmp_path, "healed", "node2")
    noted = time.time()
    watching.close()
    instants.close()
    cut, healed = [row for row in rows(tmp_path / "log") if row["what"] in ("cut", "healed")]
    assert (cut["what"], cut["node"], healed["what"], healed["node"]) == ("cut", "node2", "healed", "node2")
    assert began - 0.001 <= cut["wall"] <= healed["wall"] <= noted + 0.001


def test_a_server_that_cannot_be_watched_is_told(api: Api, tmp_path: Path) -> None:
    watching = Watching(replace(api.server, port=9), Instants(tmp_path / "log", tmp_path), ("lab",), tmp_path)
    with pytest.raises(OSError, match="cannot be watched"):
        watching.start(0.3)
    watching.close()
    assert rows(tmp_path / "log") == []
