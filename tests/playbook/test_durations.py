from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chaosrunner.playbook.durations import PATTERN, format_duration, parse_duration, parse_percent


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5), ("2s", 2.0), ("1.5s", 1.5), ("10m", 600.0), ("1h30m", 5400.0), ("1d", 86400.0), ("0", 0.0),
        ("0s", 0.0), ("1s500ms", 1.5), (" 30s ", 30.0), ("35ms", 0.035), ("90m", 5400.0),
    ],
)  # fmt: skip
def test_durations_are_read_exactly(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "10", "1:30", "-1s", "1s1s", "1m1h", "1 h", "1e3s", "1,5s", "inf", "1w", "1h 30m", "٣s", "1.s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration; write it like"):
        parse_duration(text)


@given(st.floats(min_value=0, max_value=1e9, allow_nan=False))
@example(0.001)
@example(59.999)
@example(5e-07)
@example(3661.0)
def test_a_formatted_duration_reads_back(seconds: float) -> None:
    written = format_duration(seconds)
    if len(written) < 15:  # more digits than anybody writes
        assert parse_duration(written) == seconds


@given(st.integers(min_value=0, max_value=10**8))
def test_whole_seconds_always_read_back_and_match_the_pattern_of_the_schema(seconds: int) -> None:
    written = format_duration(seconds)
    assert parse_duration(written) == seconds
    assert re.search(PATTERN, written)


def test_durations_are_spelled_as_people_do() -> None:
    assert [format_duration(s) for s in (0.25, 2, 2.5, 60, 5400, 3601)] == [
        "250ms",
        "2s",
        "2.5s",
        "1m",
        "1h30m",
        "1h1s",
    ]


def test_percentages() -> None:
    assert parse_percent("99.9%") == 0.999
    assert parse_percent("50 %") == 0.5
    for text in ("50", "%", "-1%", "a%", "5%%"):
        with pytest.raises(ValueError, match="no percentage"):
            parse_percent(text)
