"""Warm: the first of N consecutive good streams on a Pod, in the order of sending.

Good is a success inside every limit of the probe's SLO; where it has none, a success whose TTFT and largest chunk
gap are both at most twice the baseline's 95th percentile, class by class (a mix has fast and slow classes, and TTFT
alone is not enough: a first token may come at once and the stream then stand still while the engine compiles). The
run of good streams must be at least N long and hold every class of the mix: a new prompt length can be cold again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chaosrunner.analysis.aggregate import nearest_rank
from chaosrunner.analysis.context import AnalysisContext, Slo
from chaosrunner.analysis.requests import Mask, Requests

BASELINE_FACTOR = 2.0
"""How much slower than the baseline's 95th percentile a good stream may be, where no SLO is given."""

Class = tuple[str, str]
"""Probe and shape."""


@dataclass(frozen=True)
class WarmRule:
    """What makes a stream good in this run, and how many of which classes are needed."""

    good: Mask
    judged: Mask
    """False where there is neither an SLO nor a baseline to compare with."""
    streams: Mask
    """Requests that say something about warmth."""
    needed: int
    classes: frozenset[Class]


@dataclass(frozen=True)
class Warmth:
    run: Sequence[int]
    """Positions of the good streams that showed it; empty where the Pod is not (yet) known to be warm."""
    before: Sequence[int]
    """Positions of the streams sent earlier; all of them where it is not warm."""
    why: str | None
    """What is missing."""


def within(requests: Requests, slo: Slo, mask: Mask) -> Mask:
    """Masked successes inside every limit given. A limit whose value is not known is missed; the time per token of
    a single token, and the gap of a single token or chunk, do not exist and miss nothing."""
    good = requests.success & mask
    for metric, limit in slo.limits().items():
        values = requests.latency(metric)
        inside = values <= limit
        if metric in ("tpot", "chunk_gap"):
            inside |= np.isnan(values) & (requests.tokens == 1)
        if metric == "chunk_gap":
            inside |= np.isnan(values) & (requests.first_token == requests.last_token)
        good &= inside
    return good


def rule(requests: Requests, context: AnalysisContext, baseline: Mask) -> WarmRule:
    """`baseline`: requests of the baseline phase."""
    names = requests.vocabulary["probe"].words
    codes = [code for code, name in enumerate(names) if context.probe(name).stream] or list(range(len(names)))
    streams = requests.in_service & np.isin(requests.probe, codes)
    good = np.zeros(len(requests), dtype=bool)
    judged = np.zeros(len(requests), dtype=bool)
    classes: set[Class] = set()
    for code in codes:
        probe = context.probe(names[code])
        mine = streams & (requests.probe == code)
        present = _shapes(requests, mine)
        classes |= {(probe.name, shape) for shape in probe.shapes or _shapes(requests, mine & baseline) or present}
        for shape in present:
            of_class = mine & (requests.shape == requests.vocabulary["shape"].code(shape))
            slo = probe.slo
            if not slo.limits():
                slo = _usual(requests, of_class & baseline) or _usual(requests, mine & baseline) or slo
            if slo.limits():
                judged |= of_class
                good |= within(requests, slo, of_class)
    needed = max((context.probe(names[code]).warm_streams for code in codes), default=3)
    return WarmRule(good, judged, streams, needed, frozenset(classes))


def _shapes(requests: Requests, mask: Mask) -> list[str]:
    words = requests.vocabulary["shape"].words
    return [words[code] for code in np.unique(requests.shape[mask])]


def _usual(requests: Requests, mask: Mask) -> Slo | None:
    """Limits by what the baseline's successes took; None without any."""
    limits: dict[str, float] = {}
    chosen = mask & requests.success
    for metric in ("ttft", "chunk_gap", "e2e"):
        values = requests.latency(metric)[chosen]
        usual = nearest_rank(np.sort(values[~np.isnan(values)]), 95)
        if usual is not None and (metric != "e2e" or not limits):
            limits[metric] = BASELINE_FACTOR * usual
    return Slo(**limits) if limits else None


def warmth(requests: Requests, rule: WarmRule, mask: Mask, pending: Sequence[float] = ()) -> Warmth:
    """When the Pod that served the masked requests was warm.

    `pending`: send times of streams on it that have not ended; a run of good streams cannot reach across one, as
    nobody knows yet how it ends.
    """
    positions = requests.by_sending(mask & rule.streams)
    if not len(positions):
        return Warmth((), (), "no stream was routed to it")
    barriers = sorted(pending)
    names, shapes = requests.vocabulary["probe"].words, requests.vocabulary["shape"].words
    run: list[int] = []
    seen: set[Class] = set()
    longest = 0
    barrier = 0
    for order, position in enumerate(positions.tolist()):
        crossed = False
        while barrier < len(barriers) and barriers[barrier] < requests.sent[position]:
            barrier, crossed = barrier + 1, True
        if crossed or not rule.good[position]:
            run, seen = [], set()
        if rule.good[position]:
            run.append(position)
            seen.add((names[requests.probe[position]], shapes[requests.shape[position]]))
            longest = max(longest, len(run))
            if len(run) >= rule.needed and rule.classes <= seen:
                return Warmth(run, positions[: order + 1 - len(run)].tolist(), None)
    before = positions.tolist()
    if not rule.judged[positions].any():
        return Warmth((), before, "no SLO is given and no baseline tells what is usual")
    if longest >= rule.needed:
        missing = ", ".join(sorted(" ".join(filter(None, name)) for name in rule.classes - seen))
        return Warmth((), before, f"not every class of the mix in one run of good streams; missing: {missing}")
    return Warmth((), before, f"at most {longest} of {rule.needed} good streams in a row")
