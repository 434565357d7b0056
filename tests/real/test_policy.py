"""A real Kubernetes without a network plugin that enforces NetworkPolicies takes them, and nothing is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaosrunner.cli import lab_process
from tests.drills import policy
from tests.drills.rehearsal import rehearse
from tests.labs import RealLab

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def test_a_policy_that_nobody_enforces_is_no_outage_survived(real_lab: RealLab, tmp_path: Path) -> None:
    def lab(spec: dict[str, object]) -> object:
        return lab_process.on_real_lab(spec, real_lab.state, lambda doing: None)

    policy.check(rehearse(policy.drill(tmp_path), tmp_path / "timelines", lab=lab))
