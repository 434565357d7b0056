"""Alerts as Prometheus and those that speak its API really report them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from chaosrunner.analysis.clocks import unix
from chaosrunner.observers.alerts import poll_once, to_row
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock
from chaosrunner.timeline.rows import Alerts, Row
from tests.analysis.tape import Tape, checked, codes, context, facts, time

FIRED = 'alert_fired("Slow")'
QUIET = 'alert_fired("Slow") == false'
NOW = 'alert("Slow") == "inactive"'


def poll(tape: Tape, at: float, *alerts: rows.Alert, health: str = "ok", **fields: Any) -> None:
    rules = [rows.Rule(name="Slow", state="inactive", health=health)]
    tape.add(rows.Alerts(at=at, ok=True, alerts=list(alerts), **({"rules": rules} | fields)))


def alert(state: str = "firing", active: float = 0.0, **labels: str) -> rows.Alert:
    return rows.Alert(name="Slow", state=state, labels={"alertname": "Slow"} | labels, active_time=time(active))  # type: ignore[arg-type]


def verdicts(tape: Tape, *checks: str) -> list[str]:
    results = checked(facts(tape, context(*checks)))
    return [results[check].verdict for check in checks]


def drill(tape: Tape) -> None:
    """An eviction at 100 s that was seen to bite."""
    tape.pod(0.0, "a", "LISTED", ready=True)
    tape.evict(100.0, "a")
    tape.pod(100.1, "a", ready=True, deletion_time=time(130), deletion_grace=30.0)
    tape.end(200.0)


def test_an_alert_that_fired_before_the_fault_is_not_its_doing() -> None:
    # SREGym/SREGym#933: a chronic alert, unrelated, that fires all the time
    tape = Tape()
    drill(tape)
    for at in range(0, 200, 15):
        poll(tape, at + 1, alert())
    assert verdicts(tape, FIRED, QUIET) == ["skipped", "skipped"]
    assert "alert_before_fault" in codes(facts(tape))


def test_an_alert_that_had_ended_before_the_fault_says_nothing_of_it() -> None:
    tape = Tape()
    drill(tape)
    poll(tape, 10.0, alert())
    for at in range(25, 200, 15):
        poll(tape, at)
    assert verdicts(tape, FIRED, QUIET, NOW) == ["failed", "passed", "passed"]
    assert "alert_before_fault" not in codes(facts(tape))


def test_a_new_episode_after_the_fault_counts_beside_an_old_one() -> None:
    tape = Tape()
    drill(tape)
    for at in range(10, 200, 15):
        poll(tape, at, alert(pod="old"), *([alert(active=110.0, pod="new")] if at > 110 else []))
    assert verdicts(tape, FIRED) == ["passed"]


def test_an_alert_pending_since_before_the_fault_is_not_its_doing() -> None:
    tape = Tape()
    drill(tape)
    for at in range(10, 200, 15):
        poll(tape, at, alert("firing" if at > 130 else "pending"))
    assert verdicts(tape, FIRED, QUIET) == ["skipped", "skipped"]


def test_an_alert_without_for_fires_at_once() -> None:
    tape = Tape()
    drill(tape)
    for at in range(10, 200, 15):
        poll(tape, at, *([alert(active=104.0)] if 104 < at < 140 else []))
    found = facts(tape, context(FIRED, NOW))
    (episode,) = found.alerts
    assert (episode.pending_from, episode.firing_from, episode.end_reason) == (None, 115.0, "resolved")
    assert [check.verdict for check in found.checks] == ["passed", "passed"]


def test_a_rule_that_was_not_evaluated_yet_is_not_silent() -> None:
    # prometheus/prometheus#4510: after a restart there are no alerts because nothing was evaluated
    tape = Tape()
    drill(tape)
    poll(tape, 105.0, alert("pending", 104.0))
    poll(tape, 120.0, health="unknown")
    tape.end(121.0)
    found = facts(tape, context(QUIET, NOW))
    assert [episode.end_reason for episode in found.alerts] == ["unknown"]
    assert [check.verdict for check in found.checks] == ["skipped", "skipped"]


def test_a_firing_alert_that_is_pending_again() -> None:
    # prometheus/prometheus#15175: a restart puts a firing alert back to pending, with the same labels
    tape = Tape()
    drill(tape)
    poll(tape, 105.0, alert("firing", 101.0))
    poll(tape, 120.0, alert("pending", 118.0))
    tape.end(121.0)
    found = facts(tape, context('alert("Slow") == "pending"', FIRED))
    assert [check.verdict for check in found.checks] == ["passed", "passed"]
    assert [(one.firing_from, one.end_reason) for one in found.alerts] == [(105.0, "unknown"), (None, None)]


def test_alerts_of_several_pods_in_turn_are_no_unstable_identity() -> None:
    # the other side of prometheus/prometheus#8115: what changes is what the alert is about
    tape = Tape()
    drill(tape)
    for number, at in enumerate(range(105, 200, 15)):
        poll(tape, at, alert("pending", at, pod=f"chat-{number}"))
    found = facts(tape, context(QUIET))
    assert "label_identity_unstable" not in codes(found)
    assert {one.end_reason for one in found.alerts[:-1]} == {"resolved"}
    assert found.checks[0].verdict == "passed"


def test_labels_that_change_do_not_hide_an_alert_that_fires() -> None:
    tape = Tape()
    drill(tape)
    for at in range(105, 200, 15):
        poll(tape, at, alert("firing", at, title=f"{at} %"))
    found = facts(tape, context(FIRED))
    assert "label_identity_unstable" not in codes(found)
    assert found.checks[0].verdict == "passed"


@pytest.mark.parametrize("order", [1, -1])
def test_two_rules_of_one_name_are_known_as_well_as_the_worse(order: int) -> None:
    # one a severity, as in kube-prometheus; prometheus/prometheus#4446 for the failing one
    tape = Tape()
    drill(tape)
    rules = [rows.Rule(name="Slow", state="firing", health=health) for health in ("err", "ok")][::order]
    poll(tape, 110.0, rules=rules)
    tape.end(111.0)
    found = facts(tape, context(QUIET, NOW))
    assert "rule_broken" in codes(found)
    assert [check.verdict for check in found.checks] == ["skipped", "skipped"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answers",
    [
        {"/api/v1/alerts": (503, {}), "/api/v1/rules": (503, {})},
        {"/api/v1/alerts": (200, {"status": "error", "error": "starting"})},
        {"/api/v1/alerts": (200, {"status": "success", "data": {"alerts": []}}), "/api/v1/rules": (404, {})},
    ],
    ids=["starting", "error with 200", "no rules API"],
)
async def test_an_alert_source_that_cannot_tell(answers: dict[str, tuple[int, dict[str, Any]]]) -> None:
    async def fetch(path: str, _: Any) -> tuple[int, dict[str, Any]]:
        return answers[path]

    row = await poll_once(fetch, Clock())
    assert (row.ok, row.alerts) == (False, [])


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e+00", 1.5, None])
def test_any_value_survives_the_recording(value: object) -> None:
    item = {"labels": {"alertname": "Slow"}, "state": "firing", "activeAt": None, "value": value}
    row = to_row({"alerts": [item]}, {}, {}, sent=0.0, at=1.0)
    read = msgspec.json.decode(msgspec.json.encode(row), type=Row)
    assert isinstance(read, Alerts)
    assert read.alerts[0].value == (None if value is None else str(value))


@pytest.mark.parametrize(
    "text",
    ["2026-11-29T17:00:05Z", "2026-11-29T17:00:05", "2026-11-29T18:00:05+01:00", "2026-11-29T17:00:05.000000000Z"],
)
def test_reported_times_in_every_spelling(text: str) -> None:
    assert unix(text)[0] == unix("2026-11-29T17:00:05Z")[0] == 1_795_971_605.0


def test_the_zero_time_of_go_is_a_time() -> None:
    assert unix("0001-01-01T00:00:00Z")[0] < 0
