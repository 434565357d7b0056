"""Borders: the instant of the fault itself, gaps, what was there before the recording, and which rows show a figure."""

from __future__ import annotations

import pytest
from msgspec import structs

from chaosrunner.analysis import ProbeContext, Slo
from chaosrunner.timeline import rows
from tests.analysis.tape import Tape, checked, codes, context, facts, finding, live, time


def settled(tape: Tape, *pods: str) -> None:
    for pod in pods:
        tape.pod(0.0, pod, "LISTED", ready=True)
    tape.endpoints(0.0, "LISTED", **dict.fromkeys(pods, True))


def test_requests_at_the_very_instant_of_the_fault() -> None:
    tape = Tape()
    settled(tape, "a", "b")
    sent_at_fault = tape.request(10.0, 12.0, "cut_stream", status=200, pod="a")
    tape.request(9.0, 10.0, pod="a")  # ended at that instant: not in flight any more
    tape.request(10.5, 11.0, pod="a")  # sent after it: routed there all the same
    tape.request(9.5, 11.0, once=True, pod="a")  # outside every rate
    tape.request(9.5, 11.0, "cancelled", status=200, pod="a")
    tape.evict(10.0, "a")
    tape.end(20.0)
    victim = facts(tape).exposure.victims[0]
    assert (victim.exposed, victim.lost, victim.requests) == (1, 1, [sent_at_fault.request])
    assert (victim.routed_after, victim.routed_after_lost, victim.last_routed) == (1, 0, 10.5)


def test_an_slo_decides_alone_what_is_warm() -> None:
    tape = Tape()
    settled(tape, "a", "b")
    for number in range(5):
        tape.request(number, number + 0.9, pod="b", largest_gap=0.05)
    tape.evict(10.0, "a")
    tape.pod(11.0, "c", "ADDED", ready=True)
    tape.endpoints(11.0, b=True, c=True)
    for sent, gap in ((20.0, 5.0), (30.0, 0.05), (40.0, 0.05), (50.0, 0.05)):
        tape.request(sent, sent + 6, pod="c", largest_gap=gap)
    tape.end(60.0)
    warm = {
        name: facts(tape, context(probes=(ProbeContext(name="chat", slo=slo),))).replacements[0].milestones.warm.at
        for name, slo in {
            "ttft only": Slo(ttft=0.5),
            "ttft and gap": Slo(ttft=0.5, chunk_gap=1.0),
            # Twice the baseline's p95: 0.2 s and 0.1 s.
            "none": Slo(),
        }.items()
    }
    assert warm == {"ttft only": 20.0, "ttft and gap": 30.0, "none": 30.0}


def test_the_gap_of_a_single_chunk_misses_no_limit() -> None:
    tape = Tape()
    tape.request(0.0, 1.0, first_token=0.5, last_token=0.5, tokens=10)
    tape.request(0.0, 1.0, first_token=0.5, last_token=0.9, tokens=10)  # its chunks are not known
    tape.end(2.0)
    good = facts(tape, context(probes=(ProbeContext(name="chat", slo=Slo(chunk_gap=0.1)),))).good_share["all"]
    assert good is not None
    assert (good.successes, good.total) == (1, 2)


def test_each_victim_has_its_own_zero_and_the_worst_counts() -> None:
    tape = Tape()
    settled(tape, "a", "b")
    tape.evict(10.0, "a")
    tape.pod(11.0, "x", "ADDED", phase="Pending")
    tape.evict(20.0, "b")
    tape.pod(21.0, "y", "ADDED", phase="Pending")
    for at, pod in ((25.0, "x"), (30.0, "y")):
        tape.pod(at, pod, ready=True)
        for number in range(3):
            tape.request(at + 1 + number, at + 1.5 + number, pod=pod)
    tape.endpoints(30.0, x=True, y=True)
    tape.end(60.0)
    found = facts(tape, context(probes=(ProbeContext(name="chat", slo=Slo(ttft=0.5)),)))
    assert [r.time_to_serve.value for r in found.replacements] == [16.0, 11.0]
    assert found.recovery.time_to_serve.value == 16.0


def test_a_deletion_that_a_gap_hid_lies_somewhere_in_it() -> None:
    tape = Tape()
    settled(tape, "a", "b")
    opened = tape.watch(10.0, "pods", "gap_opened", last_alive=5.0)
    relisted = tape.pod(20.0, "a", "RELISTED", deletion_time=time(19), deletion_grace=0.0)
    # An event that the server had kept back for the resumed watch.
    late = tape.pod(20.0, "b", "MODIFIED", deletion_time=time(19), deletion_grace=0.0)
    tape.watch(20.0, "pods", "gap_closed")
    tape.end(30.0)
    assert opened in tape.rows
    relisted.gap = late.gap = opened.id
    found = facts(tape)
    assert [(d.pod, d.type, d.at, d.low, d.high) for d in found.disruptions] == [
        ("a", "deletion", None, 5.0, 20.0),
        ("b", "deletion", None, 5.0, 20.0),
    ]
    # Grace 0 after a gap is a rewrite as likely as a request.
    assert [(t.requested.at, t.deadline.at) for t in found.terminations] == [(None, None)] * 2


def test_pods_that_were_leaving_before_the_recording_are_no_disruption_of_it() -> None:
    tape = Tape()
    settled(tape, "a")
    target = rows.Condition(type="DisruptionTarget", status="True", reason="EvictionByEvictionAPI")
    leaving = {"deletion_time": time(20), "deletion_grace": 30.0}
    tape.pod(0.0, "old", "LISTED", conditions=[target], **leaving)
    tape.pod(0.0, "shut", "LISTED", phase="Failed", reason="Terminated")
    tape.pod(5.0, "old", "DELETED", conditions=[target], **leaving)
    tape.end(10.0)
    found = facts(tape)
    assert found.disruptions == []
    assert codes(found) == set()


def test_evidence_names_the_rows_of_the_figure_and_no_others() -> None:
    tape = Tape()
    settled(tape, "a", "b")
    node = rows.Target(kind="Node", name="n1")
    for event in ("sent", "answered"):
        tape.add(rows.Action(at=8.0, event=event, call=99, action="cordon", target=node, answer="accepted", ok=True))  # type: ignore[arg-type]
    early = tape.request(1.0, 2.0, "http_error", status=500)
    late = tape.request(55.0, 56.0, "http_error", status=500)
    tape.request(57.0, 58.0, "http_error", status=500, once=True)
    slow = tape.request(50.0, 59.0, first_token=53.0)
    tape.request(51.0, 52.0)
    unplaced = tape.request(9.0, 11.0)
    tape.evict(10.0, "a")
    tape.end(60.0)
    found = facts(
        tape,
        context("evictions(accepted) == 1", "success_rate[10s] > 0", "outcome(http_error) == 2", "p99(ttft) > 1s",
                "unplaced == 1"),
    )  # fmt: skip
    eviction = [row.id for row in tape.rows if isinstance(row, rows.Action) and row.action == "evict"]
    shown = {name: check.evidence for name, check in checked(found).items()}
    assert list(shown.values()) == [eviction, [late.id], [early.id, late.id], [slow.id], [unplaced.id]]
    assert {check.verdict for check in found.checks} == {"passed"}
    assert "is known to have been" in finding(found, "not_exposed").text


@pytest.mark.parametrize(("active", "fired"), [(5.0, "skipped"), (12.0, "passed")])
def test_an_alert_that_prometheus_saw_before_the_fault_is_not_its_doing(active: float, fired: str) -> None:
    # The first poll that shows it comes after the fault in both cases.
    tape = Tape()
    settled(tape, "a", "b")
    rule = rows.Rule(name="Slow", state="inactive", health="ok")
    alert = rows.Alert(name="Slow", state="firing", labels={"alertname": "Slow"}, active_time=time(active))
    tape.add(rows.Alerts(at=4.0, ok=True, rules=[rule]))
    tape.evict(10.0, "a")
    for at in (15.0, 30.0):
        tape.add(rows.Alerts(at=at, ok=True, rules=[rule], alerts=[alert]))
    tape.end(31.0)
    found = facts(tape, context('alert_fired("Slow")'))
    assert found.checks[0].verdict == fired
    assert ("alert_before_fault" in codes(found)) is (fired == "skipped")


def test_a_skipped_check_says_which_stage_is_missing() -> None:
    tape = Tape()
    settled(tape, "a", "b")
    tape.evict(10.0, "a")
    tape.pod(11.0, "c", "ADDED", phase="Pending")
    tape.end(20.0)
    (check,) = facts(tape, context("time_to_ready <= 5s")).checks
    assert (check.verdict, check.reason) == ("skipped", "c: not seen")


def test_the_baseline_holds_requests_that_end_after_the_fault() -> None:
    tape = Tape()
    settled(tape, "a", "b")
    for number in range(3):
        tape.request(number, number + 0.9, pod="b")
    # Sent before the fault and known only after it: it moves what is usual from 0.1 s to 6 s.
    tape.request(9.0, 25.0, pod="b", first_token=15.0)
    tape.evict(10.0, "a")
    tape.pod(11.0, "c", "ADDED", ready=True)
    tape.endpoints(11.0, b=True, c=True)
    for number in range(12, 40):
        tape.request(number, number + 0.9, pod="c", first_token=number + 0.5)
    tape.end(60.0)
    ordered = tape.rows
    warm = {}
    analysis = live([], context())
    for row in ordered:
        analysis.feed(row)
        # Asked at every row: what was found before must not stay.
        warm[row.at] = analysis.scope().value("replacement.warm", (), None)
    assert (warm[24.9], warm[25.0], warm[60.0]) == (False, True, True)
    assert facts(tape).replacements[0].milestones.warm.at == 12.0


def test_the_loss_on_the_victim_of_one_probe() -> None:
    tape = Tape()
    settled(tape, "a", "b")
    tape.request(9.0, 12.0, "cut_stream", status=200, pod="a", probe="chat")
    tape.request(9.0, 12.0, pod="a", probe="batch")
    tape.request(9.0, 12.0, probe="batch")
    tape.evict(10.0, "a")
    tape.end(20.0)
    (plain,) = context("loss_on_victim == 0").checks
    checks = tuple(structs.replace(plain, probe=probe, name=probe) for probe in ("chat", "batch", "absent"))
    found = facts(tape, context(checks=checks))
    assert [(check.check, check.verdict) for check in found.checks] == [
        ("chat", "failed"),
        ("batch", "passed"),
        ("absent", "skipped"),
    ]
    assert (found.exposure.exposed, found.exposure.lost, found.exposure.unplaced) == (2, 1, 1)


def test_a_victim_that_has_not_left_yet_is_not_back() -> None:
    """Between the answer of the eviction and the first watch event the endpoints look as they did before."""
    tape = Tape()
    for name in ("a", "b"):
        tape.pod(0.1, name, "LISTED", ready=True)
    tape.endpoints(0.2, "LISTED", a=True, b=True)
    tape.evict(5.0, "a")
    seen = live(tape.rows, context())
    assert seen.scope(now=5.1).value("endpoints_back", (), None) is False
    assert seen.scope(now=5.1).value("pods_ready", (), None) == 1


@pytest.mark.parametrize(
    ("reused", "reached", "told"), [(True, False, True), (False, False, True), (True, True, False)]
)
def test_a_replacement_that_no_connection_leads_to_is_told(reused: bool, reached: bool, told: bool) -> None:
    """Behind the address of a Service: connections that outlive the fault never get to the new Pod."""
    tape = Tape()
    for pod in "ab":
        tape.pod(0.0, pod, "LISTED", ready=True)
    tape.endpoints(0.0, "LISTED", a=True, b=True)
    tape.evict(10.0, "a")
    tape.pod(10.1, "a", deletion_time=time(40), deletion_grace=30.0)
    tape.pod(10.2, "c", "ADDED", created_time=time(10), ready=False)
    tape.pod(15.0, "c", ready=True)
    tape.endpoints(15.1, b=True, c=True)
    for number in range(60):
        at = 1.0 + number * 0.5
        tape.request(at, at + 0.4, pod="c" if reached and number == 50 else "b")
    tape.end(35.1)
    found = facts(tape, context(probes=(ProbeContext(name="chat", reuses_connections=reused, pod_header="x"),)))
    assert ("not_routed" in codes(found)) == told
    if told:
        said = finding(found, "not_routed")
        assert said.text == "c was a ready endpoint for 20.0 s, and all 31 requests sent since went to other Pods"
        assert ("connection: new" in (said.advice or "")) == reused
