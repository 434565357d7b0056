"""Two recordings beside each other: what differs in what was run, in what came of it, and in the order of things.

The first is `a`, the second `b`; a difference is b - a, a ratio b / a. Objects are matched by their roles and what
became of them (`chaosrunner.analysis.transitions`), never by their names. Each side's evidence is row ids of its own
recording. t = 0 is the sending of the first fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import hypot
from typing import NamedTuple

import msgspec
import numpy as np

from chaosrunner.analysis import aggregate
from chaosrunner.analysis.differences import Difference, TextDifference, differences, texts
from chaosrunner.analysis.facts import (
    ALL,
    PHASES,
    CheckResult,
    DirectProbe,
    DirectReplica,
    Estimate,
    Fact,
    Milestone,
    Replacement,
    Span,
    Verdict,
)
from chaosrunner.analysis.reading import Reading
from chaosrunner.analysis.recovery import ORDER
from chaosrunner.analysis.requests import OUTCOMES
from chaosrunner.analysis.spans import UNKNOWN, between, evidence
from chaosrunner.analysis.transitions import Transition

FORMAT = 1
"""Version of the layout below; raised when a reader of the old one would be misled by the new."""

PERCENTILES = (50, 95)
"""Percentiles that are put beside each other."""


class Evidence(Fact):
    a: list[int]
    b: list[int]


class RunInfo(Fact):
    """One side."""

    drill: str
    run: str
    lab: str | None
    context: str | None
    load: str | None
    """Of a probe that ran alone, without any cluster: its load in words."""
    started_time: str | None
    seconds: float
    """Length of the recording."""
    zero: float
    """t = 0 on the recording's clock."""
    fault: bool
    """Whether t = 0 is a fault that was sent; else it is the recording's own zero."""
    verdict: Verdict
    reason: str


class CheckPair(Fact):
    check: str
    a: CheckResult | None
    """None where this side's drill has no such check."""
    b: CheckResult | None


class SharePair(Fact):
    """A share on both sides, each with its Wilson interval, and what lies between them."""

    what: str
    """success rate, incomplete 200, lost on the victim."""
    phase: str
    a: Estimate | None
    b: Estimate | None
    difference: Span
    """b - a, in [low, high] at 95 %: Newcombe's hybrid score interval, made of both Wilson intervals (R. G. Newcombe,
    Statistics in Medicine 17, 1998, method 10)."""
    chance: bool | None
    """Whether 0 lies in that interval: chance alone may make such a difference. None where a side has no requests."""
    evidence: Evidence


class OutcomePair(Fact):
    phase: str
    outcome: str
    a: int
    b: int
    evidence: Evidence


class StagePair(Fact):
    replacement: int
    """k-th to k-th, in the order in which the victims were taken."""
    stage: str
    a: Span
    """Fault sent -> stage."""
    b: Span
    difference: Span
    ratio: float | None
    evidence: Evidence


class LatencyPair(Fact):
    """A percentile of successful requests, seconds. The evidence is the request that has this value."""

    metric: str
    phase: str
    percentile: int
    a: float | None
    b: float | None
    n_a: int
    n_b: int
    difference: float | None
    ratio: float | None
    evidence: Evidence


class DirectSide(Fact):
    """Replicas of one role as a probe saw them that sent to their own addresses; several where it is `others`."""

    replicas: int
    answered: Estimate
    """Successes among the requests sent to them directly since they were first Ready."""
    outcomes: dict[str, int]
    """Of all of those."""
    served: Span
    """t = 0 -> first direct success; unknown of those that served from the start."""
    routing_delay: Span
    """First direct success -> first request through the gateway."""
    routed_after: int | None
    """Requests that the gateway still sent to one that had stopped; None where none is known to have stopped."""
    routed_after_lost: int


class DirectPair(Fact):
    probe: str
    role: str
    """victim 1, replacement 1, ..., in the order in which they were taken and came; others."""
    a: DirectSide | None
    """None where this side has no such replica, or did not ask it."""
    b: DirectSide | None
    served_difference: Span
    delay_difference: Span
    evidence: Evidence
    """Direct requests that failed."""


class Aligned(Fact):
    """One transition of the merged timelines; times are seconds after t = 0."""

    role: str
    what: str
    a: Transition | None
    """None where only the other side has it."""
    b: Transition | None
    difference: float | None


class Inversion(Fact):
    """Two transitions whose order differs, by more than the uncertainty of either recording."""

    earlier: tuple[str, str]
    """Role and what: comes first in a, and last in b."""
    later: tuple[str, str]
    margin_a: float
    """Seconds for which the order is certain."""
    margin_b: float
    evidence: Evidence


class Comparison(Fact):
    a: RunInfo
    b: RunInfo
    same_verdict: bool
    same_outcomes: bool
    """Whether each phase has the same outcomes, whatever their numbers."""
    same_transitions: bool
    """Whether both have the same transitions, in no order that contradicts the other's."""
    settings: list[Difference]
    texts: list[TextDifference]
    checks: list[CheckPair]
    shares: list[SharePair]
    outcomes: list[OutcomePair]
    stages: list[StagePair]
    latency: list[LatencyPair]
    direct: list[DirectPair]
    timeline: list[Aligned]
    inversions: list[Inversion]
    format: int = FORMAT

    @property
    def same(self) -> bool:
        """Same verdict, same outcomes in each phase: what `--exit-code` asks for."""
        return self.same_verdict and self.same_outcomes


def compare(a: Reading, b: Reading) -> Comparison:
    timeline = align(_from_zero(a), _from_zero(b))
    turned = inversions(timeline)
    outcomes = _outcomes(a, b)
    return Comparison(
        a=_info(a),
        b=_info(b),
        same_verdict=a.facts.verdict == b.facts.verdict,
        same_outcomes=all(bool(pair.a) == bool(pair.b) for pair in outcomes),
        same_transitions=not turned and all(line.a is not None and line.b is not None for line in timeline),
        settings=differences(a.manifest, b.manifest),
        texts=texts(a.manifest, b.manifest),
        checks=_checks(a, b),
        shares=_shares(a, b),
        outcomes=outcomes,
        stages=_stages(a.facts.replacements, b.facts.replacements),
        latency=list(_latency(a, b)),
        direct=list(_direct(a, b)),
        timeline=timeline,
        inversions=turned,
    )


def _info(reading: Reading) -> RunInfo:
    facts = reading.facts
    return RunInfo(
        drill=facts.run.drill,
        run=facts.run.id,
        lab=reading.manifest.lab,
        context=reading.manifest.context,
        load=reading.manifest.load,
        started_time=facts.run.started_time,
        seconds=facts.run.end - facts.run.begin,
        zero=reading.zero,
        fault=reading.picture.fault_at is not None,
        verdict=facts.verdict,
        reason=facts.reason,
    )


def _union(*sides: Iterable[str]) -> list[str]:
    """What any side has, in the order of the first that has it."""
    return list(dict.fromkeys(item for side in sides for item in side))


# --- verdicts and shares ------------------------------------------------------------------------------------


def _checks(a: Reading, b: Reading) -> list[CheckPair]:
    left, right = ({check.check: check for check in side.facts.checks} for side in (a, b))
    return [CheckPair(check=name, a=left.get(name), b=right.get(name)) for name in _union(left, right)]


def _shares(a: Reading, b: Reading) -> list[SharePair]:
    pairs = []
    for phase in (*PHASES, ALL):
        if phase in a.facts.success_rate or phase in b.facts.success_rate:
            pairs.append(_share("success rate", phase, _success(a, phase), _success(b, phase)))
    pairs.append(_share("incomplete 200", ALL, _incomplete(a), _incomplete(b)))
    if a.picture.victims or b.picture.victims:
        pairs.append(_share("lost on the victim", ALL, _lost(a), _lost(b)))
    return pairs


class _Part(NamedTuple):
    share: Estimate | None
    rows: list[int]


def _share(what: str, phase: str, a: _Part, b: _Part) -> SharePair:
    difference = between_shares(a.share, b.share)
    low, high = difference.low, difference.high
    return SharePair(
        what=what,
        phase=phase,
        a=a.share,
        b=b.share,
        difference=difference,
        chance=None if low is None or high is None else low <= 0 <= high,
        evidence=Evidence(a=a.rows, b=b.rows),
    )


def between_shares(a: Estimate | None, b: Estimate | None) -> Span:
    """b - a with Newcombe's interval; unknown where a side has nothing to take a share of."""
    match a, b:
        case (
            Estimate(value=float(p), low=float(p_low), high=float(p_high)),
            Estimate(value=float(q), low=float(q_low), high=float(q_high)),
        ):
            return Span(
                value=q - p, low=q - p - hypot(q - q_low, p_high - p), high=q - p + hypot(q_high - q, p - p_low)
            )
    return UNKNOWN


def _success(side: Reading, phase: str) -> _Part:
    requests = side.picture.requests
    lost = requests.counted & ~requests.success & side.picture.in_phase(phase)
    return _Part(side.facts.success_rate.get(phase), requests.ids(lost))


def _incomplete(side: Reading) -> _Part:
    requests = side.picture.requests
    mask = aggregate.incomplete_200(requests, side.picture.in_phase(ALL))
    counted = int(np.count_nonzero(requests.counted))
    return _Part(aggregate.estimate(int(np.count_nonzero(mask)), counted), requests.ids(mask))


def _lost(side: Reading) -> _Part:
    exposure = side.facts.exposure
    rows = evidence(row for victim in exposure.victims for row in victim.evidence)
    return _Part(aggregate.estimate(exposure.lost, exposure.exposed), rows)


def _outcomes(a: Reading, b: Reading) -> list[OutcomePair]:
    pairs = []
    for phase in PHASES:
        left, right = (side.facts.outcomes.get(phase, {}) for side in (a, b))
        for outcome in sorted(left.keys() | right.keys(), key=OUTCOMES.index):
            pairs.append(
                OutcomePair(
                    phase=phase,
                    outcome=outcome,
                    a=left.get(outcome, 0),
                    b=right.get(outcome, 0),
                    evidence=Evidence(a=_of_outcome(a, phase, outcome), b=_of_outcome(b, phase, outcome)),
                )
            )
    return pairs


def _of_outcome(side: Reading, phase: str, outcome: str) -> list[int]:
    requests = side.picture.requests
    return requests.ids(requests.is_outcome(outcome) & ~requests.once & side.picture.in_phase(phase))


# --- recovery and latency -----------------------------------------------------------------------------------


def _stages(a: Sequence[Replacement], b: Sequence[Replacement]) -> list[StagePair]:
    pairs = []
    for number in range(max(len(a), len(b))):
        sides = [side[number] if number < len(side) else None for side in (a, b)]
        for stage in ORDER:
            (left, rows_a), (right, rows_b) = (_reached(replacement, stage) for replacement in sides)
            pairs.append(
                StagePair(
                    replacement=number + 1,
                    stage=stage,
                    a=left,
                    b=right,
                    difference=_difference(left, right),
                    ratio=_ratio(left.value, right.value),
                    evidence=Evidence(a=rows_a, b=rows_b),
                )
            )
    return pairs


def _reached(replacement: Replacement | None, stage: str) -> tuple[Span, list[int]]:
    if replacement is None:
        return UNKNOWN, []
    milestone: Milestone = getattr(replacement.milestones, stage)
    return between(replacement.fault_at, milestone), milestone.evidence


def _difference(a: Span, b: Span) -> Span:
    def minus(left: float | None, right: float | None) -> float | None:
        return None if left is None or right is None else left - right

    return Span(value=minus(b.value, a.value), low=minus(b.low, a.high), high=minus(b.high, a.low))


def _ratio(a: float | None, b: float | None) -> float | None:
    return b / a if a is not None and b is not None and a > 0 else None


def _latency(a: Reading, b: Reading) -> Iterable[LatencyPair]:
    for metric in aggregate.LATENCIES:
        for phase in (*PHASES, ALL):
            left, right = (_values(side, metric, phase) for side in (a, b))
            if not len(left.values) and not len(right.values):
                continue
            for percent in PERCENTILES:
                (x, rows_x), (y, rows_y) = left.at(percent), right.at(percent)
                yield LatencyPair(
                    metric=metric,
                    phase=phase,
                    percentile=percent,
                    a=x,
                    b=y,
                    n_a=len(left.values),
                    n_b=len(right.values),
                    difference=None if x is None or y is None else y - x,
                    ratio=_ratio(x, y),
                    evidence=Evidence(a=rows_x, b=rows_y),
                )


class _Values(NamedTuple):
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    """Row of the request that each value is of."""

    def at(self, percent: int) -> tuple[float | None, list[int]]:
        value = aggregate.nearest_rank(np.sort(self.values), percent)
        if value is None:
            return None, []
        return value, [int(self.rows[np.flatnonzero(self.values == value)[0]])]


def _values(side: Reading, metric: str, phase: str) -> _Values:
    requests = side.picture.requests
    good = requests.success & requests.counted & side.picture.in_phase(phase)
    if metric == "chunk_gap":
        gaps, owners = requests.gaps()
        mine = good[owners]
        return _Values(gaps[mine], requests.id[owners[mine]])
    values = requests.latency(metric)
    known = good & ~np.isnan(values)
    return _Values(values[known], requests.id[known])


# --- replicas, asked directly -------------------------------------------------------------------------------


def _direct(a: Reading, b: Reading) -> Iterable[DirectPair]:
    probes = [{probe.probe: probe for probe in side.facts.direct} for side in (a, b)]
    for name in _union(*probes):
        left, right = (_by_role(side, probe.get(name)) for side, probe in zip((a, b), probes, strict=True))
        for role in sorted(left.keys() | right.keys(), key=lambda role: _ROLES.index(role.partition(" ")[0])):
            x, y = left.get(role, []), right.get(role, [])
            one, two = _direct_side(a, name, x), _direct_side(b, name, y)
            yield DirectPair(
                probe=name,
                role=role,
                a=one,
                b=two,
                served_difference=_difference(*(side.served if side else UNKNOWN for side in (one, two))),
                delay_difference=_difference(*(side.routing_delay if side else UNKNOWN for side in (one, two))),
                evidence=Evidence(a=_failed(x), b=_failed(y)),
            )


_ROLES = ("victim", "replacement", "others")


def _by_role(side: Reading, probe: DirectProbe | None) -> dict[str, list[DirectReplica]]:
    if probe is None:
        return {}
    taken = enumerate(side.picture.victims, 1)
    roles = {victim.pod.uid: f"victim {number}" for number, victim in taken if victim.pod is not None}
    for number, pod in enumerate(side.picture.replacements, 1):
        roles.setdefault(pod.uid, f"replacement {number}")
    found: dict[str, list[DirectReplica]] = {}
    for replica in probe.replicas:
        found.setdefault(roles.get(replica.uid, "others"), []).append(replica)
    return found


def _failed(replicas: Sequence[DirectReplica]) -> list[int]:
    return evidence(row for replica in replicas for row in replica.evidence)


def _direct_side(side: Reading, probe: str, replicas: Sequence[DirectReplica]) -> DirectSide | None:
    if not replicas:
        return None
    came = replicas[0] if len(replicas) == 1 and replicas[0].fresh else None
    direct = side.picture.direct
    pods = [side.picture.pods.by_uid[replica.uid] for replica in replicas]
    mine = direct.requests.of_probe(probe) & direct.requests.in_service & ~direct.early
    mine &= np.logical_or.reduce([direct.on(pod) for pod in pods])
    counts = {outcome: int(np.count_nonzero(mine & direct.requests.is_outcome(outcome))) for outcome in OUTCOMES}
    stopped = [replica for replica in replicas if replica.stopped.at is not None]
    return DirectSide(
        replicas=len(replicas),
        answered=aggregate.estimate(
            sum(replica.successes for replica in replicas), sum(replica.requests for replica in replicas)
        ),
        outcomes={outcome: count for outcome, count in counts.items() if count},
        served=between(side.zero, came.served) if came is not None else UNKNOWN,
        routing_delay=came.routing_delay if came is not None else UNKNOWN,
        routed_after=sum(replica.routed_after for replica in stopped) if stopped else None,
        routed_after_lost=sum(replica.routed_after_lost for replica in stopped),
    )


# --- the timelines ------------------------------------------------------------------------------------------


def _from_zero(reading: Reading) -> list[Transition]:
    zero = reading.zero
    return [
        msgspec.structs.replace(
            one,
            at=None if one.at is None else one.at - zero,
            window=(one.window[0] - zero, one.window[1] - zero),
        )
        for one in reading.transitions
    ]


def align(a: Sequence[Transition], b: Sequence[Transition]) -> list[Aligned]:
    """Both timelines as one: the n-th time that something became of a role is the n-th time on the other side, before
    t = 0 and after it.

    Lines come in the order of a; what only b has follows what preceded it in b.
    """
    left, right = _numbered(a), _numbered(b)
    lines = [_aligned(key, one, right.get(key)) for key, one in left.items()]
    places = {key: place for place, key in enumerate(left)}
    after: dict[int, list[Aligned]] = {}
    place = -1
    for key, one in right.items():
        if key in places:
            place = max(place, places[key])
        else:
            after.setdefault(place, []).append(_aligned(key, None, one))
    merged = after.get(-1, [])
    for number, line in enumerate(lines):
        merged += [line, *after.get(number, [])]
    return merged


_Key = tuple[str, str, bool, int]
"""Role, what, whether it was before t = 0, how many of it there were before."""


def _numbered(found: Sequence[Transition]) -> dict[_Key, Transition]:
    counts: dict[tuple[str, str, bool], int] = {}
    numbered = {}
    for one in found:
        key = (one.role, one.what, one.when < 0)
        counts[key] = counts.get(key, 0) + 1
        numbered[*key, counts[key]] = one
    return numbered


def _aligned(key: _Key, a: Transition | None, b: Transition | None) -> Aligned:
    difference = None
    if a is not None and b is not None and a.at is not None and b.at is not None:
        difference = b.at - a.at
    return Aligned(role=key[0], what=key[1], a=a, b=b, difference=difference)


def inversions(timeline: Sequence[Aligned]) -> list[Inversion]:
    """Pairs whose order differs: their windows are apart on both sides, the other way round."""
    both = [(line.a, line.b) for line in timeline if line.a is not None and line.b is not None]
    found = []
    for number, (a, b) in enumerate(both):
        for c, d in both[number + 1 :]:
            for (first_a, first_b), (last_a, last_b) in (((a, b), (c, d)), ((c, d), (a, b))):
                margin_a, margin_b = last_a.window[0] - first_a.window[1], first_b.window[0] - last_b.window[1]
                if margin_a > 0 and margin_b > 0:
                    found.append(
                        Inversion(
                            earlier=(first_a.role, first_a.what),
                            later=(last_a.role, last_a.what),
                            margin_a=margin_a,
                            margin_b=margin_b,
                            evidence=Evidence(a=[first_a.row, last_a.row], b=[last_b.row, first_b.row]),
                        )
                    )
    return found
