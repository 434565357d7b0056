"""Every shipped lab drill, run for real on the embedded lab with phases of two or three seconds."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.drills.rehearsal import Rehearsal, rehearse
from tests.drills.shipped import Rehearse, ShippedDrills

pytestmark = [pytest.mark.lab, pytest.mark.timeout(90)]

AGREEMENT = 0.25
"""How far, in seconds, a stage of the analysis may be from the lab's own log of the same instant."""


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearse:
    timelines = tmp_path_factory.mktemp("timelines")

    @cache
    def run(drill: str) -> Rehearsal:
        return rehearse(drill, timelines)

    return run


class TestOnTheEmbeddedLab(ShippedDrills):
    pass


@pytest.mark.parametrize("drill", ["lab-evict-one-replica", "lab-evict-one-replica-graceful", "lab-drain-node"])
def test_stages_agree_with_the_labs_own_log(rehearsed: Rehearse, drill: str) -> None:
    found = rehearsed(drill)
    said = found.said_by_the_lab()
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


def test_timelines_are_written_below_the_drill(rehearsed: Rehearse) -> None:
    folder: Path = rehearsed("lab-evict-one-replica").folder
    assert folder.parent.name == "lab-evict-one-replica"
