"""The control plane fails in mid-drill, in every way and at every moment: the drill goes on, and tells the gaps."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaosrunner.errors import Refused
from chaosrunner.timeline import rows
from tests.engine import drills, outages
from tests.engine.drills import BASELINE, Ran, hold
from tests.engine.lab import Lab
from tests.engine.outages import QUICK, TROUBLES, Script, Trouble, lose, sound
from tests.engine.proxy import ETCD_SLOW, NO_ROLE, OVERLOADED, UNAUTHORIZED, UNAVAILABLE, Proxy, Refusal
from tests.engine.test_endings import CORDON

pytestmark = pytest.mark.lab

WAIT = {"wait": {"until": "replacement.ready and endpoints_back", "timeout": "40s"}}
EVICT = {"evict": {"pods": 1}}
STEPS = [BASELINE, CORDON, EVICT, WAIT, hold(0.3)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaosrunner.engine.run.ObserveScope", QUICK)


def run(lab: Lab, proxy: Proxy, folder: Path, plan: dict[str, Trouble], steps: list[drills.Step] = STEPS) -> Ran:
    drill = drills.write(folder, lab, steps)
    before = lab.nodes()
    script = Script(proxy, dict(plan))
    ran = drills.run(drill, lab, folder, kubeconfig=proxy.kubeconfig, on_row=script.on_row, request_timeout=2.0)
    proxy.restore()
    assert not script.plan, "a trouble never began"
    sound(ran, lab, before)
    return ran


def went_on(ran: Ran) -> None:
    assert {result for _, result in ran.steps()} == {"ok"}
    assert (ran.facts.verdict, ran.facts.exit_code) == ("passed", 0)


def taken(ran: Ran) -> set[str | None]:
    """UIDs of the Pods that went."""
    return {row.uid for row in ran.of(rows.Pod) if row.deletion_time is not None or row.seen in ("DELETED", "VANISHED")}


@pytest.mark.parametrize(
    ("trouble", "moment"),
    [
        pytest.param("restart", "baseline", marks=pytest.mark.slow),
        pytest.param("restart", "before the fault", marks=pytest.mark.slow),
        pytest.param("restart", "cordon sent", marks=pytest.mark.slow),
        ("restart", "eviction sent"),
        pytest.param("restart", "wait", marks=pytest.mark.slow),
        pytest.param("restart", "undo sent", marks=pytest.mark.slow),
        pytest.param("cold start", "before the fault", marks=pytest.mark.slow),
        pytest.param("cold start", "eviction sent", marks=pytest.mark.slow),
        pytest.param("cold start", "undo sent", marks=pytest.mark.slow),
        pytest.param("freeze", "cordon sent", marks=pytest.mark.slow),
        pytest.param("freeze", "wait", marks=pytest.mark.slow),
        pytest.param("strand", "before the fault", marks=pytest.mark.slow),
        ("strand", "wait"),
        pytest.param("drop", "eviction sent", marks=pytest.mark.slow),
        ("401", "before the fault"),
        pytest.param("403 no role", "cordon sent", marks=pytest.mark.slow),
        ("429", "eviction sent"),
        pytest.param("429", "undo sent", marks=pytest.mark.slow),
        pytest.param("500 etcd slow", "eviction sent", marks=pytest.mark.slow),
        pytest.param("500 no leader", "cordon sent", marks=pytest.mark.slow),
        pytest.param("503", "wait", marks=pytest.mark.slow),
        pytest.param("504", "undo sent", marks=pytest.mark.slow),
    ],
)
def test_a_drill_goes_on(trouble: str, moment: str, lab: Lab, proxy: Proxy, tmp_path: Path) -> None:
    ran = run(lab, proxy, tmp_path, {moment: TROUBLES[trouble]})
    went_on(ran)
    assert len(taken(ran)) == 1  # however often it was asked for
    assert len(ran.facts.replacements) == 1


@pytest.mark.parametrize(
    "trouble", ["restart", *(pytest.param(name, marks=pytest.mark.slow) for name in ("strand", "cold start"))]
)
def test_trouble_at_the_very_end_is_a_gap_that_is_closed_or_told(
    trouble: str, lab: Lab, proxy: Proxy, tmp_path: Path
) -> None:
    ran = run(lab, proxy, tmp_path, {"end": TROUBLES[trouble]})
    assert {result for _, result in ran.steps()} == {"ok"}
    still = [gap for gap in ran.facts.gaps if gap.end is None and gap.resource in ("pods", "endpointslices")]
    assert ran.facts.verdict == ("inconclusive" if still else "passed")


@pytest.mark.parametrize(
    ("part", "moment", "steps"),
    [
        ("/nodes/", "cordon sent", STEPS),
        ("/eviction", "eviction sent", STEPS),
        pytest.param("/nodes/", "undo sent", STEPS, marks=pytest.mark.slow),
        ("/leases/", "before the fault", STEPS),
        pytest.param(
            "/pods/", "before the fault", [BASELINE, {"delete-pod": {"pods": 1}}, WAIT], marks=pytest.mark.slow
        ),
        pytest.param(
            "/eviction",
            "eviction sent",
            [BASELINE, {"drain": {"nodes": 1, "of": "workload", "timeout": "30s"}}, WAIT],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["cordon", "eviction", "undo", "lease", "delete", "drain"],
)
def test_a_change_whose_answer_is_lost_is_found_out(
    part: str, moment: str, steps: list[drills.Step], lab: Lab, proxy: Proxy, tmp_path: Path
) -> None:
    moments = {"before the fault": "baseline"} if "delete-pod" in steps[1] else {}
    ran = run(lab, proxy, tmp_path, {moments.get(moment, moment): lose(part)}, steps)
    went_on(ran)
    lost = [row for row in ran.of(rows.Action) if row.event == "answered" and row.ok is None]
    if part != "/leases/":
        assert len(lost) == 1  # it was carried out, so nothing was asked for twice in vain
    for replacement in ran.facts.replacements:
        calls = [row for row in ran.of(rows.Action) if row.event == "sent" and row.action in ("evict", "delete_pod")]
        assert replacement.fault_at in [call.at for call in calls if call.target.uid == replacement.replaces_uid]


def test_an_eviction_whose_answer_is_lost_is_asked_again_by_its_step(
    lab: Lab, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosrunner.engine.run.PATIENCE", 0.01)  # the fault itself does not ask again
    evict = {"evict": {"pods": 1, "retry_for": "20s"}}
    ran = run(lab, proxy, tmp_path, {"eviction sent": lose("/eviction")}, [BASELINE, evict, WAIT])
    went_on(ran)
    assert len(taken(ran)) == 1
    (step,) = [row for row in ran.of(rows.Step) if row.step == "evict" and row.event == "ended"]
    assert "its answer was lost, but the Pod is seen to go" in (step.reason or "")
    (said,) = [finding for finding in ran.facts.findings if finding.code == "accepted_by_effect"]
    deleted = {row.id for row in ran.of(rows.Pod) if row.uid in taken(ran)}
    assert deleted & set(said.evidence)


def test_an_outage_longer_than_a_fault_waits_for_is_inconclusive_and_tells_why(
    lab: Lab, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosrunner.engine.run.PATIENCE", 1.0)
    ran = run(lab, proxy, tmp_path, {"before the fault": lambda proxy: outages.restart(proxy, 4.0)})
    assert (ran.facts.verdict, ran.facts.exit_code) == ("inconclusive", 3)
    assert any(said in ran.facts.reason for said in ("no fault was started", "cannot be reached"))
    assert [row.action for row in ran.of(rows.Action) if row.event == "sent"] == ["cordon", "undo_cordon"]


def test_a_wait_that_times_out_in_an_outage_is_no_failure_of_the_workload(
    lab: Lab, proxy: Proxy, tmp_path: Path
) -> None:
    wait = {"wait": {"until": "pods_ready >= 3", "timeout": "2s"}}
    ran = run(lab, proxy, tmp_path, {"wait": lambda proxy: outages.restart(proxy, 3.0)}, [BASELINE, EVICT, wait])
    assert ran.facts.verdict == "inconclusive"
    assert "nothing was known of pods from" in ran.facts.reason


def test_a_drain_that_cannot_look_does_not_say_that_the_pods_stay(lab: Lab, proxy: Proxy, tmp_path: Path) -> None:
    drain = {"drain": {"nodes": 1, "of": "workload", "timeout": "2s"}}
    trouble = {"eviction sent": lambda proxy: outages.restart(proxy, 4.0)}
    ran = run(lab, proxy, tmp_path, trouble, [BASELINE, drain])
    assert ran.facts.verdict == "inconclusive"
    assert "stuck" not in ran.facts.reason


@pytest.mark.parametrize(
    "refusal", [UNAUTHORIZED, NO_ROLE, OVERLOADED, ETCD_SLOW, UNAVAILABLE], ids=lambda one: one.status
)
def test_a_server_that_is_not_up_to_it_before_the_run_refuses_it(
    refusal: Refusal, lab: Lab, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.refusal = refusal
    with pytest.RaisesGroup(Refused):
        drills.run(drills.write(tmp_path, lab, STEPS), lab, tmp_path, kubeconfig=proxy.kubeconfig)
    assert not proxy.mutating()
