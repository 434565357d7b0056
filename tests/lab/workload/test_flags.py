"""The value types of the command lines."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

import pytest

from chaosrunner.lab.workload import flags


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("2s", 2), ("1h30m", 5400), ("0", 0), ("1.5", 1.5), ("1m0.5s", 60.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert flags.duration(text) == seconds


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((flags.duration, text) for text in ("", "s", "2 s", "2x", "-1", "-1s", "nan", "inf", "1s2")),
        *((flags.share, text) for text in ("1.1", "-1%", "nan")),
        *((flags.count, text) for text in ("0", "-1")),
        (flags.whole, "-1"),
        *((flags.positive, text) for text in ("0", "-1", "nan", "inf")),
        (flags.borders, "5,4"),
        (flags.borders, "5,5"),
    ],
)
def test_values_out_of_bounds_are_told(kind: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        kind(text)


def test_shares_and_borders() -> None:
    assert (flags.share("5%"), flags.share("0.5")) == (0.05, 0.5)
    assert (flags.borders("64,512"), flags.borders("")) == ((64, 512), ())
