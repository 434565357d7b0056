"""Who sends what: the plan of a probe is the same however many processes share it."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.probes.part import Part, numbers

workers = st.integers(1, 9)


@given(workers, st.integers(1, 200), st.integers(1, 40))
def test_users_of_a_closed_loop_send_every_number_once_whoever_runs_them(
    of: int, concurrency: int, rounds: int
) -> None:
    sent: list[tuple[int, int]] = []
    shares = []
    for index in range(of):
        users = Part(index, of).users(concurrency)
        shares.append(len(users))
        sent += [(number, user) for user in users for number in islice(numbers(user, concurrency), rounds)]
    assert sorted(number for number, _ in sent) == list(range(1, rounds * concurrency + 1))
    assert max(shares) - min(shares) <= 1
    alone = [(number, user) for user in range(concurrency) for number in islice(numbers(user, concurrency), rounds)]
    assert sorted(sent) == sorted(alone)


@given(workers, st.integers(0, 500), st.integers(1, 300))
def test_arrivals_of_an_open_loop_are_each_sent_by_one(of: int, arrivals: int, most: int) -> None:
    parts = [Part(index, of) for index in range(of)]
    for number in range(1, arrivals + 1):
        assert sum(part.sends(number) for part in parts) == 1
    own = [sum(part.sends(number) for number in range(1, arrivals + 1)) for part in parts]
    assert max(own) - min(own) <= 1
    assert sum(part.of_cap(most) for part in parts) == most


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 39))
def test_no_user_is_stuck_with_some_prompts_of_a_file(concurrency: int, prompts: int, user: int) -> None:
    """Request n takes prompt (n - 1) modulo their number. 200 of each are expected, 300 would be seven sigma away."""
    own = islice(numbers(user % concurrency, concurrency), 200 * prompts)
    had = Counter((number - 1) % prompts for number in own)
    assert all(100 < had[prompt] < 300 for prompt in range(prompts))
