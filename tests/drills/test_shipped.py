"""Every shipped lab drill, run for real on the embedded lab with phases of two or three seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from chaosrunner.analysis.facts import ALL, Facts
from chaosrunner.timeline import rows
from tests.drills.rehearsal import Rehearsal, rehearse

pytestmark = [pytest.mark.lab, pytest.mark.timeout(90)]

DRILLS = {
    "lab-evict-one-replica": "failed",
    "lab-evict-one-replica-graceful": "passed",
    "lab-drain-node": "passed",
    "lab-delete-pod": "passed",
    "lab-cordon-and-rollback": "passed",
}
"""Shipped drills that have a lab, with the verdict that each is made for."""

Rehearse = Callable[[str], Rehearsal]

AGREEMENT = 0.25
"""How far, in seconds, a stage of the analysis may be from the lab's own log of the same instant."""


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearse:
    """Rehearses a drill once for all tests that look at it."""
    timelines = tmp_path_factory.mktemp("timelines")

    @cache
    def run(drill: str) -> Rehearsal:
        return rehearse(drill, timelines)

    return run


@pytest.mark.parametrize(("drill", "verdict"), DRILLS.items())
def test_the_verdict_is_the_planned_one(rehearsed: Rehearse, drill: str, verdict: str) -> None:
    facts = rehearsed(drill).facts
    assert facts.verdict == verdict, (facts.reason, [check for check in facts.checks if check.verdict != "passed"])


@pytest.mark.parametrize("drill", DRILLS)
def test_live_figures_equal_replayed_ones(rehearsed: Rehearse, drill: str) -> None:
    found = rehearsed(drill)
    live, replayed = (msgspec.to_builtins(facts) for facts in (found.live, found.facts))
    for name in live:
        assert live[name] == replayed[name], name


def test_the_eviction_that_loses_streams_names_them(rehearsed: Rehearse) -> None:
    facts: Facts = rehearsed("lab-evict-one-replica").facts
    failed = {check.check for check in facts.checks if check.verdict == "failed"}
    assert {"loss_on_victim == 0", "incomplete_200 == 0"} <= failed
    (victim,) = facts.exposure.victims
    assert victim.exposed >= 1
    assert victim.lost == victim.exposed
    lost = {item.request: item for item in facts.lost_requests}
    for request in victim.requests:
        # A real vLLM with default settings: HTTP 200, finish_reason abort, usage, [DONE].
        assert (lost[request].outcome, lost[request].status, lost[request].same_pod) == ("aborted", 200, True)
        assert lost[request].pod == victim.pod
        assert lost[request].action == victim.action
        assert lost[request].straddles
    assert facts.incomplete_200[ALL] >= victim.lost
    assert facts.evictions[1].answer == "blocked_by_budget"


def test_the_graceful_twin_loses_nothing_and_was_exposed(rehearsed: Rehearse) -> None:
    facts: Facts = rehearsed("lab-evict-one-replica-graceful").facts
    assert facts.exposure.exposed >= 1
    assert facts.exposure.lost == 0
    assert facts.success_rate[ALL].value == 1
    assert facts.incomplete_200[ALL] == 0
    (gone,) = facts.terminations
    assert gone.exit_codes == {"model": 0}
    assert gone.late_by.value is not None
    assert gone.late_by.value < 0


@pytest.mark.parametrize("drill", ["lab-evict-one-replica", "lab-evict-one-replica-graceful", "lab-drain-node"])
def test_stages_agree_with_the_labs_own_log(rehearsed: Rehearse, drill: str) -> None:
    found = rehearsed(drill)
    anchor = found.recording.manifest.anchor
    said: dict[tuple[str, str], float] = {}
    for line in (found.folder / "lab.jsonl").read_text().splitlines():
        row = json.loads(line)
        said.setdefault((row.get("uid"), row["what"]), row["wall"] - anchor)
    compared = 0
    for replacement in found.facts.replacements:
        stages = replacement.milestones
        for what, seen in (
            ("created", stages.created.at),
            ("scheduled", stages.scheduled.at),
            ("started", stages.started.at),
            ("ready", stages.ready.at),
            ("endpoint_ready", stages.endpoint_ready.at),
            ("first_request", stages.first_routed.at),
            ("first_complete", stages.first_complete.at),
        ):
            if (logged := said.get((replacement.uid, what))) is not None:
                assert seen == pytest.approx(logged, abs=AGREEMENT), what
                compared += 1
    assert compared >= 7


def test_the_drained_node_is_schedulable_again(rehearsed: Rehearse) -> None:
    found = rehearsed("lab-drain-node")
    nodes: dict[str, list[bool]] = {}
    for row in found.recording.rows():
        if isinstance(row, rows.Node):
            nodes.setdefault(row.name, []).append(row.unschedulable)
    changed = {name: states for name, states in nodes.items() if True in states}
    assert len(changed) == 1
    (states,) = changed.values()
    assert states[0] is False
    assert states[-1] is False
    events = [row.event for row in found.recording.rows() if isinstance(row, rows.Journal)]
    assert events == ["intent", "applied", "undone"]


def test_only_the_replacement_is_cold(rehearsed: Rehearse) -> None:
    """As in the GPU recording: Ready is not warm; the replicas that were there before served warm from the start."""
    facts = rehearsed("lab-evict-one-replica").facts
    (replacement,) = facts.replacements
    assert replacement.warmup_slow >= 1
    assert replacement.ready_to_warm.value is not None
    assert replacement.ready_to_warm.value > 0
    slowest = facts.latency["chunk_gap"]["baseline"].max
    assert slowest is not None
    assert slowest < 0.5
    assert "ready_before_warm" in {finding.code for finding in facts.findings}


def test_alerts_are_seen_pending_firing_and_resolved(rehearsed: Rehearse) -> None:
    facts: Facts = rehearsed("lab-evict-one-replica").facts
    after = [item for item in facts.alerts if (item.pending_from or item.firing_from or 0) > facts.phases[0].end]
    assert [item.name for item in after] == ["ReplicaMissing"]


def test_the_recording_says_what_it_holds(rehearsed: Rehearse) -> None:
    found = rehearsed("lab-evict-one-replica")
    manifest = found.recording.manifest
    assert manifest.state == "ended"
    assert manifest.verdict == "failed"
    assert manifest.exit_code == 1
    assert {"rows.jsonl", "requests.parquet", "events.parquet", "journal.jsonl", "report.json", "lab.jsonl"} <= set(
        manifest.files
    )
    assert sum(manifest.rows.values()) == len(list(found.recording.rows()))
    assert all(target.spec for target in manifest.candidates)
    report = json.loads((found.folder / "report.json").read_text())
    assert report["verdict"] == "failed"


def test_every_row_id_of_the_report_is_in_the_recording(rehearsed: Rehearse) -> None:
    found = rehearsed("lab-evict-one-replica")
    known = {row.id for row in found.recording.rows()}

    def ids(value: object) -> Iterator[int]:
        if isinstance(value, dict):
            for key, item in value.items():
                if key == "evidence":
                    yield from item
                elif key in ("row", "action") and isinstance(item, int):
                    yield item
                else:
                    yield from ids(item)
        elif isinstance(value, list):
            for item in value:
                yield from ids(item)

    named = set(ids(msgspec.to_builtins(found.facts)))
    assert named
    assert named <= known


def test_timelines_are_written_below_the_drill(rehearsed: Rehearse) -> None:
    folder: Path = rehearsed("lab-delete-pod").folder
    assert folder.parent.name == "lab-delete-pod"
