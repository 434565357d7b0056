"""Where in its calls a run died, which the torture's figures rest on."""

from __future__ import annotations

import pytest

from tests.torture.moments import ANNOUNCED, ANSWERED, APPLIED, SENT, Moments, Where

CALL = [(ANNOUNCED, 1.0), (SENT, 1.01), (ANSWERED, 1.02), (APPLIED, 1.025)]


@pytest.mark.parametrize(
    ("told", "died", "held", "where"),
    [
        ([], 1.0, False, None),
        (CALL[:1], 1.005, False, "before"),
        (CALL[:1], 1.2, False, None),
        (CALL[:2], 1.015, False, "during"),
        (CALL[:2], 3.0, False, "during"),  # its answer took so long
        (CALL[:2], 1.04, True, "before"),  # it stood still then, and nothing had left
        (CALL, 1.06, False, "after"),
        (CALL, 1.08, False, None),
        ([*CALL[:2], (SENT, 1.012), CALL[2]], 1.03, False, "during"),  # of two calls one has its answer
    ],
)
def test_where_a_run_died(told: list[tuple[int, float]], died: float, held: bool, where: Where | None) -> None:
    moments = Moments(told)
    moments.forked()
    moments.close()
    assert moments.where(died, held=held)[0] == where


def test_the_instant_aimed_at_is_the_next_before_a_call_where_that_is_wanted() -> None:
    moments = Moments([*CALL, (SENT, 2.0)])
    moments.forked()
    moments.close()
    assert [moments.at(number, unsent=False) for number in (1, 3, 6)] == [1.0, 1.02, None]
    assert [moments.at(number, unsent=True) for number in (1, 3, 6)] == [1.0, 2.0, None]
