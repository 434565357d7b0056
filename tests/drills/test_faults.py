"""Shipped drills with faults that last, run for real on the embedded lab with short phases."""

from __future__ import annotations

from functools import cache

import pytest

from chaosrunner.errors import Refused
from tests.drills.faults import DRILLS, REAL_ONLY, FaultDrills, Rehearse, cases
from tests.drills.rehearsal import Rehearsal, rehearse

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearse:
    timelines = tmp_path_factory.mktemp("timelines")

    @cache
    def run(drill: str) -> Rehearsal:
        return rehearse(drill, timelines, **dict(DRILLS[drill].parameters))

    return run


@cases("lab-freeze-engine")
class TestOnTheEmbeddedLab(FaultDrills):
    pass


@pytest.mark.parametrize("drill", REAL_ONLY)
def test_what_the_lab_cannot_do_is_refused_by_the_plan(drill: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its Pods are processes of this machine, with no network of their own."""
    with pytest.raises(Refused, match="Pods of the embedded lab have no network of their own"):
        rehearse(drill, tmp_path_factory.mktemp("timelines"))
