from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills import policy
from tests.drills.rehearsal import rehearse

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def test_a_policy_that_nobody_enforces_is_no_outage_survived(tmp_path: Path) -> None:
    policy.check(rehearse(policy.drill(tmp_path), tmp_path / "timelines"))
