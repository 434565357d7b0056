"""Problems from public reports, re-created in our own words, each with its right answer."""

from __future__ import annotations

import pytest

from chaosrunner.analysis import ProbeContext, Slo
from chaosrunner.analysis.clocks import Clocks, Interval, order
from chaosrunner.timeline import rows
from tests.analysis.tape import ANCHOR, Tape, checked, codes, context, facts, finding, live, time


def settled(tape: Tape, *pods: str) -> None:
    """The workload before the fault: these Pods, Ready and in the slice."""
    for pod in pods:
        tape.pod(0.0, pod, "LISTED", ready=True)
    tape.endpoints(0.0, "LISTED", **dict.fromkeys((pod.replace("-", "_") for pod in pods), True))


def test_requests_that_still_reached_the_terminating_pod_are_counted_apart() -> None:
    # mattrobinsonsre/terrapod#222, kubernetes-sigs/aws-load-balancer-controller#1064
    tape = Tape()
    settled(tape, "a", "b")
    tape.evict(100.0, "a")
    tape.endpoints(100.3, a=False, b=True)
    tape.request(101.2, 104.0, pod="a")
    for sent in (106.0, 111.4, 117.9):
        tape.request(sent, sent + 0.1, "http_error", status=502, pod="a")
    tape.end(160.0)
    victim = facts(tape).exposure.victims[0]
    assert (victim.routed_after, victim.routed_after_lost, victim.exposed) == (4, 3, 0)
    assert victim.last_routed is not None
    # ready=false was seen at 100.3: the routes outlived it by 17.6 s.
    assert victim.last_routed - 100.3 == pytest.approx(17.6)


def test_both_replicas_on_one_node_without_a_budget() -> None:
    # Systemorph/MeshWeaver#3772, #3774
    tape = Tape()
    for pod in ("x", "y"):
        tape.pod(0.0, pod, "LISTED", ready=True, node="n1")
    tape.endpoints(0.0, "LISTED", x=True, y=True)
    tape.watch(0.0, "poddisruptionbudgets", "listed", items=0)
    zero = 100.0
    for sent in range(0, 144, 2):
        tape.request(sent, sent + 0.5, pod="x")
    tape.evict(zero, "x")
    tape.evict(zero + 0.2, "y")
    tape.endpoints(zero + 0.4, x=False, y=False)
    for sent in range(144, 234, 2):
        tape.request(sent, sent + 0.01, "http_error", status=503)
    for at, pod in ((57, "p"), (60, "q")):
        tape.pod(zero + 10 + at / 100, pod, "ADDED", phase="Pending", node="n1")
        tape.pod(zero + at, pod, ready=True, node="n1")
    tape.endpoints(zero + 57, x=False, y=False, p=True)
    tape.endpoints(zero + 60.01, p=True, q=True)
    for number, sent in enumerate(range(234, 260, 2)):
        tape.request(sent, sent + 0.5, pod="pq"[number % 2])
    tape.end(261.0)
    found = facts(tape)
    assert [(w.begin - zero, w.end - zero) for w in found.outages] == [(44.0, 134.0)]
    assert [(w.begin - zero, w.end - zero) for w in found.zero_ready] == [(pytest.approx(0.4), 57.0)]
    assert "74.0 s" in finding(found, "ready_but_not_serving").text
    assert {"no_budget", "all_replicas_on_one_node"} <= codes(found)
    assert found.recovery.time_to_serve.value is not None
    assert found.recovery.time_to_serve.value >= 134.0


def pdb(tape: Tape, at: float, allowed: int, seen: rows.Seen = "MODIFIED", **fields: object) -> None:
    base = {"name": "chat", "uid": "u-pdb", "version": f"pdb{at}", "namespace": "demo", "selector": {}}
    tape.add(rows.Pdb(at=at, seen=seen, allowed=allowed, **(base | fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("later", "enforced"),
    [
        ([], False),
        ([(10.02, {"allowed": 1})], True),
        ([(10.02, {"allowed": 0, "disrupted_times": {"a": "2026-11-29T17:00:10Z"}})], True),
    ],
    ids=["never charged", "had just been opened", "was charged"],
)
def test_an_eviction_that_the_budget_forbade(later: list[tuple[float, dict[str, object]]], enforced: bool) -> None:
    # kubernetes/kubernetes#119731, #119732: selector {} of policy/v1 not enforced
    tape = Tape()
    settled(tape, "a", "b")
    pdb(tape, 0.0, 0, "LISTED")
    tape.evict(10.0, "a")
    tape.pod(10.03, "a", ready=True, deletion_time=time(40), deletion_grace=30.0)
    for at, fields in later:
        pdb(tape, at, **fields)  # type: ignore[arg-type]
    tape.end(60.0)
    found = facts(tape)
    assert ("budget_not_enforced" in codes(found)) is not enforced
    assert found.verdict == ("passed" if enforced else "failed")


def test_a_429_on_a_budget_that_our_own_failed_eviction_holds() -> None:
    # the Eviction API's order: the budget is charged, then the precondition is checked (recorded on 1.37)
    tape = Tape()
    settled(tape, "a", "b", "c")
    pdb(tape, 0.0, 1, "LISTED")
    tape.evict(10.0, "a", "precondition_failed", expected=False)
    pdb(tape, 10.02, 0, disrupted_times={"a": time(10)})
    tape.evict(11.0, "a", "blocked_by_budget", pdbs=["chat"], expected=False)
    tape.evict(140.0, "a", "blocked_by_budget", pdbs=["chat"], expected=False)
    tape.end(150.0)
    found = facts(tape)
    assert [(e.answer, e.self_inflicted) for e in found.evictions] == [
        ("precondition_failed", False),
        ("blocked_by_budget", True),
        ("blocked_by_budget", False),
    ]
    assert "until 130 s" in finding(found, "budget_held_by_our_eviction").text
    # Only the later 429, when the controller had forgotten ours, says something about the budget.
    blocked = [f for f in found.findings if f.code == "blocked_by_budget"]
    assert [len(f.evidence) for f in blocked] == [2]
    assert found.phases[0].name == "baseline"
    assert len(found.phases) == 1


def test_evicting_a_pod_that_was_terminating_takes_nothing_away() -> None:
    # recorded on 1.37: 201 for a Pod that is terminating already
    tape = Tape()
    settled(tape, "a", "b")
    tape.evict(10.0, "a")
    tape.pod(10.02, "a", ready=True, deletion_time=time(40), deletion_grace=30.0)
    tape.evict(12.0, "a", "accepted")
    tape.evict(13.0, "a", "already_terminating")
    tape.end(20.0)
    assert [victim.fault_at for victim in facts(tape).exposure.victims] == [10.0]


def test_a_watch_that_went_silent_proves_nothing() -> None:
    # kubernetes-client/python#2462, #1402; Azure/AKS#774
    tape = Tape()
    settled(tape, "a", "b")
    tape.watch(0.0, "pods", "listed", items=2)
    tape.evict(150.0, "a")
    opened = tape.watch(300.0, "pods", "gap_opened", reason="silent", last_alive=120.0)
    tape.end(301.0)
    wanted = context("replacement.created", "replacement.created == false", "restarts == 0")
    found = facts(tape, wanted)
    assert [(gap.resource, gap.begin, gap.end) for gap in found.gaps] == [("pods", 120.0, None)]
    assert "120.0 s" in finding(found, "watch_stalled").text
    assert finding(found, "observations_incomplete").evidence == [opened.id]
    assert {check.verdict for check in found.checks} == {"skipped"}
    assert (found.verdict, found.exit_code) == ("inconclusive", 3)

    tape.watch(310.0, "pods", "gap_closed")
    # Written before the row that closes the gap, as the watcher does.
    vanished = tape.pod(309.9, "a", "VANISHED", ready=True)
    tape.add(rows.Run(at=311.0, event="ended"))
    opened_id = next(row.id for row in tape.rows if row is opened)
    vanished.gap = opened_id
    found = facts(tape, wanted)
    assert [(gap.begin, gap.end) for gap in found.gaps] == [(120.0, 310.0)]
    # It went somewhere in the gap: never "at 309.9", never "never".
    pod = next(pod for pod in live(tape.rows, wanted).observations.pods.all if pod.name == "a")
    assert pod.gone is not None
    assert (pod.gone.at, pod.gone.low, pod.gone.high) == (None, 120.0, 309.9)


def test_an_eviction_that_no_watch_showed() -> None:
    # nolar/kopf#810: "I evicted it but saw nothing" gives a dead watch away before its silence does
    tape = Tape()
    settled(tape, "a", "b")
    tape.evict(10.0, "a")
    tape.end(40.0)
    found = facts(tape)
    assert finding(found, "fault_not_observed").severity == "inconclusive"
    assert found.verdict == "inconclusive"


def test_replayed_history_changes_nothing() -> None:
    # zalando-incubator/kopf#42, kubernetes-client/python#819
    tape = Tape()
    first = tape.pod(0.0, "a", "LISTED", ready=True, version="835745")
    tape.pod(0.0, "b", "LISTED", ready=True, version="797550")
    tape.endpoints(0.0, "LISTED", a=True, b=True)
    tape.pod(5.0, "a", ready=False, version="835801")
    tape.end(20.0)
    before = facts(tape)
    for at, name, version in ((6.0, "a", "835745"), (6.0, "b", "797550")):
        tape.pod(at, name, "ADDED", ready=True, version=version)
    gone = tape.pod(6.0, "u77", "DELETED", version="746040")
    after = live(tape.rows, context())
    pods = {pod.name: pod for pod in after.observations.pods.all}
    assert pods["a"].ready is False
    assert pods["a"].last is not first
    assert (after.facts().restarts, after.facts().disruptions) == (before.restarts, [])
    # It was there before the recording: nothing says when it came.
    assert pods["u77"].created is None
    assert pods["u77"].gone is not None
    assert pods["u77"].gone.row == gone.id


@pytest.mark.parametrize("rewritten", [time(-300 + 300), time(309)], ids=["older API", "newer API"])
def test_deletion_timestamp_is_a_deadline(rewritten: str) -> None:
    # kubernetes/kubernetes#87039, #122646; armadaproject/armada#4689
    tape = Tape()
    settled(tape, "a", "b")
    tape.pod(0.0, "a", deletion_time=time(300), deletion_grace=300.0)
    tape.pod(309.0, "a", deletion_time=rewritten, deletion_grace=0.0)
    tape.pod(309.0, "a", "DELETED", deletion_time=rewritten, deletion_grace=0.0)
    tape.end(310.0)
    (termination,) = facts(tape).terminations
    assert termination.requested.at == 0.0
    assert termination.deadline.at == 300.0
    assert termination.gone.at == 309.0
    assert termination.late_by.value == 9.0


def test_a_deletion_first_seen_with_grace_0_after_a_gap_says_nothing_of_its_request() -> None:
    # kubernetes/kubernetes#84459
    tape = Tape()
    settled(tape, "a")
    opened = tape.watch(10.0, "pods", "gap_opened", last_alive=5.0)
    row = tape.pod(20.0, "a", "RELISTED", deletion_time=time(19), deletion_grace=0.0)
    tape.watch(20.0, "pods", "gap_closed")
    tape.end(30.0)
    row.gap = next(r.id for r in tape.rows if r is opened)
    (termination,) = facts(tape).terminations
    assert termination.requested.at is None
    assert termination.late_by.value is None


def test_times_that_cannot_be_ordered() -> None:
    # kubernetes/kubernetes#90482, #36304; siderolabs/talos#7080
    clocks = Clocks(ANCHOR, default_skew=0.3)
    cut = Interval(5.4, 5.4)
    finished = clocks.interval("2026-11-29T17:00:05Z", "kubelet")
    assert finished == (pytest.approx(4.7), pytest.approx(6.3))
    assert order(finished, cut) == "indeterminate"
    precise = clocks.interval("2026-11-29T17:00:04.812345Z", "component")
    assert order(precise, cut) == "before"
    assert order(cut, precise) == "after"


def test_samples_narrow_a_skew_and_contradictions_widen_it() -> None:
    clocks = Clocks(ANCHOR, default_skew=1.0)
    clocks.feed(rows.Skew(at=0, owner="apiserver", reported=ANCHOR + 10, resolution=1.0, sent=9.5, received=9.6))
    assert clocks.skew("apiserver") == (pytest.approx(0.4), pytest.approx(1.5))
    clocks.feed(rows.Skew(at=0, owner="apiserver", reported=ANCHOR + 20, resolution=1.0, sent=20.0, received=20.1))
    assert clocks.skew("apiserver") == (pytest.approx(0.4), pytest.approx(1.0))
    clocks.feed(rows.Skew(at=0, owner="apiserver", reported=ANCHOR + 90, resolution=1.0, sent=30.0, received=30.1))
    assert clocks.skew("apiserver") == (pytest.approx(-0.1), pytest.approx(61.0))


def test_an_error_object_before_a_polite_done_is_a_failure() -> None:
    # vllm-project/guidellm#743, huggingface/text-generation-inference#2668
    tape = Tape()
    tape.request(0.0, 1.0)
    tape.request(0.0, 9.0, "error_in_stream", status=200, error_code=504, done=True, first_token=8.0)
    tape.end(10.0)
    found = facts(tape)
    assert found.incomplete_200["all"] == 1
    assert (found.success_rate["all"].successes, found.success_rate["all"].total) == (1, 2)
    # Its first token is in no percentile.
    assert found.latency["ttft"]["all"].n == 1
    assert found.latency["e2e"]["all"].max == 1.0


def test_ready_is_not_warm() -> None:
    # vllm-project/vllm#15313, #39790; kubernetes-sigs/gateway-api-inference-extension#550
    tape = Tape()
    settled(tape, "p", "o")
    zero = 100.0
    tape.evict(zero - 5, "p")
    tape.pod(zero - 4, "q", "ADDED", phase="Pending")
    tape.pod(zero, "q", ready=True)
    tape.endpoints(zero, q=True, o=True)
    tape.request(zero + 0.5, zero + 10.5, "deadline_exceeded", pod="q")
    for sent, ttft in ((11, 1.537), (13, 0.058), (14, 0.060), (15, 0.057)):
        tape.request(zero + sent, zero + sent + 2, pod="q", first_token=zero + sent + ttft)
    tape.end(zero + 20)
    settings = context(probes=(ProbeContext(name="chat", slo=Slo(ttft=0.5), warm_streams=3),))
    (replacement,) = facts(tape, settings).replacements
    assert replacement.milestones.first_complete.sent == zero + 11
    assert replacement.ready_to_warm.value == 13.0
    assert replacement.time_to_serve.value == 18.0
    assert (replacement.warmup_failed, replacement.warmup_slow) == (1, 1)


def polls(tape: Tape, *states: tuple[float, dict[str, str] | None, bool]) -> None:
    """Polls of one alert: (at, labels or None where it is absent, whether the target is up)."""
    active = None
    for at, labels, up in states:
        active = at if labels is not None and active is None else active if labels is not None else None
        alerts = [] if labels is None else [
            rows.Alert(name="NotReady", state="pending", labels=labels, active_time=time(active or 0))
        ]  # fmt: skip
        tape.add(rows.Alerts(at=at, ok=True, alerts=alerts, down=[] if up else ["pod:8000"]))


def test_an_alert_that_renews_itself_for_ever() -> None:
    # prometheus/prometheus#8115, #4836, #5434
    tape = Tape()
    values = ["81.2%", "81.4%", "81.9%", "82.0%"]
    polls(tape, *((15.0 * n, {"alertname": "NotReady", "title": value}, True) for n, value in enumerate(values)))
    tape.end(60.0)
    found = facts(tape, context('alert_fired("NotReady") == false'))
    assert "label_identity_unstable" in codes(found)
    assert [episode.end_reason for episode in found.alerts] == ["label_identity_unstable"] * 3 + [None]
    assert [check.verdict for check in found.checks] == ["skipped"]


def test_a_for_that_failed_scrapes_reset() -> None:
    # cloudflare/pint#966; prometheus/prometheus#14085
    tape = Tape()
    label = {"alertname": "NotReady", "service": "chat"}
    polls(tape, *((60.0 * n, None if n % 5 == 4 else label, n % 5 != 4) for n in range(20)))
    tape.end(1200.0)
    found = facts(tape, context('alert_fired("NotReady") == false', 'alert("NotReady") == "inactive"'))
    assert {episode.end_reason for episode in found.alerts} == {"staleness_reset"}
    assert all(episode.firing_from is None for episode in found.alerts)
    assert "staleness_reset" in codes(found)
    assert found.checks[0].verdict == "skipped"


def test_a_rule_that_cannot_be_evaluated_keeps_its_old_state() -> None:
    # prometheus/prometheus#4446, prometheus-operator/prometheus-operator#3270
    tape = Tape()

    def poll(at: float, health: str) -> None:
        rule = rows.Rule(name="Slow", state="firing", health=health, error=None if health == "ok" else "many-to-many")
        alert = rows.Alert(name="Slow", state="firing", labels={"alertname": "Slow"}, active_time=time(0))
        tape.add(rows.Alerts(at=at, ok=True, rules=[rule], alerts=[alert]))

    poll(0.0, "err")
    poll(15.0, "err")
    tape.end(20.0)
    found = facts(tape, context('alert("Slow") == "firing"', 'alert_fired("Slow")'))
    assert [check.verdict for check in found.checks] == ["skipped", "skipped"]
    assert finding(found, "rule_broken").text.count("many-to-many") == 1
    assert found.alerts[0].unknown_from == 0.0


def test_an_alert_that_resolves() -> None:
    tape = Tape()
    rule = rows.Rule(name="Slow", state="inactive", health="ok")
    firing = rows.Alert(name="Slow", state="firing", labels={"alertname": "Slow"})
    for at, alerts in ((0.0, []), (5.0, [firing]), (10.0, [])):
        tape.add(rows.Alerts(at=at, ok=True, rules=[rule], alerts=alerts))
    tape.end(11.0)
    found = facts(tape, context('alert_fired("Slow")', 'alert("Slow") == "inactive"', 'alert_fired("Slwo")'))
    assert [check.verdict for check in found.checks] == ["passed", "passed", "skipped"]
    (episode,) = found.alerts
    assert (episode.firing_from, episode.end, episode.end_reason) == (5.0, 10.0, "resolved")


def test_a_node_shutdown_leaves_no_deletion_timestamp() -> None:
    # kubernetes/kubernetes#116965, #106879, #109998
    tape = Tape()
    settled(tape, "a", "b")
    tape.pod(50.0, "a", phase="Failed", reason="Terminated", conditions=[])
    tape.endpoints(53.5, b=True)
    tape.request(48.0, 50.1, "cut_stream", status=200, pod="a", first_token=48.2)
    tape.end(60.0)
    found = facts(tape)
    (disruption,) = found.disruptions
    assert (disruption.type, disruption.ours, disruption.at) == ("node_shutdown", False, 50.0)
    assert disruption.endpoint_lag == 3.5
    assert {"node_shutdown", "endpoint_lag"} <= codes(found)
    assert found.restarts == 0


def test_a_pod_that_a_finalizer_holds() -> None:
    # poseidon/fleetlock#271, openshift/runbooks#214
    tape = Tape()
    settled(tape, "a", "b")
    tape.evict(10.0, "a")
    ended = [rows.ContainerState(name="engine", state="terminated", exit_code=0)]
    tape.pod(10.1, "a", deletion_time=time(40), deletion_grace=30.0, finalizers=["x/y"])
    tape.pod(30.0, "a", deletion_time=time(40), deletion_grace=30.0, finalizers=["x/y"], containers=ended)
    tape.end(160.0)
    found = facts(tape)
    stuck = finding(found, "stuck_terminating")
    assert "x/y" in stuck.text
    assert stuck.severity == "failure"
    assert found.verdict == "failed"
    assert found.terminations[0].containers_terminated.at == 30.0
    assert found.terminations[0].gone.at is None


def test_unplaced_requests_bound_the_loss() -> None:
    tape = Tape()
    settled(tape, "a", "b")
    tape.evict(10.0, "a")
    tape.request(8.0, 10.2, "aborted", status=200, pod="a", first_token=8.1)
    tape.request(8.0, 15.0, pod="a")
    tape.request(8.0, 15.0)
    tape.request(8.0, 15.0, pod="b")
    tape.request(9.0, 10.3, "no_response")
    tape.end(20.0)
    found = facts(tape, context("loss_on_victim > 0", "loss_on_victim == 0", "loss_on_victim <= 50%", "exposed >= 2"))
    exposure = found.exposure
    assert (exposure.exposed, exposure.lost, exposure.unplaced) == (2, 1, 2)
    assert exposure.loss_on_victim == 0.5
    assert (exposure.lower, exposure.upper) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    results = {name: check.verdict for name, check in checked(found).items()}
    # Whoever served the unplaced ones, something was lost; whether more than half was, nobody knows.
    assert list(results.values()) == ["passed", "failed", "skipped", "passed"]


def test_without_exposure_the_loss_is_not_proven() -> None:
    tape = Tape()
    settled(tape, "a", "b")
    tape.request(1.0, 2.0, pod="b")
    tape.evict(10.0, "a")
    tape.pod(10.1, "a", deletion_time=time(40), deletion_grace=30.0)
    tape.end(20.0)
    found = facts(tape, context("loss_on_victim == 0", "incomplete_200 == 0"))
    loss, incomplete = found.checks
    assert (loss.verdict, incomplete.verdict) == ("skipped", "passed")
    assert "exposure 0" in (loss.reason or "")
    assert (found.verdict, found.exit_code) == ("inconclusive", 3)
