"""Rules that hold for every recording."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaosrunner.analysis import ProbeContext, Slo
from chaosrunner.analysis.aggregate import estimate, percentiles
from chaosrunner.analysis.clocks import Interval, order
from chaosrunner.timeline.outcomes import Outcome
from tests.analysis.tape import Tape, context, facts, live, replay, time

finite = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(finite, max_size=300))
def test_percentiles_are_single_values_and_never_above_the_maximum(values: list[float]) -> None:
    found = percentiles(np.array(values))
    ranks = [found.p50, found.p90, found.p95, found.p99, found.max]
    if not values:
        assert ranks == [None] * 5
        return
    known = [rank for rank in ranks if rank is not None]
    assert set(known) <= set(values)
    assert known == sorted(known)
    assert found.max == max(values)
    for percent, rank in zip((50, 90, 95, 99), known, strict=False):
        assert sum(value <= rank for value in values) * 100 >= percent * len(values)
        assert (f"p{percent}" in found.flags) == (len(values) * (100 - percent) < 100)
        assert f"p{percent}" not in found.flags or rank == found.max


@given(st.integers(1, 10**6), st.data())
def test_an_interval_holds_its_estimate(total: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, total))
    found = estimate(successes, total)
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.high > found.low


@given(*[st.tuples(finite, finite).map(lambda pair: Interval(*sorted(pair)))] * 2)
def test_order_is_antisymmetric_and_never_claimed_of_overlapping_intervals(a: Interval, b: Interval) -> None:
    opposite = {"before": "after", "after": "before", "indeterminate": "indeterminate"}
    assert order(b, a) == opposite[order(a, b)]
    if a.low <= b.high and b.low <= a.high:
        assert order(a, b) == "indeterminate"


PODS = ["a", "b", "c", "d"]
instants = st.integers(0, 400).map(lambda tenths: tenths / 10)
outcomes = st.sampled_from([Outcome.COMPLETE] * 5 + [o for o in Outcome if o is not Outcome.UNFINISHED])


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    """Recordings without sense: Pods come, go and are evicted, slices flap, watches break, requests end somehow."""
    tape = Tape()
    for pod in PODS[:2]:
        tape.pod(0.0, pod, "LISTED", ready=True, ip=f"10.0.0.{PODS.index(pod)}")
    tape.endpoints(0.0, "LISTED", a=True, b=True)
    event = st.sampled_from(["pod", "slice", "evict", "gap", "request", "request", "request"])
    for kind in draw(st.lists(event, max_size=25)):
        at = draw(instants)
        pod = draw(st.sampled_from(PODS))
        if kind == "pod":
            deletion: dict[str, Any] = draw(
                st.sampled_from([{}, {"deletion_time": time(at + 20), "deletion_grace": 20.0}])
            )
            seen = draw(st.sampled_from(["ADDED", "MODIFIED", "DELETED", "RELISTED", "VANISHED"]))
            tape.pod(at, pod, seen, ready=draw(st.booleans()), created_time=time(at), **deletion)
        elif kind == "slice":
            seen = draw(st.sampled_from(["MODIFIED", "MODIFIED", "ADDED", "DELETED", "RELISTED"]))
            ready = draw(st.dictionaries(st.sampled_from(PODS), st.booleans()))
            tape.endpoints(at, seen, draw(st.sampled_from(["one", "two"])), **ready)
        elif kind == "evict":
            answers = ["accepted", "accepted", "blocked_by_budget", "precondition_failed"]
            tape.evict(at, pod, draw(st.sampled_from(answers)), dry_run=draw(st.booleans()))
        elif kind == "gap":
            resource = draw(st.sampled_from(["pods", "endpointslices"]))
            tape.watch(at, resource, "gap_opened", last_alive=max(0.0, at - 1))
            if draw(st.booleans()):
                tape.watch(at + 2, resource, "gap_closed")
        else:
            took = draw(st.integers(1, 80)) / 10
            served = draw(st.sampled_from([*PODS, "10.0.0.0:80", None]))
            once = draw(st.integers(0, 9)) == 0
            headers = at + 0.05 if served else None
            shape = draw(st.sampled_from(["", "long"]))
            outcome = draw(outcomes)
            status = draw(st.sampled_from([200, 503, None]))
            tape.request(at, at + took, outcome, pod=served, once=once, headers=headers, shape=shape, status=status)
    tape.end(60.0)
    return tape


wanted = context(
    "success_rate >= 50%",
    "loss_on_victim == 0",
    "replacement.warm and time_to_serve < 10s",
    "zero_ready_seconds == 0 or endpoints_back",
    probes=(ProbeContext(name="chat", slo=Slo(ttft=0.5), warm_streams=2),),
)
# A real writer and reader take part in every example.
slow = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


@slow
@given(tapes())
def test_live_is_replay(tape: Tape) -> None:
    ordered = tape.rows
    analysis = live([], wanted)
    for row in ordered:
        # Asking on the way must not change what is answered at the end.
        analysis.feed(row)
        if row.id % 7 == 0:
            analysis.facts()
    assert msgspec.to_builtins(analysis.facts()) == msgspec.to_builtins(replay(ordered, wanted))


@slow
@given(tapes(), st.randoms())
def test_the_order_in_which_requests_end_does_not_matter(tape: Tape, chance: random.Random) -> None:
    ordered = tape.rows
    first = live(ordered, wanted).facts()
    ends = [row for row in ordered if type(row).__name__ == "Request"]
    others = [row for row in ordered if type(row).__name__ != "Request"]
    chance.shuffle(ends)
    assert msgspec.to_builtins(live(others + ends, wanted).facts()) == msgspec.to_builtins(first)


@slow
@given(tapes())
def test_figures_are_consistent(tape: Tape) -> None:
    found = facts(tape, wanted)
    total = found.success_rate["all"]
    assert 0 <= total.successes <= total.total
    assert sum(phase.total for name, phase in found.success_rate.items() if name != "all") == total.total
    assert len(found.lost_requests) == total.total - total.successes
    for victim in found.exposure.victims:
        assert 0 <= victim.lost <= victim.exposed == len(victim.requests)
        if victim.loss is not None and victim.lower is not None and victim.upper is not None:
            assert 0 <= victim.lower <= victim.loss <= victim.upper <= 1
    for before, after in pairwise(found.phases):
        assert before.begin <= before.end == after.begin <= after.end
    for replacement in found.replacements:
        assert replacement.milestones.created.high is None or replacement.milestones.created.high >= 0
        for name in ("created", "ready", "endpoint_ready", "first_routed", "first_complete", "warm"):
            milestone = getattr(replacement.milestones, name)
            if milestone.at is not None:
                assert milestone.low <= milestone.at <= milestone.high
                assert milestone.evidence
    windows = found.zero_ready
    assert all(window.begin_low <= window.begin <= window.end <= window.end_high for window in windows)
    ids = {row.id for row in tape.rows}
    for item in [*found.findings, *found.checks, *found.terminations, *found.evictions]:
        assert set(item.evidence) <= ids
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
