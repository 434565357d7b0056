"""Calls whose answer was lost, and what happened in a watch gap: dated by what was seen, and no more exactly."""

from __future__ import annotations

from typing import Any

import pytest

from chaosrunner.timeline import rows

from .tape import Tape, checked, codes, context, facts, finding, time


def lost(tape: Tape, at: float, pod: str) -> None:
    """An eviction to which no answer came."""
    tape._calls += 1
    target = rows.Target(kind="Pod", name=pod, namespace="demo", uid=f"u-{pod}")
    common: dict[str, Any] = {"call": tape._calls, "action": "evict", "target": target}
    tape.add(rows.Action(at=at, event="sent", **common))
    tape.add(rows.Action(at=at + 0.5, event="answered", answer="unreachable", ok=None, **common))


def replaced(tape: Tape, at: float) -> None:
    tape.pod(at, "a", deletion_time=time(at + 30), deletion_grace=30.0)
    tape.pod(at + 0.1, "c", "ADDED", created_time=time(at), ready=False)
    tape.pod(at + 5, "c", ready=True)


def two(tape: Tape) -> None:
    tape.pod(0.0, "a", "LISTED", ready=True)
    tape.pod(0.0, "b", "LISTED", ready=True)


def test_a_lost_eviction_that_came_to_nothing_is_not_when_the_fault_was_sent() -> None:
    tape = Tape()
    two(tape)
    lost(tape, 10.0, "a")
    tape.request(12.0, 15.0, "cut_stream", status=200, pod="a", headers=12.1)
    tape.evict(14.0, "a")
    replaced(tape, 14.05)
    tape.end(60.0)
    found = facts(tape)
    assert [one.fault_at for one in found.replacements] == [14.0]
    assert "accepted_by_effect" not in codes(found)
    assert (found.exposure.exposed, found.exposure.lost) == (1, 1)


@pytest.mark.parametrize("again", [True, False])
def test_a_lost_eviction_that_worked_is_when_the_fault_was_sent(again: bool) -> None:
    tape = Tape()
    two(tape)
    lost(tape, 10.0, "a")
    replaced(tape, 10.05)
    if again:
        tape.evict(14.0, "a", "already_terminating")
    tape.end(60.0)
    found = facts(tape)
    assert [one.fault_at for one in found.replacements] == [10.0]
    said = finding(found, "accepted_by_effect")
    assert "0.05 s after it was sent the Pod was seen to go: it counts as accepted" in said.text
    gone = next(row for row in tape.rows if isinstance(row, rows.Pod) and row.deletion_time)
    assert set(said.evidence) == {*found.evictions[0].evidence, gone.id}


@pytest.mark.parametrize(("worked", "accepted", "lost_"), [(True, 1, 0), (False, 0, 1)])
def test_a_lost_eviction_counts_as_accepted_once_its_pod_is_seen_to_go(worked: bool, accepted: int, lost_: int) -> None:
    tape = Tape()
    two(tape)
    lost(tape, 10.0, "a")
    if worked:
        replaced(tape, 10.05)
    tape.end(60.0)
    checks = (f"evictions(accepted) == {accepted}", f"evictions(unreachable) == {lost_}")
    assert {check.verdict for check in checked(facts(tape, context(*checks))).values()} == {"passed"}


def test_a_victim_that_was_gone_when_the_gap_ended_was_taken_by_the_lost_eviction() -> None:
    tape = Tape()
    two(tape)
    gap = tape.watch(10.5, "pods", "gap_opened", reason="closed", last_alive=9.9)
    lost(tape, 10.0, "a")
    tape.rows  # noqa: B018  numbers the rows, so that the gap has an id
    tape.pod(20.0, "a", "VANISHED", gap=gap.id, ready=True)
    tape.pod(20.0, "c", "RELISTED", gap=gap.id, created_time=time(10), ready=True)
    tape.watch(20.0, "pods", "gap_closed", gap=gap.id)
    tape.end(60.0)
    (replacement,) = facts(tape, context("time_to_ready <= 60s")).replacements
    assert (replacement.pod, replacement.replaces, replacement.fault_at) == ("c", "a", 10.0)
    assert "10.00 s after it was sent" in finding(facts(tape), "accepted_by_effect").text
    assert replacement.milestones.ready.at is None  # nobody saw when
    assert replacement.milestones.ready.high == 20.0


def test_restarts_of_a_pod_that_came_in_a_gap_count() -> None:
    tape = Tape()
    two(tape)
    gap = tape.watch(10.0, "pods", "gap_opened", reason="closed", last_alive=9.0)
    tape.rows  # noqa: B018
    again = [rows.ContainerState(name="engine", restarts=2, state="running")]
    tape.pod(40.0, "c", "RELISTED", gap=gap.id, created_time=time(12), ready=True, containers=again)
    tape.watch(40.0, "pods", "gap_closed", gap=gap.id)
    tape.end(60.0)
    assert checked(facts(tape, context("restarts == 2")))["restarts == 2"].verdict == "passed"
