"""The list of differences itself: each entry is one, and is met by a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.differences import ABSENT, DIFFERENCES, WORDS, Difference, unlisted

NAMED = [where for entry in DIFFERENCES for where in entry.where if where.count(": ") != 2]


@pytest.mark.parametrize("entry", DIFFERENCES, ids=lambda entry: entry.where[0])
def test_an_entry_has_two_sides_and_a_reason(entry: Difference) -> None:
    assert entry.real != entry.embedded or entry.real == WORDS
    assert entry.why.endswith(".")


REFUSED = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "message": "no", "code": 422}
MADE = {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": {"name": "s"}}


@pytest.mark.parametrize(
    ("where", "real", "embedded", "found"),
    [
        (("services", "loopback"), REFUSED, MADE, []),
        (("services", "loopback"), REFUSED | {"reason": "Forbidden"}, MADE, ["body"]),
        (("services", "loopback"), REFUSED, MADE | {"kind": "Service"}, ["body"]),
        (("services", "loopback"), MADE, REFUSED, ["body"]),
        (("bodies", "no body"), REFUSED, REFUSED | {"message": "not so"}, []),
        (("bodies", "no body"), REFUSED, REFUSED | {"message": ABSENT}, ["body.message"]),
        (("bodies", "no body"), REFUSED, REFUSED | {"code": 400}, ["body.code"]),
    ],
)
def test_an_entry_covers_what_it_says_and_no_more(
    where: tuple[str, str], real: Any, embedded: Any, found: list[str]
) -> None:
    assert [path for path, _, _ in unlisted(*where, {"body": real}, {"body": embedded})] == found


@pytest.mark.parametrize("where", NAMED)
def test_an_entry_is_met_by_a_test(where: str) -> None:
    """Those that speak of answers are held to by `test_answers.py`."""
    tests = [path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    assert any(f'side("{where}"' in text for text in tests)
