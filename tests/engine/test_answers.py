"""Which Pods answer, as faults look at it from the callers' side."""

from __future__ import annotations

import pytest

from chaosrunner.engine.answers import answered
from tests.analysis.tape import Tape, context, live

SINCE = 10.0


def tape() -> Tape:
    made = Tape()
    for pod in ("a", "b"):
        made.pod(0.0, pod, "LISTED")
    return made


@pytest.mark.parametrize(
    ("pod", "sent", "status", "counts"),
    [
        ("a", 11.0, 200, (1, 0)),
        ("b", 11.0, 200, (0, 1)),
        ("a", 9.0, 200, (0, 0)),  # sent before: an answer that was on its way
        ("a", 11.0, 503, (0, 0)),  # a gateway says it for a Pod that it does not reach
        (None, 11.0, 200, (0, 0)),  # whose answer it was is not known
        ("gone", 11.0, 200, (0, 0)),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_answers_are_counted_by_pod(
    pod: str | None, sent: float, status: int, counts: tuple[int, int], ended: bool
) -> None:
    made = tape()
    row = made.request(sent, 14.0, status=status, headers=12.0, pod=pod)
    rows = [each for each in made.rows if ended or each is not row]
    assert answered(live(rows, context()), "u-a", SINCE) == counts


def test_all_are_counted_while_some_are_on_their_way() -> None:
    made = tape()
    for number in range(3):
        made.request(11.0 + number, 20.0, headers=12.0 + number, pod="a")
    for number in range(4):
        made.request(11.0 + number, 12.0 + number, headers=11.5 + number, pod="b")
    rows = [each for each in made.rows if each.at <= 15.0]
    assert answered(live(rows, context()), "u-a", SINCE) == (3, 4)
    assert answered(live(rows, context()), "u-nobody", SINCE) == (0, 7)
