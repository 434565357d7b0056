"""What every shipped lab drill comes to, whichever lab it is rehearsed on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pytest

from chaosrunner.analysis.facts import ALL, PHASES, Facts
from chaosrunner.timeline import rows
from chaosrunner.timeline.outcomes import SUCCESSES
from tests.drills.rehearsal import Rehearsal

Rehearse = Callable[[str], Rehearsal]
"""Rehearses a drill once for all tests that look at it."""


@dataclass(frozen=True)
class Plan:
    verdict: str
    failed: frozenset[str] = frozenset()
    """Checks."""
    lost: frozenset[str] = frozenset()
    """Outcomes other than `complete` that its requests may have."""


DRILLS = {
    "lab-evict-one-replica": Plan(
        "failed",
        frozenset({"loss_on_victim == 0", "incomplete_200 == 0", "success_rate >= 99.9%"}),
        # Streams end with the replica; what the gateway still sends there is refused, or cut off unanswered.
        frozenset({"aborted", "http_error"}),
    ),
    "lab-evict-one-replica-graceful": Plan("passed"),
    "lab-drain-node": Plan("passed"),
    "lab-delete-pod": Plan("passed"),
    "lab-cordon-and-rollback": Plan("passed"),
    "lab-gateway-delay": Plan("passed"),
}
"""Shipped drills that have a lab, with what each is made for."""

ASKED_DIRECTLY = "lab-gateway-delay"
"""Its replicas also get requests that do not come through the gateway: their own logs tell of those too."""

TAKING = [drill for drill in DRILLS if drill not in ("lab-cordon-and-rollback", ASKED_DIRECTLY)]
"""Those that take a replica away, which is asked through the gateway only."""

PROPAGATION_DELAY = 2.0
"""Seconds by which the gateway of `ASKED_DIRECTLY` acts late on what it hears of endpoints."""

KEPT_BACK = 1.0
"""Seconds that a busy machine may keep back what everybody agrees on."""


class ShippedDrills:
    """Tests of the drills in `DRILLS`; whoever derives from it has a fixture `rehearsed`."""

    @pytest.mark.parametrize(("drill", "plan"), DRILLS.items(), ids=DRILLS)
    def test_the_verdict_is_the_planned_one(self, rehearsed: Rehearse, drill: str, plan: Plan) -> None:
        facts = rehearsed(drill).facts
        checks = {check.check: check.verdict for check in facts.checks}
        assert facts.verdict == plan.verdict, (facts.reason, facts.lost_requests, checks)
        assert {check for check, verdict in checks.items() if verdict != "passed"} == plan.failed

    @pytest.mark.parametrize(("drill", "plan"), DRILLS.items(), ids=DRILLS)
    def test_outcomes_are_the_planned_ones_in_each_phase(self, rehearsed: Rehearse, drill: str, plan: Plan) -> None:
        facts = rehearsed(drill).facts
        phases = [phase.name for phase in facts.phases]
        assert phases == list(PHASES)
        for phase in phases:
            # A stream that the fault ends was sent before it, in the baseline.
            lost = plan.lost if phase != "after" else frozenset()
            found = facts.outcomes.get(phase, {}).keys()
            assert found <= {"complete", *lost}, (phase, facts.lost_requests)
            # Nobody misses a replica because its node is cordoned: the service is whole again at once.
            assert found or (drill, phase) == ("lab-cordon-and-rollback", "during")

    @pytest.mark.parametrize("drill", DRILLS)
    def test_live_figures_equal_replayed_ones(self, rehearsed: Rehearse, drill: str) -> None:
        found = rehearsed(drill)
        live, replayed = (msgspec.to_builtins(facts) for facts in (found.live, found.facts))
        for name in live:
            assert live[name] == replayed[name], name

    @pytest.mark.parametrize("drill", TAKING)
    def test_streams_were_in_flight_on_the_victim(self, rehearsed: Rehearse, drill: str) -> None:
        assert rehearsed(drill).facts.exposure.exposed >= 1

    def test_the_eviction_that_loses_streams_names_them(self, rehearsed: Rehearse) -> None:
        found = rehearsed("lab-evict-one-replica")
        facts: Facts = found.facts
        (victim,) = facts.exposure.victims
        lost = {item.request: item for item in facts.lost_requests}
        cut = [lost[request] for request in victim.requests if request in lost]
        assert len(cut) == victim.lost >= 1
        for one in cut:
            # A real vLLM with default settings: HTTP 200, finish_reason abort, usage, [DONE].
            assert (one.outcome, one.status, one.same_pod) == ("aborted", 200, True)
            assert one.pod == victim.pod
            assert one.action == victim.action
            assert one.straddles
        # The others, if any, came to their own end before SIGTERM came to the replica.
        ends = {row.request: row.at for row in found.of(rows.Request)}
        sigterm = min(one.ended for one in cut)
        assert all(ends[request] <= sigterm for request in victim.requests if request not in lost)
        assert facts.incomplete_200[ALL] >= victim.lost
        assert facts.evictions[1].answer == "blocked_by_budget"

    def test_the_graceful_twin_loses_nothing_and_was_exposed(self, rehearsed: Rehearse) -> None:
        facts: Facts = rehearsed("lab-evict-one-replica-graceful").facts
        assert facts.exposure.lost == 0
        assert facts.success_rate[ALL].value == 1
        assert facts.incomplete_200[ALL] == 0
        (gone,) = facts.terminations
        assert gone.exit_codes == {"model": 0}
        assert gone.late_by.value is not None
        assert gone.late_by.value < 0

    @pytest.mark.parametrize("drill", ["lab-drain-node"])
    def test_the_drained_node_is_schedulable_again(self, rehearsed: Rehearse, drill: str) -> None:
        found = rehearsed(drill)
        nodes: dict[str, list[bool]] = {}
        for row in found.of(rows.Node):
            nodes.setdefault(row.name, []).append(row.unschedulable)
        changed = {name: states for name, states in nodes.items() if True in states}
        assert len(changed) == 1
        (states,) = changed.values()
        assert states[0] is False
        assert states[-1] is False
        assert [row.event for row in found.of(rows.Journal)] == ["intent", "applied", "undone"]

    def test_only_the_replacement_is_cold(self, rehearsed: Rehearse) -> None:
        """As in the GPU recording: Ready is not warm; the replicas that were there before served warm from the
        start."""
        facts = rehearsed("lab-evict-one-replica").facts
        (replacement,) = facts.replacements
        assert replacement.warmup_slow >= 1
        assert replacement.ready_to_warm.value is not None
        assert replacement.ready_to_warm.value > 0
        gap = facts.latency["chunk_gap"]["baseline"].p95
        assert gap is not None
        assert gap < 0.5
        assert "ready_before_warm" in {finding.code for finding in facts.findings}

    def test_alerts_are_seen_pending_firing_and_resolved(self, rehearsed: Rehearse) -> None:
        facts: Facts = rehearsed("lab-evict-one-replica").facts
        after = [item for item in facts.alerts if (item.pending_from or item.firing_from or 0) > facts.phases[0].end]
        assert [item.name for item in after] == ["ReplicaMissing"]

    def test_the_recording_says_what_it_holds(self, rehearsed: Rehearse) -> None:
        found = rehearsed("lab-evict-one-replica")
        manifest = found.recording.manifest
        assert manifest.state == "ended"
        assert manifest.verdict == "failed"
        assert manifest.exit_code == 1
        assert {"rows.jsonl", "requests.parquet", "events.parquet", "journal.jsonl", "report.json", "lab.jsonl"} <= set(
            manifest.files
        )
        assert sum(manifest.rows.values()) == len(found.rows)
        assert all(target.spec for target in manifest.candidates)
        report = json.loads((found.folder / "report.json").read_text())
        assert report["verdict"] == "failed"

    def test_the_gateway_was_late_by_its_delay(self, rehearsed: Rehearse) -> None:
        found = rehearsed(ASKED_DIRECTLY)
        said = found.said_by_the_lab()
        (probe,) = found.facts.direct
        (fresh,) = [replica for replica in probe.replicas if replica.role == "replacement"]
        assert fresh.fresh
        assert fresh.served.at is not None
        assert fresh.routed.at is not None
        # Nobody asked the replacement before the probe did that needs no gateway.
        assert said[fresh.uid, "first_request"] == pytest.approx(fresh.served.at, abs=KEPT_BACK)
        acted = said[fresh.uid, "endpoint_ready"] + PROPAGATION_DELAY
        assert acted - 0.1 <= fresh.routed.at <= acted + 2 * KEPT_BACK
        assert fresh.routing_delay.value == fresh.routed.at - fresh.served.at
        assert fresh.routing_delay.value >= PROPAGATION_DELAY - KEPT_BACK
        assert fresh.passed_by
        (told,) = [finding for finding in found.facts.findings if finding.code == "routing_delay"]
        assert told.severity == "warning"
        assert told.text.endswith("the gateway was late")

    def test_what_replicas_were_asked_directly_is_none_of_the_services(self, rehearsed: Rehearse) -> None:
        found = rehearsed(ASKED_DIRECTLY)
        requests = found.of(rows.Request)
        direct = [row for row in requests if row.replica is not None]
        assert {row.probe for row in direct} == {"direct"}
        assert {row.probe for row in requests if row.replica is None} == {"chat"}
        (probe,) = found.facts.direct
        assert sum(found.facts.outcomes[ALL].values()) == len(requests) - len(direct)
        assert sum(probe.outcomes[ALL].values()) + probe.early == len(direct)
        uids = {row.name: row.uid for row in found.of(rows.Pod)}
        assert all(row.pod is None or uids[row.pod] == row.replica for row in direct)
        assert {row.replica for row in direct} == {replica.uid for replica in probe.replicas}
        assert len(probe.replicas) == 4  # a victim, its replacement, and the two others
        # A replica that drains finishes what it has, and is then asked in vain until it is gone; on a real node its
        # address goes before its Pod does, and nobody answers for it any more.
        (victim,) = [replica for replica in probe.replicas if replica.role == "victim"]
        refused = [row for row in direct if row.replica == victim.uid and row.outcome not in SUCCESSES]
        ends = {row.outcome for row in refused}
        assert ends <= {"connect_refused", "connect_reset", "connect_timeout", "no_response", "http_error"}, ends
        for replica in probe.replicas:
            if replica.role is None:
                assert replica.successes == replica.requests > 0

    def test_every_row_id_of_the_report_is_in_the_recording(self, rehearsed: Rehearse) -> None:
        found = rehearsed("lab-evict-one-replica")
        known = {row.id for row in found.rows}

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
