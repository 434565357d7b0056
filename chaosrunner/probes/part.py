"""Which of a probe's requests are whose: by number alone, so that the plan is the same however many processes share it.

Open loop: number n is the n-th arrival of the one schedule, and worker k of N sends every N-th of them.

Closed loop: a user asks when it was answered, so no process can know how many requests all have sent so far. Each user
therefore has numbers of its own: the k-th round (from 0) of C users has the numbers kC + 1 to kC + C, and each user
takes one of them. What request n holds, and which user sends it, then follows from n; which numbers have been sent by
some instant is up to the service, as it is with one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import count


@dataclass(frozen=True)
class Part:
    """The share of a probe's load that worker `index` (from 0) of `of` has."""

    index: int = 0
    of: int = 1

    def users(self, concurrency: int) -> range:
        """Its users of a closed loop: as many as the other workers have, or one more."""
        return range(self.index, concurrency, self.of)

    def sends(self, number: int) -> bool:
        """Whether arrival `number` (from 1) of an open loop is its own."""
        return (number - 1) % self.of == self.index

    def turned(self, by: int) -> Part:
        """The share that the worker `by` places before this one has. Where the loads of several replicas follow each
        other as if they were one, each worker has as many users as the others, or one more."""
        return Part((self.index - by) % self.of, self.of)

    def of_cap(self, most: int) -> int:
        """Its share of the most requests in flight; the shares of all workers add up to `most`."""
        return len(range(self.index, most, self.of))


WHOLE = Part()


def numbers(user: int, concurrency: int) -> Iterator[int]:
    """The numbers (from 1) of the requests that `user` (from 0) of a closed loop sends, in this order, without end.

    Who takes which number of a round is dealt anew each round: a file of as many prompts as there are users would else
    give each user the same prompt for ever, and the user who has the shortest one would send most.
    """
    for round_ in count():
        yield round_ * concurrency + (user + _shift(round_)) % concurrency + 1


@lru_cache(maxsize=1024)
def _shift(round_: int) -> int:
    return int.from_bytes(blake2b(round_.to_bytes(8), digest_size=4).digest())
