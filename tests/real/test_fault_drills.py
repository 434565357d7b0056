"""Shipped drills with faults that last, on a real Kubernetes."""

from __future__ import annotations

from functools import cache

import pytest

from chaosrunner.cli import lab_process
from tests.drills.faults import DRILLS, REAL_ONLY, FaultDrills, Plan, Rehearse
from tests.drills.rehearsal import Rehearsal, rehearse
from tests.labs import RealLab

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

QUICK = ("lab-isolate-replica", "lab-lossy-replica")
"""Those of the normal run; the others are slow."""

ALL = DRILLS | REAL_ONLY


@pytest.fixture(scope="module")
def rehearsed(real_lab: RealLab, tmp_path_factory: pytest.TempPathFactory) -> Rehearse:
    timelines = tmp_path_factory.mktemp("timelines")

    def lab(spec: dict[str, object]) -> object:
        return lab_process.on_real_lab(spec, real_lab.state, lambda doing: None)

    @cache
    def run(drill: str) -> Rehearsal:
        return rehearse(drill, timelines, lab=lab, **dict(ALL[drill].parameters))

    return run


@pytest.mark.parametrize(
    ("drill", "plan"),
    [
        pytest.param(drill, plan, id=drill, marks=[] if drill in QUICK else [pytest.mark.slow])
        for drill, plan in ALL.items()
    ],
)
class TestOnTheRealLab(FaultDrills):
    def test_by_rules_in_the_pods_own_network(self, rehearsed: Rehearse, drill: str, plan: Plan) -> None:
        if plan.fault == "network" and drill != "lab-slow-replica":
            found = rehearsed(drill)
            assert "ephemeral-container" in str(found.recording.manifest.plan)
