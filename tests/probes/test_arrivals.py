"""When an open loop sends: the rates that were asked for, and the same instants for the same seed."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.probes.arrivals import arrivals
from chaosrunner.probes.spec import OpenLoop, Stage

RATES = st.one_of(st.just(0.0), st.floats(0.1, 500))
STAGES = st.lists(st.builds(Stage, rps=RATES, seconds=st.floats(0.1, 60), to=st.none() | RATES), min_size=1, max_size=4)


def expected(stages: list[Stage], at: float) -> float:
    """The integral of the rate up to `at`."""
    total = 0.0
    for stage in stages:
        spent = min(at, stage.seconds)
        total += spent * (stage.rps + (stage.end - stage.rps) * spent / stage.seconds / 2)
        at -= spent
    return total + at * stages[-1].end


def take(stages: list[Stage], kind: str, count: int, seed: str = "") -> list[float]:
    return list(islice(arrivals(OpenLoop(tuple(stages), kind), seed), count))  # type: ignore[arg-type]


def test_equal_distances_and_the_last_rate_goes_on() -> None:
    assert take([Stage(2, 2), Stage(0, 1), Stage(4, 0.5)], "constant", 8) == [0, 0.5, 1, 1.5, 3, 3.25, 3.5, 3.75]


def test_a_ramp() -> None:
    """From 0 to 10 a second in 10 s: the n-th comes when n = t * t / 2."""
    found = take([Stage(0, 10, to=10)], "constant", 50)
    assert found == pytest.approx([math.sqrt(2 * n) for n in range(50)])


def test_a_last_rate_of_none_ends_it() -> None:
    assert take([Stage(2, 2), Stage(0, 9)], "constant", 100) == [0, 0.5, 1, 1.5]
    assert len(take([Stage(10, 2, to=0)], "constant", 100)) == 10


@given(STAGES, st.sampled_from(["constant", "poisson"]))
def test_arrivals_follow_the_rate(stages: list[Stage], kind: str) -> None:
    found = take(stages, kind, 300)
    assert all(a <= b for a, b in pairwise(found))
    if kind == "constant":
        assert [expected(stages, at) for at in found] == pytest.approx(list(range(len(found))), rel=1e-6, abs=1e-6)


def test_poisson_arrivals_are_spread_as_such() -> None:
    """In the scale of the expected count the distances are exponential of mean 1, across stages of any rate.

    The largest distance between the distributions stays below the 0.1 % bound of Kolmogorov and Smirnov.
    """
    stages = [Stage(5, 100), Stage(50, 20, to=5), Stage(20, 1)]
    found = take(stages, "poisson", 5000)
    gaps = sorted(b - a for a, b in pairwise(expected(stages, at) for at in [0.0, *found]))
    worst = max(abs((rank + 1) / len(gaps) - (1 - math.exp(-gap))) for rank, gap in enumerate(gaps))
    assert worst < 1.95 / math.sqrt(len(gaps))


def test_the_same_for_the_same_seed() -> None:
    stages = [Stage(5, 10)]
    assert take(stages, "poisson", 100, "a") == take(stages, "poisson", 100, "a")
    assert take(stages, "poisson", 100, "a") != take(stages, "poisson", 100, "b")
