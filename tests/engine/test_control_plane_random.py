"""Troubles of the control plane in any order, over a whole short drill: what must hold, holds."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chaosrunner.timeline import rows
from tests.engine import drills
from tests.engine.drills import BASELINE, hold
from tests.engine.lab import Lab
from tests.engine.outages import MOMENTS, QUICK, TROUBLES, Script, lose, sound
from tests.engine.proxy import Proxy
from tests.engine.test_endings import CORDON

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ANY = TROUBLES | {f"lose {part}": lose(part) for part in ("/eviction", "/nodes/", "/leases/")}

STEPS = [
    BASELINE,
    CORDON,
    {"evict": {"pods": 1}},
    {"wait": {"until": "replacement.ready and endpoints_back", "timeout": "40s"}},
    hold(0.3),
]


@settings(
    max_examples=6,
    phases=[Phase.explicit, Phase.generate],  # each example takes seconds: a smaller one is not worth the wait
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=st.dictionaries(st.sampled_from(sorted(MOMENTS)), st.sampled_from(sorted(ANY)), min_size=1, max_size=4))
def test_whatever_happens_when_the_invariants_hold(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, plan: dict[str, str]
) -> None:
    monkeypatch.setattr("chaosrunner.engine.run.ObserveScope", QUICK)
    before = lab.nodes()
    with tempfile.TemporaryDirectory() as made, Proxy.before(lab.server) as proxy:
        folder = Path(made)
        proxy.kubeconfig = lab.kubeconfig_for(proxy.url, folder / "kubeconfig")
        script = Script(proxy, {moment: ANY[trouble] for moment, trouble in plan.items()})
        ran = drills.run(
            drills.write(folder, lab, STEPS),
            lab,
            folder,
            kubeconfig=proxy.kubeconfig,
            on_row=script.on_row,
            request_timeout=2.0,
        )
        proxy.restore()
        sound(ran, lab, before)
    assert ran.facts.verdict in ("passed", "inconclusive"), ran.facts.reason
    went = {row.uid for row in ran.of(rows.Pod) if row.deletion_time is not None or row.seen in ("DELETED", "VANISHED")}
    assert len(went) <= 1
    assert lab.leases() == []
