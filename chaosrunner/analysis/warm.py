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
from chaosrunner.analysis.requests import Ints, Mask, Requests

BASELINE_FACTOR = 2.0
"""How much slower than the baseline's 95th percentile a good stream may be, where no SLO is given."""

Class = tuple[str, str]
"""Probe and shape."""


@dataclass(frozen=True)
class WarmRule:
    """What makes a stream good in this run, and how many of which classes are needed."""

    streams: Mask
    """Requests that say something about warmth."""
    limits: dict[tuple[int, int], Slo]
    """By the codes of probe and shape; absent where there is neither an SLO nor a baseline to compare with."""
    needed: int
    classes: frozenset[Class]

    def judge(self, requests: Requests, positions: Ints) -> tuple[Mask, Mask]:
        """Which of the requests at these positions are good, and of which that can be said at all."""
        good, judged = np.zeros(len(positions), dtype=bool), np.zeros(len(positions), dtype=bool)
        for (probe, shape), slo in self.limits.items():
            mine = (requests.probe[positions] == probe) & (requests.shape[positions] == shape)
            good[mine] = within(requests, slo, positions[mine])
            judged |= mine
        return good, judged


Usual = dict[tuple[float, ...], Slo | None]
"""Limits by the baseline that were found before: by what tells one set of requests from another."""


@dataclass(frozen=True)
class Warmth:
    run: Sequence[int]
    """Positions of the good streams that showed it; empty where the Pod is not (yet) known to be warm."""
    before: Sequence[int]
    """Positions of the streams sent earlier; all of them where it is not warm."""
    why: str | None
    """What is missing."""


def within(requests: Requests, slo: Slo, positions: Ints) -> Mask:
    """Which of the requests at these positions are successes inside every limit given. A limit whose value is not
    known is missed; the time per token of a single token, and the gap of a single token or chunk, do not exist and
    miss nothing."""
    good = requests.success[positions]
    for metric, limit in slo.limits().items():
        values = requests.latency(metric, positions)
        inside = values <= limit
        if metric in ("tpot", "chunk_gap"):
            inside |= np.isnan(values) & (requests.tokens[positions] == 1)
        if metric == "chunk_gap":
            inside |= np.isnan(values) & (requests.first_token[positions] == requests.last_token[positions])
        good &= inside
    return good


def rule(requests: Requests, context: AnalysisContext, fault_at: float | None, usual: Usual) -> WarmRule:
    """The rule at this point of the run. Requests sent up to `fault_at` are the baseline, all of them where it is
    None. `usual` keeps the baseline's limits from one call to the next: requests are only ever added."""
    names = requests.vocabulary["probe"].words
    codes = [code for code, name in enumerate(names) if context.probe(name).stream] or list(range(len(names)))
    border = float("inf") if fault_at is None else fault_at
    baseline = requests.sent <= border
    streams = np.zeros(len(requests), dtype=bool)
    limits: dict[tuple[int, int], Slo] = {}
    classes: set[Class] = set()
    for code in codes:
        probe = context.probe(names[code])
        mine = requests.in_service & (requests.probe == code)
        streams |= mine
        words = requests.vocabulary["shape"].words
        present = {shape: of for shape in range(len(words)) if (of := mine & (requests.shape == shape)).any()}
        early = [words[shape] for shape, of in present.items() if (of & baseline).any()]
        classes |= {(probe.name, word) for word in probe.shapes or early or [words[shape] for shape in present]}
        for shape, of_class in present.items():
            slo: Slo | None = probe.slo
            if not probe.slo.limits():
                slo = _usual(requests, of_class & baseline, usual, (border, code, shape))
                slo = slo or _usual(requests, mine & baseline, usual, (border, code))
            if slo is not None:
                limits[code, shape] = slo
    needed = max((context.probe(names[code]).warm_streams for code in codes), default=3)
    return WarmRule(streams, limits, needed, frozenset(classes))


def _usual(requests: Requests, mask: Mask, known: Usual, which: tuple[float, ...]) -> Slo | None:
    """Limits by what the baseline's successes took; None without any."""
    chosen = np.flatnonzero(mask & requests.success)
    key = (*which, len(chosen))
    if key not in known:
        limits: dict[str, float] = {}
        for metric in ("ttft", "chunk_gap", "e2e"):
            values = requests.latency(metric, chosen)
            usual = nearest_rank(np.sort(values[~np.isnan(values)]), 95)
            if usual is not None and (metric != "e2e" or not limits):
                limits[metric] = BASELINE_FACTOR * usual
        known[key] = Slo(**limits) if limits else None
    return known[key]


def warmth(requests: Requests, rule: WarmRule, mask: Mask, pending: Sequence[float] = ()) -> Warmth:
    """When the Pod that served the masked requests was warm.

    `pending`: send times of streams on it that have not ended; a run of good streams cannot reach across one, as
    nobody knows yet how it ends.
    """
    positions = requests.by_sending(mask & rule.streams)
    if not len(positions):
        return Warmth((), (), "no stream was routed to it")
    good, judged = rule.judge(requests, positions)
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
        if crossed or not good[order]:
            run, seen = [], set()
        if good[order]:
            run.append(position)
            seen.add((names[requests.probe[position]], shapes[requests.shape[position]]))
            longest = max(longest, len(run))
            if len(run) >= rule.needed and rule.classes <= seen:
                return Warmth(run, positions[: order + 1 - len(run)].tolist(), None)
    before = positions.tolist()
    if not judged.any():
        return Warmth((), before, "no SLO is given and no baseline tells what is usual")
    if longest >= rule.needed:
        missing = ", ".join(sorted(" ".join(filter(None, name)) for name in rule.classes - seen))
        return Warmth((), before, f"not every class of the mix in one run of good streams; missing: {missing}")
    return Warmth((), before, f"at most {longest} of {rule.needed} good streams in a row")
