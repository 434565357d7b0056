"""How much the service did while there was traffic."""

from __future__ import annotations

import math

import numpy as np

from chaosrunner.analysis.facts import ALL, Throughput
from chaosrunner.analysis.goodput import traffic
from chaosrunner.analysis.picture import Picture


def throughput(picture: Picture) -> Throughput:
    """Of the whole run, probe-once requests apart."""
    requests, seconds = picture.requests, traffic(picture, ALL)
    served = requests.in_service
    good = requests.success & requests.counted
    tokens = requests.tokens[good]
    known = tokens[~np.isnan(tokens)]

    def rate(amount: float) -> float | None:
        return amount / seconds if seconds is not None else None

    return Throughput(
        seconds=seconds,
        requests=rate(float(np.count_nonzero(served))),
        successes=rate(float(np.count_nonzero(good))),
        tokens=rate(float(known.sum())) if len(known) and len(known) == len(tokens) else None,
        in_flight_mean=rate(math.fsum(requests.ended[served] - requests.sent[served])),  # in whatever order they ended
        in_flight_max=_most(requests.sent[served], requests.ended[served]),
    )


def _most(
    begin: np.ndarray[tuple[int, ...], np.dtype[np.float64]], end: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> int:
    """Most intervals at one instant; where one ends as another begins, they do not overlap."""
    order = np.lexsort((np.repeat((1, 0), (len(begin), len(end))), np.concatenate((begin, end))))
    steps = np.repeat((1, -1), (len(begin), len(end)))[order]
    return int(steps.cumsum().max(initial=0))
