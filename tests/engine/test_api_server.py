"""The API server goes away in mid-drill: the streams go on, the gap is told, and nothing false is concluded."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaosrunner.timeline import rows
from tests.engine import drills
from tests.engine.drills import BASELINE, hold
from tests.engine.lab import Lab
from tests.engine.proxy import Proxy
from tests.engine.test_endings import CORDON, cordon_ended

pytestmark = pytest.mark.lab


def test_probes_go_on_without_the_api_server_and_the_gap_is_told(lab: Lab, proxy: Proxy, tmp_path: Path) -> None:
    # Azure/AKS#774, kubernetes-client/python#2462: watches that ended with the control plane, and nobody knew.
    checks = ["success_rate == 1", "zero_ready_seconds == 0"]
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(3)], playbook={"checks": checks})
    before = lab.nodes()

    def on_row(row: rows.Row) -> None:
        if cordon_ended(row):
            proxy.cut()
            proxy.restore_after(1.2)

    ran = drills.run(drill, lab, tmp_path, kubeconfig=proxy.kubeconfig, on_row=on_row)

    assert ran.facts.run.state == "ended"
    gaps = {gap.resource: gap for gap in ran.facts.gaps}
    assert {"pods", "nodes", "endpointslices", "poddisruptionbudgets"} <= gaps.keys()
    for gap in gaps.values():
        assert gap.end is not None
        assert 1.0 < gap.end - gap.begin < 10
    begin, end = gaps["pods"].begin, gaps["pods"].end
    assert end is not None
    inside = [row for row in ran.of(rows.Request) if begin + 0.1 < row.sent < end - 0.2]
    assert len(inside) >= 5
    assert {row.outcome for row in inside} == {"complete"}
    assert "observations_incomplete" in {finding.code for finding in ran.facts.findings}
    # Whether there was a ready endpoint all the time is not known: not proven is not passed, and not failed either.
    assert {check.check: check.verdict for check in ran.facts.checks} == {
        "success_rate == 1": "passed",
        "zero_ready_seconds == 0": "skipped",
    }
    assert (ran.facts.verdict, ran.facts.exit_code) == ("inconclusive", 3)
    assert lab.nodes() == before


def test_an_eviction_that_never_gets_an_answer_is_inconclusive_and_no_failure(
    lab: Lab, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosrunner.engine.run.PATIENCE", 1.0)
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, {"evict": {"pods": 1}}, hold(1)])
    before, pods = lab.nodes(), lab.pods()
    proxy.delays.append(("POST", "/eviction", 0.3))

    def on_row(row: rows.Row) -> None:
        if isinstance(row, rows.Action) and (row.action, row.event) == ("evict", "sent"):
            proxy.cut()
            proxy.restore_after(2.5)

    ran = drills.run(drill, lab, tmp_path, kubeconfig=proxy.kubeconfig, on_row=on_row)

    assert (ran.facts.verdict, ran.facts.exit_code) == ("inconclusive", 3)
    assert "expected accepted, got unreachable" in ran.facts.reason
    assert ran.steps() == [("baseline", "ok"), ("cordon", "ok"), ("evict", "inconclusive"), ("hold", "skipped")]
    first, *later = [row for row in ran.of(rows.Action) if (row.action, row.event) == ("evict", "answered")]
    assert (first.answer, first.ok) == ("unreachable", None)  # nobody can tell whether it was carried out
    assert {(row.answer, row.ok) for row in later} == {("unreachable", False)}  # not sent
    assert lab.nodes() == before
    assert lab.pods() == pods


def test_the_undo_waits_for_an_api_server_that_is_away_at_the_end(lab: Lab, proxy: Proxy, tmp_path: Path) -> None:
    drill = drills.write(tmp_path, lab, [BASELINE, CORDON, hold(0.3)])
    before = lab.nodes()

    def on_row(row: rows.Row) -> None:
        if cordon_ended(row):
            proxy.cut()
            proxy.restore_after(2.8)  # longer than three tries take

    ran = drills.run(drill, lab, tmp_path, kubeconfig=proxy.kubeconfig, on_row=on_row)
    assert ran.journal() == ["intent", "applied", "undone"]
    assert lab.nodes() == before
