"""The list of differences itself: each entry is one, and is met by a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.differences import ANY, DIFFERENCES, Difference

NAMED = [where for entry in DIFFERENCES for where in entry.where if where.count(": ") != 2]


@pytest.mark.parametrize("entry", DIFFERENCES, ids=lambda entry: entry.where[0])
def test_an_entry_has_two_sides_and_a_reason(entry: Difference) -> None:
    assert entry.real != entry.embedded or entry.real == ANY
    assert entry.why.endswith(".")


@pytest.mark.parametrize("where", NAMED)
def test_an_entry_is_met_by_a_test(where: str) -> None:
    """Those that speak of answers are held to by `test_answers.py`."""
    tests = [path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    assert any(f'side("{where}"' in text for text in tests)
