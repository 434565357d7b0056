"""When an open loop sends: a pure function of the load and the seed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import inf, sqrt
from random import Random

from chaosrunner.probes.spec import OpenLoop, Stage


def arrivals(load: OpenLoop, seed: str) -> Iterator[float]:
    """Instants of sending in order, seconds since the load began; without end, unless the last rate is 0.

    The mean number of arrivals by time t is L(t), the integral of the rate. Constant: the n-th (from 0) is where
    L(t) = n. Poisson: where L(t) is a sum of n exponential times of mean 1, which makes a Poisson process of that rate
    (E. Cinlar, Introduction to Stochastic Processes, 1975, section 4.7: a change of the time scale).
    """
    stages = iter(load.stages)
    stage, begin, passed = next(stages), 0.0, 0.0
    for wanted in _poisson(Random(f"{seed}/arrivals")) if load.arrivals == "poisson" else map(float, count()):
        while wanted >= passed + (held := (stage.rps + stage.end) / 2 * stage.seconds):
            begin, passed = begin + stage.seconds, passed + held
            last, stage = stage, next(stages, Stage(stage.end, inf))
            if stage.seconds == inf and last.end == 0:
                return
        yield begin + _inverse(stage, wanted - passed)


def _poisson(random: Random) -> Iterator[float]:
    at = 0.0
    while True:
        at += random.expovariate(1.0)
        yield at


def _inverse(stage: Stage, wanted: float) -> float:
    """Seconds since the stage's begin after which so many arrivals are meant to have come."""
    slope = (stage.end - stage.rps) / stage.seconds
    # Of the two forms of the root the one that needs no case for a slope of 0.
    root = stage.rps + sqrt(max(0.0, stage.rps**2 + 2 * slope * wanted))
    return 2 * wanted / root if root else 0.0
