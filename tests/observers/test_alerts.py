from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from chaosrunner.observers.alerts import poll, poll_once
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from tests.cluster.server import DATA, Recorder, until

pytestmark = pytest.mark.anyio


class Prometheus:
    """Answers as recorded transitions did; keeps what it was asked."""

    def __init__(self, *names: str) -> None:
        self.recorded = [json.loads((DATA / "prom" / f"transition_{name}.json").read_text()) for name in names]
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def fetch(self, path: str, params: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        self.asked.append((path, dict(params)))
        now = self.recorded[0]
        if path == "/api/v1/alerts":
            return 200, now["alerts"]
        if path == "/api/v1/query":
            vector = [{"metric": {"__name__": "up", "instance": "10.0.0.2:9"}, "value": [1, "0"]}]
            return 200, {"status": "success", "data": {"resultType": "vector", "result": vector}}
        if len(self.recorded) > 1:
            self.recorded.pop(0)
        return 200, now["rules"]


async def test_recorded_transitions() -> None:
    prometheus, recorder = Prometheus("1_inactive", "2_pending", "3_firing", "6_inactive"), Recorder()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: poll(prometheus.fetch, Clock(), recorder, interval=0.01))
        await until(lambda: len(recorder.rows) >= 4)
        tasks.cancel_scope.cancel()
    polls = recorder.of(rows.Alerts)[:4]
    assert [[alert.state for alert in row.alerts] for row in polls] == [[], ["pending"], ["firing"], []]
    assert all(row.ok and row.sent is not None and row.sent <= row.at for row in polls)
    # activeAt is when pending began: it does not change when the alert fires
    assert polls[1].alerts[0].active_time == polls[2].alerts[0].active_time == "2026-11-29T13:46:30.746254879Z"
    rule = next(rule for rule in polls[2].rules if rule.name == "DrillErrors")
    assert (rule.state, rule.health, rule.hold, rule.group, rule.interval) == ("firing", "ok", 5.0, "drill", 1)
    assert ("/api/v1/rules", {"type": "alert"}) in prometheus.asked


async def test_only_the_alerts_asked_for_and_the_targets_that_are_down() -> None:
    prometheus = Prometheus("3_firing")
    row = await poll_once(prometheus.fetch, Clock(), names=["DrillTargetDown"], up=True)
    assert (row.alerts, [rule.name for rule in row.rules], row.down) == ([], ["DrillTargetDown"], ["10.0.0.2:9"])


async def test_failed_evaluation_is_kept() -> None:
    # R10: prometheus/prometheus#4446: the old alerts stay as they were while the rule's health is bad
    prometheus = Prometheus("3_firing")
    rule = prometheus.recorded[0]["rules"]["data"]["groups"][0]["rules"][0]
    rule |= {"health": "err", "lastError": "many-to-many matching not allowed"}
    row = await poll_once(prometheus.fetch, Clock())
    assert (row.ok, row.rules[0].health, row.rules[0].error) == (True, "err", "many-to-many matching not allowed")
    assert row.alerts[0].state == "firing"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (ConnectionRefusedError("connection refused"), "connection refused"),
        (TimeoutError(), "TimeoutError"),
        ((503, {}), "/api/v1/alerts: HTTP 503"),
        ((200, {"status": "error", "error": "shutting down"}), "/api/v1/alerts: HTTP 200 shutting down"),
        ((200, {}), "/api/v1/alerts: HTTP 200"),
    ],
)
async def test_a_poll_that_failed_is_a_row_and_says_why(answer: Any, error: str) -> None:
    async def fetch(path: str, params: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        if isinstance(answer, Exception):
            raise answer
        status, body = answer
        return status, body

    row = await poll_once(fetch, Clock())
    assert (row.ok, row.error, row.alerts) == (False, error, [])
