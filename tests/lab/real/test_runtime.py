"""What containerd's events say of Pods. The lines are as `ctr events` prints them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.lab.instants import Instants
from chaosrunner.lab.objects import Json
from chaosrunner.lab.real.runtime import Runtime, TaskEvent, parse

MAIN, SANDBOX = "a" * 64, "b" * 64
START = f'2026-11-29 21:00:00.5 +0000 UTC k8s.io /tasks/start {{"container_id":"{MAIN}","pid":321}}'
EXIT = (
    f'2026-11-29 21:00:04.123456789 +0000 UTC k8s.io /tasks/exit {{"container_id":"{MAIN}","id":"{MAIN}","pid":321,'
    '"exit_status":137,"exited_at":{"seconds":1795986004,"nanos":100000000}}'
)
OTHERS = (
    f'2026-11-29 21:00:00 +0000 UTC k8s.io /tasks/start {{"container_id":"{SANDBOX}","pid":300}}',
    f'2026-11-29 21:00:03.1 +0000 UTC k8s.io /tasks/exec-started {{"container_id":"{MAIN}","exec_id":"e1","pid":330}}',
    f'2026-11-29 21:00:03.2 +0000 UTC k8s.io /tasks/exit {{"container_id":"{MAIN}","id":"e1","pid":330}}',
    '2026-11-29 21:00:03.3 +0000 UTC k8s.io /containers/delete {"id":"x"}',
    '2026-11-29 21:00:03.4 +0000 UTC default /tasks/start {"container_id":"x","pid":1}',
    "ctr: failed to dial",
)
NINE = datetime(2026, 11, 29, 21, tzinfo=UTC).timestamp()


def test_a_start_and_an_exit_are_read() -> None:
    assert parse(START) == TaskEvent(NINE + 0.5, MAIN, 321, None)
    # The time that the process ended, not the one that the event was sent.
    assert parse(EXIT) == TaskEvent(1795986004.1, MAIN, 321, 137)
    assert parse(EXIT.replace('"exit_status":137,', "")) == TaskEvent(1795986004.1, MAIN, 321, 0)


@pytest.mark.parametrize("line", OTHERS[1:])
def test_other_events_are_not_of_interest(line: str) -> None:
    assert parse(line) is None


def pod(container: str | None = None, *, leaving: bool = False) -> Json:
    meta = {"namespace": "lab", "name": "model-1", "uid": "u1"} | ({"deletionTimestamp": "x"} if leaving else {})
    statuses = [{"name": "model", "state": {"running": {}}, "lastState": {}}]
    if container:
        statuses[0]["containerID"] = f"containerd://{container}"
    return {"metadata": meta, "spec": {}, "status": {"containerStatuses": statuses}}


class World:
    def __init__(self, folder: Path) -> None:
        self.events = folder / "events"
        self.events.mkdir()
        (self.events / "node1.jsonl").write_text(START + "\n")
        self.log = folder / "instants.jsonl"
        self.runtime = Runtime(self.events, Instants(self.log, folder / "requests"))

    def happens(self, *lines: str) -> None:
        with (self.events / "node1.jsonl").open("a") as file:
            file.write("\n".join(lines) + "\n")
        self.runtime.read()

    def noted(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def whats(self) -> list[str]:
        return [row["what"] for row in self.noted()]


def test_an_event_waits_for_the_pod_that_has_the_container(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.happens(*OTHERS, START)
    world.runtime.pod_changed("ADDED", pod(), None)
    assert world.noted() == []
    world.runtime.pod_changed("MODIFIED", pod(MAIN), pod())
    (row,) = world.noted()
    assert row == {
        "wall": NINE + 0.5,
        "what": "started",
        "namespace": "lab",
        "pod": "model-1",
        "uid": "u1",
        "container": "model",
        "process": 321,
    }


def test_a_container_that_ends_under_a_pod_that_stays_is_not_the_pods_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.runtime.pod_changed("ADDED", pod(MAIN), None)
    world.happens(START, EXIT)
    assert world.whats() == ["started", "exited"]
    assert world.noted()[1]["exit_code"] == 137


@pytest.mark.parametrize("type_", ["MODIFIED", "DELETED"])
def test_the_last_process_of_a_pod_that_leaves_is_its_end(tmp_path: Path, type_: str) -> None:
    world = World(tmp_path)
    world.runtime.pod_changed("ADDED", pod(MAIN), None)
    world.happens(START)
    # A Pod that is deleted by force is gone before its processes are.
    world.runtime.pod_changed(type_, pod(MAIN, leaving=type_ == "MODIFIED"), pod(MAIN))
    world.happens(EXIT)
    assert world.whats() == ["started", "exited", "terminated"]
    assert world.noted()[2]["wall"] == 1795986004.1


def test_a_container_that_was_restarted_before_it_was_seen_is_known_by_its_last_state(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.happens(START, EXIT)
    restarted = pod("c" * 64)
    restarted["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"containerID": f"containerd://{MAIN}"}}
    world.runtime.pod_changed("MODIFIED", restarted, pod())
    assert world.whats() == ["started", "exited"]


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.runtime.pod_changed("ADDED", pod(MAIN), None)
    with (world.events / "node1.jsonl").open("a") as file:
        file.write(START[:80])
    world.runtime.read()
    assert world.noted() == []
    world.happens(START[80:])
    assert world.whats() == ["started"]
