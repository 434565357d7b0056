"""What the shipped drills whose faults last, or hit without taking, come to, whichever lab they are rehearsed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest

from chaosrunner.timeline import rows
from tests.drills.rehearsal import Rehearsal

Rehearse = Callable[[str], Rehearsal]
"""Rehearses a drill once for all tests that look at it."""


@dataclass(frozen=True)
class Plan:
    fault: str
    """As rows name it."""
    heals: bool = True
    """Whether something is left that must end."""
    loses: frozenset[str] = frozenset()
    """Outcomes other than `complete` that its requests may have."""
    hangs: bool = False
    """Whether who waits for the replica waits for longer than he has patience: some requests are lost for certain."""
    parameters: tuple[tuple[str, str], ...] = ()


HANGS = frozenset({"stalled_stream", "no_response", "http_error", "cut_stream", "connect_timeout"})
"""What comes of a replica that falls silent: at the probe's limit, or at the gateway's."""

DIES = frozenset(
    {"cut_stream", "http_error", "error_in_stream", "unterminated_stream", "stalled_stream", "no_response"}
)
"""What comes of a process that is killed."""

DRILLS = {
    "lab-grey-replica": Plan("network", loses=HANGS, hangs=True),
    "lab-slow-replica": Plan("network"),
    "lab-freeze-engine": Plan("freeze", loses=HANGS, hangs=True),
    "lab-kill-engine": Plan("kill", heals=False, loses=DIES),
    "lab-kill-container": Plan("kill", heals=False, loses=DIES),
    "lab-node-loss": Plan("command", loses=HANGS | DIES, hangs=True),
    "lab-rolling-restart-under-load": Plan("rollout_restart", heals=False),
    "lab-scale-down-under-load": Plan("scale"),
}
"""Drills that both labs can do, with what each is made for. All of them pass."""

REAL_ONLY = {
    "lab-isolate-replica": Plan("network", loses=HANGS, hangs=True, parameters=(("duration", "20s"),)),
    "lab-lossy-replica": Plan("network", loses=HANGS),
}
"""Those that need Pods with a network of their own."""


class FaultDrills:
    """Tests of such drills; whoever derives from it has fixtures `drill`, `plan` and `rehearsed`."""

    def test_the_drill_passes_and_loses_what_its_fault_takes(self, rehearsed: Rehearse, drill: str, plan: Plan) -> None:
        facts = rehearsed(drill).facts
        checks = {check.check: (check.verdict, check.text) for check in facts.checks}
        assert facts.verdict == "passed", (facts.reason, facts.lost_requests, checks)
        found = {outcome for phase in facts.outcomes.values() for outcome in phase}
        assert found <= {"complete", *plan.loses}, facts.lost_requests
        assert facts.lost_requests or not plan.hangs
        assert facts.exposure.victims

    def test_the_fault_bit_and_is_gone(self, rehearsed: Rehearse, drill: str, plan: Plan) -> None:
        found = rehearsed(drill)
        events = [row.event for row in found.of(rows.Effect) if row.fault == plan.fault]
        states = [row.event for row in found.of(rows.Journal)]
        if plan.fault in ("network", "freeze"):
            assert events == ["bitten", "healed"]
        if plan.fault == "kill":
            assert events == ["bitten"]
        if plan.heals:
            # What is in the target ends by itself at about the time when it is to be undone.
            assert states[0] == "intent"
            assert states[-1] in ("undone", "already_undone")
        else:
            assert states == []
        assert not {"did_not_bite", "did_not_heal"} & {finding.code for finding in found.facts.findings}

    def test_live_figures_equal_replayed_ones(self, rehearsed: Rehearse, drill: str, plan: Plan) -> None:
        found = rehearsed(drill)
        live, replayed = (msgspec.to_builtins(facts) for facts in (found.live, found.facts))
        for name in live:
            assert live[name] == replayed[name], name


def cases(*drills: str) -> pytest.MarkDecorator:
    """Parametrizes `drill` and `plan`: those named stay in the normal run, the others are slow."""
    return pytest.mark.parametrize(
        ("drill", "plan"),
        [
            pytest.param(drill, plan, id=drill, marks=[] if drill in drills else [pytest.mark.slow])
            for drill, plan in DRILLS.items()
        ],
    )
