"""Twenty runs of the torture; hundreds are for `python -m tests.torture`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.kinds import KINDS
from tests.torture.runs import Torture
from tests.torture.world import embedded

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]


def test_nothing_is_left_by_runs_that_are_killed_at_any_instant(tmp_path: Path) -> None:
    # chaos-mesh/chaos-mesh#1884, litmuschaos/litmus-go#520: what a tool that died left changed stayed so.
    with embedded(tmp_path / "lab") as lab:
        torture = Torture(lab, tmp_path, seed=3, kinds=list(KINDS), preforked=True)
        came = [torture.one(number) for number in range(20)]
    assert [(one.plan.number, one.left, one.late) for one in came if not one.good] == []
    killed = [one for one in came if not one.ended]
    assert len(killed) >= 8  # on a quick machine some end first
    assert {"guardian", "recover"} <= {one.by for one in killed}
    assert any(one.near for one in killed)
