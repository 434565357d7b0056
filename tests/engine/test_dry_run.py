"""Plans and dry runs change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaosrunner.timeline import rows
from tests.engine import drills
from tests.engine.drills import BASELINE, hold
from tests.engine.lab import Lab
from tests.engine.proxy import Proxy

pytestmark = pytest.mark.lab


TAKE = [{"evict": {"pods": 1}}, {"cordon": {"nodes": 1}}, {"delete-pod": {"pods": 1}}]


@pytest.mark.parametrize("steps", [TAKE, [{"drain": {"nodes": 1}}]], ids=["pods", "drain"])
def test_a_plan_sends_reads_reviews_and_dry_runs_only(
    steps: list[drills.Step], lab: Lab, proxy: Proxy, tmp_path: Path
) -> None:
    # asobti/kube-monkey#115, lwolf/kube-cleanup-operator#47: dry runs that were none.
    drill = drills.write(tmp_path, lab, [BASELINE, *steps])
    before, pods = lab.nodes(), lab.pods()

    code, out, err = drills.invoke("plan", str(drill), "--kubeconfig", proxy.kubeconfig, "-o", "json")

    assert code == 0, out + err
    assert proxy.mutating() == []
    assert [call.path for call in proxy.calls if "/leases" in call.path and call.method != "GET"] == []
    assert any(call.path.endswith("/eviction") and call.dry_run for call in proxy.calls)  # the server was asked
    assert '"predicted": "accepted"' in out
    assert (lab.nodes(), lab.pods()) == (before, pods)


def test_a_drill_of_dry_runs_takes_its_lease_and_changes_nothing_else(lab: Lab, proxy: Proxy, tmp_path: Path) -> None:
    steps = [BASELINE, {"evict": {"pods": 1, "dry_run": True}}, hold(0.2)]
    drill = drills.write(tmp_path, lab, steps)
    before, pods = lab.nodes(), lab.pods()
    ran = drills.run(drill, lab, tmp_path, kubeconfig=proxy.kubeconfig)
    assert ran.steps() == [("baseline", "ok"), ("evict", "ok"), ("hold", "ok")]
    assert {path.rpartition("/leases")[1] for _, path in proxy.mutating()} == {"/leases"}
    assert [row.dry_run for row in ran.of(rows.Action)] == [True, True]
    assert [eviction.dry_run for eviction in ran.facts.evictions] == [True]
    assert ran.facts.exposure.victims == []
    assert (lab.nodes(), lab.pods()) == (before, pods)
