"""The analysis of recordings of real systems says what was counted by hand in them."""

from __future__ import annotations

import msgspec
import pytest

from chaosrunner.analysis import AnalysisContext, Facts, ProbeContext, Slo
from chaosrunner.playbook.selectors import parse_selector
from tests.analysis.captures import gpu, kubernetes, real_drill
from tests.analysis.tape import Tape, checked, codes, context, facts, finding, live, replay

EVICTED = 6.292


def of_kubernetes(until: float = float("inf")) -> Facts:
    settings = AnalysisContext(anchor=1795969129.065, service="chat", selector=parse_selector("app=chat"))
    ordered = kubernetes(until)
    found = replay(ordered, settings)
    assert msgspec.to_builtins(live(ordered, settings).facts()) == msgspec.to_builtins(found)
    return found


def test_an_eviction_on_a_real_cluster() -> None:
    found = of_kubernetes(until=12.8)
    (replacement,) = found.replacements
    assert (replacement.replaces, replacement.pod) == ("chat-df8ff699f-7q65j", "chat-df8ff699f-mkdnf")
    way = replacement.milestones
    seen = {name: getattr(way, name).at - EVICTED for name in ("created", "scheduled", "started", "ready")}
    expected = {"created": 0.067, "scheduled": 0.13, "started": 0.66, "ready": 3.51}
    assert seen == {name: pytest.approx(at, abs=0.03) for name, at in expected.items()}
    assert way.endpoint_ready.at == pytest.approx(EVICTED + 3.52, abs=0.01)
    assert replacement.time_to_ready.value == pytest.approx(3.51, abs=0.01)
    # No request was recorded: which Pod served is not known, and neither is warm.
    assert way.warm.why == "no response says which Pod served it"
    assert found.recovery.time_to_serve.value is None

    (termination,) = found.terminations
    assert termination.grace == 20.0
    assert termination.requested.at == pytest.approx(EVICTED, abs=1.0)
    assert termination.containers_terminated.at == pytest.approx(EVICTED + 5.40, abs=0.01)
    assert termination.gone.at == pytest.approx(EVICTED + 5.52, abs=0.01)
    assert termination.exit_codes == {"engine": 0}
    # The rewrite with grace 0 just before it went is no deadline.
    assert termination.late_by.value == pytest.approx(-14.5, abs=1.0)

    assert [disruption.type for disruption in found.disruptions] == ["eviction"]
    assert found.disruptions[0].ours
    assert found.endpoints_back is True
    assert found.restarts == 0
    assert found.zero_ready_seconds.value == pytest.approx(found.zero_ready[0].seconds)
    assert [window.begin < EVICTED for window in found.zero_ready] == [True]
    assert [(e.answer, e.status) for e in found.evictions if not e.dry_run][1:4] == [
        ("bad_request", 400),
        ("accepted", 201),
        ("blocked_by_budget", 429),
    ]
    assert len(found.exposure.victims) == 1


def test_a_whole_recording_of_a_real_cluster() -> None:
    found = of_kubernetes()
    # The 429 half a second after the failed precondition is our own doing; the one during the eviction is not.
    assert [e.self_inflicted for e in found.evictions if e.status == 429 and "chat" in e.pod] == [False, False, True]
    assert "budget_held_by_our_eviction" in codes(found)
    assert "overlapping_budgets" in codes(found)
    # The container killed by SIGKILL at 36.9, once.
    assert found.restarts == 1
    # Two evictions by kubectl drain are somebody else's; the force delete is ours.
    others = [d for d in found.disruptions if not d.ours and 47 < d.high < 55]
    assert {d.type for d in others} == {"eviction"}
    forced = next(t for t in found.terminations if t.pod == "chat-df8ff699f-q5lxx")
    assert forced.grace == 0.0
    assert forced.gone.at == pytest.approx(42.951, abs=0.03)
    # Grace 3 s, preStop 30 s: SIGKILL 5 s after the delete, which is grace + 2 s, and exit code 137.
    slow = next(t for t in found.terminations if t.pod == "slow-d6dc9cbff-sks7p")
    assert slow.grace == 3.0
    assert slow.exit_codes == {"engine": 137}
    assert slow.containers_terminated.at == pytest.approx(67.05 + 5.1, abs=0.2)
    assert slow.requested.low is not None
    assert slow.requested.low < 67.05 < (slow.requested.high or 0)
    assert slow.late_by.low is not None
    assert slow.late_by.low < 2.8 < (slow.late_by.high or 0)


def test_a_drill_on_real_parts() -> None:
    data, ordered, known = real_drill()
    mark = data["marks"][1]["at"]
    settings = context(
        "loss_on_victim == 0",
        "success_rate >= 99.6%",
        "incomplete_200 == 0",
        "time_to_serve <= 600s",
        "replacement.tokens >= 600",
        "evictions(blocked_by_budget) == 1",
        "endpoints_back",
        "zero_ready_seconds == 0",
        anchor=data["unix0"],
        service="vllm",
        candidates=tuple(known),
        ready_endpoints=2,
        probes=(ProbeContext(name="drill", pod_header="x-pod", concurrency=4),),
    )
    found = replay(ordered, settings)
    assert msgspec.to_builtins(live(ordered, settings).facts()) == msgspec.to_builtins(found)

    assert found.outcomes["all"] == {"complete": 332, "error_in_stream": 1}
    assert found.incomplete_200["all"] == 1
    assert (found.success_rate["all"].successes, found.success_rate["all"].total) == (332, 333)
    (lost,) = found.lost_requests
    assert (lost.request, lost.outcome, lost.status, lost.phase) == ("drill-13", "error_in_stream", 200, "baseline")
    assert lost.pod == "vllm-85f7868646-mzwkh"
    assert (lost.same_pod, lost.straddles) == (True, True)
    assert lost.ended - mark == pytest.approx(0.11, abs=0.005)
    assert lost.action == next(row.id for row in ordered if getattr(row, "event", None) == "sent")
    assert "EngineCore" in (lost.error or "")

    (victim,) = found.exposure.victims
    assert (victim.exposed, victim.lost, victim.loss, victim.requests) == (1, 1, 1.0, ["drill-13"])
    # Envoy's log misses the last four requests, which ended long after the eviction.
    assert (found.exposure.unplaced, found.exposure.unplaced_total) == (0, 4)
    assert (victim.lower, victim.upper) == (1.0, 1.0)

    (replacement,) = found.replacements
    way = replacement.milestones
    assert way.created.at == pytest.approx(mark + 0.08, abs=0.01)
    assert way.started.at == pytest.approx(mark + 1.1, abs=0.05)
    assert way.ready.at == pytest.approx(mark + 287.45, abs=0.06)
    assert way.endpoint_ready.at == pytest.approx(mark + 287.46, abs=0.01)
    # vLLM on a CPU has nothing to compile: the first stream routed to it was as good as the baseline's.
    assert way.first_routed.at == way.warm.at == pytest.approx(308.92093)
    assert replacement.tokens == 600
    (termination,) = found.terminations
    assert termination.gone.at == pytest.approx(mark + 4.7, abs=0.01)
    assert termination.containers_terminated.at == pytest.approx(mark + 4.0, abs=0.02)
    assert set(termination.exit_codes.values()) == {0}
    assert [phase.name for phase in found.phases] == ["baseline", "during", "after"]
    assert found.phases[1].end == way.warm.at
    assert [e.dry_run for e in found.evictions] == [False, True]
    results = [check.verdict for check in found.checks]
    assert results == ["failed", "passed", "failed", "passed", "passed", "passed", "passed", "passed"]
    assert found.verdict == "failed"


START = 100.0
"""When the process of the GPU recordings starts on the tape's clock."""


def warmup(name: str, settings: AnalysisContext, *, shapes: bool, baseline: bool = False) -> Facts:
    data = gpu(name)
    tape = Tape()
    tape.pod(0.0, "p", "LISTED", ready=True)
    tape.endpoints(0.0, "LISTED", p=True)
    if baseline:
        for number in range(20):
            tape.request(number, number + 0.5, pod="p", first_token=number + 0.03, largest_gap=0.03)
    tape.evict(START - 1, "p")
    tape.pod(START, "q", "ADDED", phase="Pending")
    tape.pod(START + data["stages"]["ready"], "q", ready=True)
    tape.endpoints(START + data["stages"]["ready"], q=True)
    for row in data["rows"]:
        tape.request(
            START + row["send"],
            START + row["end"],
            pod="q",
            shape=str(row["prompt"]) if shapes else "",
            first_token=START + row["first"],
            last_token=START + row["last"],
            tokens=row["n"],
            largest_gap=row["maxgap"],
        )
    tape.end(START + 200)
    return facts(tape, settings)


def slo(**limits: float) -> AnalysisContext:
    return context(probes=(ProbeContext(name="chat", slo=Slo(**limits)),))


@pytest.mark.parametrize(
    ("settings", "baseline"),
    [(slo(ttft=0.5, chunk_gap=0.5), False), (slo(ttft=0.5, tpot=0.1), False), (context(), True)],
    ids=["SLO on the gap", "SLO on the time per token", "twice the baseline"],
)
def test_a_stream_that_stands_still_is_not_warm(settings: AnalysisContext, baseline: bool) -> None:
    found = warmup("compile", settings, shapes=False, baseline=baseline)
    (replacement,) = found.replacements
    rows = gpu("compile")["rows"]
    # The second stream's first token came after 0.144 s, and then it stood still for 40 s.
    assert replacement.milestones.warm.at == START + rows[2]["send"]
    assert replacement.ready_to_warm.value == pytest.approx(78, abs=0.5)
    assert (replacement.warmup_failed, replacement.warmup_slow) == (0, 2)
    assert replacement.milestones.first_complete.at == START + rows[0]["end"]
    assert "ready_before_warm" in codes(found)


def test_a_new_prompt_length_is_cold_again() -> None:
    rows = gpu("eager")["rows"]
    limits = slo(ttft=0.1, chunk_gap=0.1)
    one_class = warmup("eager", limits, shapes=False).replacements[0]
    by_length = warmup("eager", limits, shapes=True).replacements[0]
    first_short = next(row for row in rows if row["prompt"] == 32)
    assert first_short["first"] - first_short["send"] == pytest.approx(0.117, abs=0.001)
    assert one_class.milestones.warm.at is not None
    assert by_length.milestones.warm.at is not None
    assert one_class.milestones.warm.at < START + first_short["send"] < by_length.milestones.warm.at


def test_without_slo_and_baseline_nothing_says_what_is_warm() -> None:
    found = warmup("compile", context("time_to_serve <= 600s"), shapes=False)
    (replacement,) = found.replacements
    assert replacement.milestones.warm.at is None
    assert "no SLO" in (replacement.milestones.warm.why or "")
    assert [check.verdict for check in checked(found).values()] == ["skipped"]
    assert finding(found, "not_exposed").severity == "warning"
