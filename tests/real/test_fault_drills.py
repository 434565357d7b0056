"""Shipped drills with faults that last, on a real Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from chaosrunner.cli import lab_process
from tests.drills.faults import DRILLS, REAL_ONLY, FaultDrills, Plan, Rehearse
from tests.drills.rehearsal import Rehearsal, rehearse
from tests.labs import RealLab

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

QUICK = ("lab-isolate-replica", "lab-lossy-replica")
"""Those of the normal run; the others are slow."""

ALL = DRILLS | REAL_ONLY


AT_ONCE = 2
"""Drills that run side by side, each in namespaces of its own."""

ALONE = "lab-node-loss"
"""It would take what others have on its node."""


@pytest.fixture(scope="module")
def rehearsed(
    real_lab: RealLab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Rehearse]:
    """All drills that are asked for begin with the first."""
    timelines = tmp_path_factory.mktemp("timelines")
    here = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    asked = dict.fromkeys(str(item.callspec.params["drill"]) for item in here)

    def lab(spec: dict[str, object]) -> object:
        return lab_process.on_real_lab(spec, real_lab.state, lambda doing: None)

    def run(drill: str, after: Sequence[Future[Rehearsal]] = ()) -> Rehearsal:
        wait(after)
        return rehearse(drill, timelines, lab=lab, **dict(ALL[drill].parameters))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {drill: pool.submit(run, drill) for drill in asked if drill != ALONE}
        if ALONE in asked:
            runs[ALONE] = pool.submit(run, ALONE, list(runs.values()))
        yield lambda drill: runs[drill].result()


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
