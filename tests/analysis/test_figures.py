"""Single figures: percentiles, shares, placement, endpoints, selectors, checks and verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from chaosrunner.analysis import AnalysisContext, ProbeContext, Slo
from chaosrunner.analysis.aggregate import estimate, percentiles, wilson
from chaosrunner.playbook.expressions import METRICS, Argument, evaluate, parse
from chaosrunner.playbook.selectors import parse_selector, read_selector
from chaosrunner.timeline import rows
from chaosrunner.timeline.manifest import Check, Manifest, Probe, TargetPod, Workload
from tests.analysis.tape import Tape, checked, codes, context, facts, live, replay, time


def test_percentiles_of_few_samples() -> None:
    # rakyll/hey#120, agno-agi/agno#8656, artilleryio/artillery#429
    ten = percentiles(np.array([1.34, 0.28, 0.30, 0.33, 0.36, 0.42, 0.61, 0.98, 1.04, 1.29]))
    assert (ten.p50, ten.p90, ten.p95, ten.p99, ten.max) == (0.42, 1.29, 1.34, 1.34, 1.34)
    assert ten.flags == {"p95": "equals max, n<20", "p99": "equals max, n<100"}
    two = percentiles(np.array([1.0, 2.0]))
    assert (two.p50, two.p95) == (1.0, 2.0)
    one = percentiles(np.array([1.0]))
    assert (one.p50, one.p99, set(one.flags)) == (1.0, 1.0, {"p50", "p90", "p95", "p99"})
    none = percentiles(np.array([]))
    assert (none.n, none.p50, none.p99, none.max, none.flags) == (0, None, None, None, {})


def test_ten_of_ten_is_not_a_hundred_percent() -> None:
    # kubernetes/perf-tests#527
    share = estimate(10, 10)
    assert (share.value, share.high) == (1.0, 1.0)
    assert share.low == pytest.approx(0.7225, abs=1e-4)
    assert "0.3" in (share.note or "")
    assert estimate(0, 0).value is None
    # Newcombe (1998), table I: 81 of 263.
    assert wilson(81, 263) == (pytest.approx(0.2553, abs=1e-4), pytest.approx(0.3662, abs=1e-4))


def test_rates_and_counts() -> None:
    tape = Tape()
    outcomes = [
        ("complete", 200), ("complete_missing_done", 200), ("aborted", 200), ("cut_stream", 200), ("http_error", 503),
        ("rejected", 429), ("connect_refused", None), ("not_sent", None), ("cancelled", 200), ("prober_fault", 200),
    ]  # fmt: skip
    for number, (outcome, status) in enumerate(outcomes):
        tape.request(number, number + 0.5, outcome, status=status)
    tape.request(20.0, 20.1, "http_error", status=400, once=True, expected=True)
    tape.end(30.0)
    found = facts(tape, context("requests == 8", "outcome(cut_stream) == 1", "success_rate == 25%"))
    assert (found.success_rate["all"].successes, found.success_rate["all"].total) == (2, 8)
    assert found.incomplete_200["all"] == 2
    assert found.statuses == {"none": 2, "200": 6, "429": 1, "503": 1}
    assert [once.expected for once in found.once] == [True]
    assert found.prober.faults_share == 0.1
    assert "prober_fault" in codes(found)
    assert found.verdict == "inconclusive"
    assert [check.verdict for check in found.checks] == ["passed"] * 3
    assert len(found.lost_requests) == 6


def test_a_worker_that_died_makes_the_run_inconclusive() -> None:
    tape = Tape()
    died = "worker 2 of 3 was killed by signal 9 (Killed)"
    tape.add(rows.Worker(at=0.0, probe="chat", worker=2, of=3, event="began", pid=7))
    for number in range(500):
        tape.request(number / 10, number / 10 + 0.5)
    tape.add(rows.Worker(at=50.0, probe="chat", worker=2, of=3, event="died", pid=7, reason=died))
    tape.request(49.9, 50.0, "prober_fault", error=died)
    tape.end(60.0)
    found = facts(tape, context("success_rate == 100%"))
    assert (found.verdict, found.reason) == (
        "inconclusive", f"probe chat: {died}; from then on the load was not what was asked for",
    )  # fmt: skip
    assert [check.verdict for check in found.checks] == ["passed"]


def test_latencies_by_phase() -> None:
    tape = Tape()
    tape.pod(0.0, "a", "LISTED", ready=True)
    tape.endpoints(0.0, "LISTED", a=True)
    tape.request(1.0, 3.0, first_token=1.5, first_answer=2.0, last_token=2.9, tokens=15, chunks=[1.5, 2.0, 2.9])
    tape.request(2.0, 2.5, scheduled=1.0, first_token=2.25, last_token=2.25, tokens=1, chunks=[2.25])
    tape.request(9.0, 12.0, first_token=9.25, last_token=11.0, tokens=8)
    tape.evict(10.0, "a")
    tape.request(11.0, 12.5, first_token=11.25, last_token=12.25, tokens=None)
    tape.end(20.0)
    settings = context(probes=(ProbeContext(name="chat", slo=Slo(ttft=1.0, tpot=0.2, e2e=2.0)),))
    found = facts(tape, settings)
    baseline, during = (found.latency["ttft"][phase] for phase in ("baseline", "during"))
    # Open-loop requests count from their scheduled time.
    assert (baseline.n, baseline.max, baseline.straddling) == (3, 1.25, 1)
    assert (during.n, during.max) == (1, 0.25)
    assert found.latency["tpot"]["baseline"].p50 == pytest.approx(0.1)
    assert found.latency["tpot"]["all"].n == 2
    assert found.latency["ttft_answer"]["all"].max == 1.0
    assert found.latency["e2e"]["baseline"].max == 3.0
    assert found.latency["chunk_gap"]["all"].n == 2
    assert found.latency["chunk_gap"]["all"].max == pytest.approx(0.9)
    assert found.straddling == ["chat-3"]
    # The first is good; the second's TTFT, the third's end and the fourth's unknown token count are not.
    good = found.good_share["all"]
    assert good is not None
    assert (good.successes, good.total) == (1, 4)
    assert found.goodput["all"] == pytest.approx(1 / 11.5)


def test_goodput_needs_an_slo() -> None:
    tape = Tape()
    tape.request(0.0, 1.0)
    tape.end(2.0)
    found = facts(tape)
    assert found.goodput == {"all": None, "baseline": None}
    assert found.good_share["all"] is None


def test_requests_are_placed_by_name_and_by_address_at_their_time() -> None:
    tape = Tape()
    tape.pod(0.0, "web-0", "LISTED", ready=True, ip="10.0.0.1")
    tape.pod(0.0, "web-1", "LISTED", ready=True, ip="10.0.0.2")
    tape.pod(10.0, "web-0", "DELETED", ready=False, ip="10.0.0.1")
    # The same name and the same address, another Pod.
    tape.pod(12.0, "web-0", "ADDED", uid="second", ready=True, ip="10.0.0.1")
    tape.pod(13.0, "web-2", "ADDED", ready=True, ip="10.0.0.2")
    labels = ["web-0", "10.0.0.1:8000", "demo/web-1", "10.0.0.2:8000", "nobody", None]
    for sent in (1.0, 20.0):
        for label in labels:
            tape.request(sent, sent + 1, pod=label, headers=sent + 0.5)
    tape.request(21.0, 22.0, remote="10.0.0.1:8000")
    tape.end(30.0)
    picture = live(tape.rows, context()).picture()
    uids = [pod.uid for pod in picture.pods.all]
    served = [uids[position] if position >= 0 else None for position in picture.placed.tolist()]
    assert served[:6] == ["u-web-0", "u-web-0", "u-web-1", "u-web-1", None, None]
    # Two living Pods share 10.0.0.2 now: it names none of them.
    assert served[6:12] == ["second", "second", "u-web-1", None, None, None]
    assert served[12] == "second"


def test_a_gateways_address_is_no_pods_address() -> None:
    tape = Tape()
    tape.pod(0.0, "a", "LISTED", ready=True, ip="10.0.0.1")
    tape.request(1.0, 2.0, remote="10.0.0.1:80")
    tape.end(3.0)
    settings = context(probes=(ProbeContext(name="chat", pod_header="x-pod"),))
    assert live(tape.rows, settings).picture().placed.tolist() == [-1]


def test_an_endpoint_in_two_slices_is_what_was_written_last() -> None:
    tape = Tape()
    tape.endpoints(0.0, "LISTED", name="one", a=True, b=True)
    tape.endpoints(1.0, "ADDED", name="two", a=False)
    tape.endpoints(2.0, name="one", b=True)
    tape.endpoints(3.0, name="two", a=True)
    tape.endpoints(4.0, "DELETED", name="one")
    tape.endpoints(5.0, name="two", a=False)
    tape.end(9.0)
    found = facts(tape)
    assert [(point.at, point.ready) for point in found.ready_endpoints] == [
        (0.0, 2), (1.0, 1), (3.0, 2), (4.0, 1), (5.0, 0),
    ]  # fmt: skip
    (window,) = found.zero_ready
    assert (window.begin, window.end, window.open) == (5.0, 9.0, True)


def test_an_empty_list_of_slices_is_an_outage_and_a_silent_one_is_not() -> None:
    # kubernetes-client/python#2214: endpoints may be null; zero endpoints is knowledge, not a hole
    tape = Tape()
    tape.watch(1.0, "endpointslices", "listed", items=0)
    tape.end(4.0)
    assert facts(tape).zero_ready_seconds.value == 3.0
    silent = Tape()
    silent.end(4.0)
    found = facts(silent, context("zero_ready_seconds == 0", "ready_endpoints == 0"))
    assert found.zero_ready_seconds.value is None
    assert [check.verdict for check in found.checks] == ["skipped", "skipped"]


def test_zero_ready_time_is_not_counted_in_a_gap() -> None:
    tape = Tape()
    tape.endpoints(0.0, "LISTED", a=True)
    tape.watch(0.0, "endpointslices", "listed", items=1)
    tape.endpoints(5.0, a=False)
    opened = tape.watch(10.0, "endpointslices", "gap_opened", last_alive=7.0)
    tape.endpoints(20.0, "RELISTED", a=True)
    tape.watch(20.0, "endpointslices", "gap_closed")
    tape.end(30.0)
    next(r for r in tape.rows if getattr(r, "seen", "") == "RELISTED").gap = opened.id  # type: ignore[union-attr]
    found = facts(tape, context("zero_ready_seconds <= 1s", "zero_ready_seconds <= 15s", "zero_ready_seconds <= 10s"))
    (window,) = found.zero_ready
    assert (window.begin, window.end, window.end_high) == (5.0, 7.0, 20.0)
    assert (found.zero_ready_seconds.low, found.zero_ready_seconds.high) == (2.0, 15.0)
    # At least 2 s, at most 15 s: that decides the first two.
    assert [check.verdict for check in found.checks] == ["failed", "passed", "skipped"]


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("app=chat", {"app": "chat"}, True),
        ("app==chat,tier!=b", {"app": "chat", "tier": "a"}, True),
        ("app in (chat, web),!old", {"app": "web"}, True),
        ("app notin (chat)", {"app": "chat"}, False),
        ("app.kubernetes.io/name", {"app.kubernetes.io/name": ""}, True),
        ("", {}, True),
    ],
)
def test_selectors(text: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_selector(text).matches(labels) is matches


def test_selector_objects() -> None:
    selector = read_selector(
        {"matchLabels": {"app": "chat"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}
    )
    assert selector is not None
    assert selector.matches({"app": "chat"})
    assert not selector.matches({"app": "chat", "tier": "x"})
    assert read_selector(None) is None
    with pytest.raises(ValueError, match="is no label selector"):
        parse_selector("app=(")


def drill(*checks: str, **fields: object) -> tuple[Tape, object]:
    tape = Tape()
    for pod in ("a", "b"):
        tape.pod(0.0, pod, "LISTED", ready=True)
    tape.watch(0.0, "pods", "listed", items=2)
    tape.endpoints(0.0, "LISTED", a=True, b=True)
    for number in range(10):
        tape.request(number, number + 0.5, pod="ab"[number % 2])
    tape.request(9.5, 10.5, pod="a", headers=9.6)
    tape.evict(10.0, "a")
    tape.pod(10.1, "a", ready=True, deletion_time=time(40), deletion_grace=30.0)
    tape.endpoints(10.1, a=False, b=True)
    tape.pod(10.2, "c", "ADDED", phase="Pending")
    tape.pod(15.0, "c", ready=True)
    tape.endpoints(15.1, b=True, c=True)
    for number in range(16, 30):
        tape.request(number, number + 0.5, pod="bc"[number % 2])
    return tape, context(*checks, **fields)


def test_every_metric_of_the_language_has_a_value() -> None:
    tape, _ = drill()
    tape.end(31.0)
    scope = live(tape.rows, context()).scope("u-c")
    words = {"alert name": "Slow"}
    for name, metric in METRICS.items():

        def word(argument: Argument) -> str:
            return argument.values[0] if argument.values else words[argument.what]

        for count in range(len(metric.arguments) + 1):
            if any(argument.required for argument in metric.arguments[count:]):
                continue
            args = tuple(map(word, metric.arguments[:count]))
            scope.value(name, args, None)
            scope.evidence(name, args)


def test_a_drill_that_passes() -> None:
    tape, settings = drill(
        "loss_on_victim == 0", "time_to_serve <= 10s", "time_to_ready == 5s", "replacement.warm", "endpoints_back",
        "success_rate >= 99.9%", "success_rate(after) == 1", "restarts == 0", "zero_ready_seconds == 0",
        "replacements == 1 and pods_ready == 2", "p95(ttft, after) < 1s", "evictions(accepted) == 1",
        "time_to_first_stream <= 8s", "replacement.tokens >= 10", "exposed == 1",
    )  # fmt: skip
    tape.end(31.0)
    found = facts(tape, settings)  # type: ignore[arg-type]
    assert {name: check.verdict for name, check in checked(found).items() if check.verdict != "passed"} == {}
    assert (found.verdict, found.exit_code) == ("passed", 0)
    assert [(phase.name, phase.begin, phase.end) for phase in found.phases] == [
        ("baseline", 0.0, 10.0),
        ("during", 10.0, 17.0),
        ("after", 17.0, 31.0),
    ]
    assert found.recovery.time_to_serve.value == 7.0
    assert found.replacements[0].created_to["ready"].value == pytest.approx(4.8)
    # Every figure with evidence names rows that exist.
    ids = {row.id for row in tape.rows}
    assert {row for check in found.checks for row in check.evidence} <= ids


def test_confidence_compares_the_bound() -> None:
    tape, _ = drill()
    tape.end(31.0)
    plain = context("success_rate >= 99%").checks[0]
    strict = type(plain)(expression=plain.expression, confidence=95)
    settings = context()
    settings = type(settings)(anchor=settings.anchor, service="chat", checks=(plain, strict))
    found = facts(tape, settings)
    assert [check.verdict for check in found.checks] == ["passed", "failed"]
    assert "95 %" in found.checks[1].text


def test_a_check_may_concern_one_probe() -> None:
    tape = Tape()
    tape.request(0.0, 1.0, probe="chat")
    tape.request(0.0, 1.0, "http_error", status=500, probe="batch")
    tape.end(2.0)
    plain = context("success_rate == 100%").checks[0]
    settings = context()
    checks = tuple(type(plain)(expression=plain.expression, probe=probe) for probe in ("chat", "batch", "absent"))
    settings = type(settings)(anchor=settings.anchor, checks=checks)
    assert [check.verdict for check in facts(tape, settings).checks] == ["passed", "failed", "skipped"]


@pytest.mark.parametrize(
    ("extra", "verdict", "code"),
    [
        ([], "failed", 1),
        ([rows.Step(at=31, index=3, step="wait", name="wait", event="ended", result="failed")], "failed", 1),
        (
            [rows.Step(at=31, index=0, step="baseline", name="baseline", event="ended", result="inconclusive")],
            "inconclusive",
            3,
        ),
        ([rows.Run(at=31, event="aborting", reason="signal SIGTERM")], "aborted", 4),
        (
            [
                rows.Run(at=31, event="aborting", reason="signal SIGTERM"),
                rows.Journal(
                    at=32,
                    entry="e1",
                    event="undo_failed",
                    fault="cordon",
                    target=rows.Target(kind="Node", name="n1"),
                ),
            ],
            "rollback_failed",
            5,
        ),
    ],
    ids=["failed check", "failed step", "no healthy baseline", "aborted", "rollback failed"],
)
def test_verdicts_in_their_precedence(extra: list[rows.Row], verdict: str, code: int) -> None:
    tape, settings = drill("time_to_serve <= 1s", "loss_on_victim == 0", 'alert_fired("Unknown")')
    for row in extra:
        tape.add(row)
    tape.end(33.0)
    found = facts(tape, settings)  # type: ignore[arg-type]
    assert (found.verdict, found.exit_code) == (verdict, code)
    assert [check.verdict for check in found.checks] == ["failed", "passed", "skipped"]


def test_a_failed_step_fails_a_run_whose_checks_pass() -> None:
    tape, settings = drill("loss_on_victim == 0")
    tape.add(rows.Step(at=30.5, index=3, step="wait", name="", event="started"))
    tape.add(rows.Step(at=31, index=3, step="wait", name="", event="ended", result="failed", reason="timeout"))
    tape.end(33.0)
    found = facts(tape, settings)  # type: ignore[arg-type]
    assert (found.verdict, found.reason) == ("failed", "step wait: timeout")
    assert [(step.begin, step.end) for step in found.run.steps] == [(30.5, 31.0)]


def test_a_recording_of_a_run_that_died() -> None:
    tape, settings = drill("success_rate >= 99%")
    tape.add(rows.RequestSent(at=30.0, request="chat-99", probe="chat"))
    tape.add(rows.RequestHeaders(at=30.1, request="chat-99", status=200, pod="c"))
    found = replay(tape.rows, settings, close=False)  # type: ignore[arg-type]
    assert found.run.state == "crashed"
    assert found.verdict == "inconclusive"
    assert found.unfinished == ["chat-99"]
    # It says nothing about the service: in no rate, but listed.
    assert found.success_rate["all"].total == 25
    assert [check.verdict for check in found.checks] == ["passed"]
    going_on = live(tape.rows, settings).facts()  # type: ignore[arg-type]
    assert going_on.unfinished == ["chat-99"]
    assert going_on.success_rate == found.success_rate


def test_live_answers_while_the_run_lasts() -> None:
    tape, settings = drill()
    tape.add(rows.RequestSent(at=9.9, request="x-1", probe="x"))
    tape.add(rows.RequestHeaders(at=9.95, request="x-1", status=200, pod="a"))
    tape.add(rows.RequestSent(at=9.96, request="x-2", probe="x"))
    analysis = live([], settings)  # type: ignore[arg-type]
    asked = {
        "success_rate[5s] >= 99%": {8.0: True, 0.0: None},
        "in_flight(target) >= 1": {9.97: True, 9.0: False},
        "in_flight == 3": {9.97: True},
        "replacement.created": {9.0: None, 10.1: False, 12.0: True},
        "replacement.warm": {12.0: False, 20.0: False, 22.0: True},
        "ready_endpoints == 2": {5.0: True, 11.0: False, 16.0: True},
        "endpoints_back": {5.0: None, 11.0: False, 16.0: True},
    }
    answers: dict[str, dict[float, bool | None]] = {text: {} for text in asked}
    ordered = tape.rows
    for at in sorted({at for wanted in asked.values() for at in wanted}):
        while ordered and ordered[0].at <= at:
            analysis.feed(ordered.pop(0))
        for text, wanted in asked.items():
            if at in wanted:
                answers[text][at] = evaluate(parse(text), analysis.scope("u-a", now=at))
        if at == 9.97:
            assert analysis.in_flight_by_pod() == {"u-a": 2}
            assert analysis.in_flight("u-b") == 0
            assert {pod.name for pod in analysis.pods() if pod.candidate} == {"a", "b"}
    assert answers == asked


def test_the_baseline_tells_what_is_usual_class_by_class() -> None:
    tape = Tape()
    tape.pod(0.0, "a", "LISTED", ready=True)
    tape.endpoints(0.0, "LISTED", a=True)
    for number in range(20):
        long = number % 2 == 1
        ttft = 2.0 if long else 0.1
        tape.request(number, number + 3, pod="a", shape="long" if long else "short", first_token=number + ttft)
    tape.evict(25.0, "a")
    tape.pod(26.0, "c", "ADDED", ready=True)
    tape.endpoints(26.0, c=True)
    # 0.5 s is fine for a long prompt, and five times too slow for a short one.
    plan = [(30, "short", 0.5), (32, "long", 0.5), (34, "short", 0.1), (36, "short", 0.1), (38, "short", 0.1),
            (40, "long", 2.0), (42, "short", 0.1)]  # fmt: skip
    for sent, shape, ttft in plan:
        tape.request(sent, sent + 1.5, pod="c", shape=shape, first_token=sent + ttft)
    tape.end(60.0)
    (replacement,) = facts(tape).replacements
    # Good from 32 on, with a long one among them.
    assert replacement.milestones.warm.at == 32.0
    assert (replacement.warmup_slow, replacement.warmup_failed) == (1, 0)


def test_victims_and_replacements_go_in_pairs() -> None:
    tape = Tape()
    other = rows.Owner(kind="Deployment", name="other", uid="other")
    for pod in ("a", "b", "c"):
        tape.pod(0.0, pod, "LISTED", ready=True)
    tape.endpoints(0.0, "LISTED", a=True, b=True, c=True)
    tape.pod(9.0, "early", "ADDED", phase="Pending")
    tape.evict(10.0, "a")
    tape.pod(10.5, "alien", "ADDED", root=other, phase="Pending")
    tape.pod(11.0, "x", "ADDED", phase="Pending")
    tape.evict(12.0, "b")
    tape.pod(13.0, "y", "ADDED", phase="Pending")
    tape.evict(14.0, "c")
    tape.end(20.0)
    found = facts(tape, context("replacement.created", "replacements == 2"))
    assert [(r.replaces, r.pod) for r in found.replacements] == [("a", "x"), ("b", "y")]
    assert found.recovery.missing == ["c"]
    assert found.recovery.time_to_ready.value is None
    assert [check.verdict for check in found.checks] == ["failed", "passed"]


def test_an_outage_is_when_nobody_is_served() -> None:
    tape = Tape()
    long = tape.request(0.0, 9.0, first_token=0.1, last_token=8.5)
    # Two failures in a row while another stream runs: losses, no outage.
    for sent in (2.0, 2.5):
        tape.request(sent, sent + 0.1, "http_error", status=503)
    tape.request(3.0, 4.0)
    for sent in (8.0, 9.5, 10.0):
        tape.request(sent, sent + 0.1, "connect_refused")
    # A 429 and a single failure are none either.
    tape.request(11.0, 11.1, "rejected", status=429)
    tape.request(12.0, 13.0)
    tape.request(14.0, 14.1, "no_response")
    tape.request(15.0, 16.0)
    tape.end(20.0)
    (outage,) = facts(tape).outages
    assert (outage.begin, outage.end, outage.open) == (long.last_token, 12.0, False)


def test_the_context_comes_out_of_the_manifest() -> None:
    manifest = Manifest(
        run="r", drill="d", playbook="p", anchor=1.0,
        workload=Workload(namespace="demo", selector="app=chat", service="chat"),
        candidates=[TargetPod(name="a", uid="u-a", ip="10.0.0.1", root="root")],
        ready_endpoints=2,
        probes=[
            Probe(name="chat", dialect="chat", shapes=["short", "long"], slo={"ttft": 2.0, "chunk_gap": 1.0}),
            Probe(name="health", dialect="http", warm_streams=5),
        ],
        checks=[Check(expression="success_rate >= 99%", confidence=95, probe="chat")],
    )  # fmt: skip
    found = AnalysisContext.of(manifest)
    assert (found.anchor, found.service, found.ready_endpoints) == (1.0, "chat", 2)
    assert found.selector.matches({"app": "chat"})
    assert not found.selector.matches({"app": "other"})
    assert found.probe("chat").slo.limits() == {"ttft": 2.0, "chunk_gap": 1.0}
    assert (found.probe("chat").stream, found.probe("health").stream) == (True, False)
    assert found.probe("chat").shapes == ("short", "long")
    assert [str(check.expression) for check in found.checks] == ["success_rate >= 99%"]
    assert found.candidates[0].root == "root"
