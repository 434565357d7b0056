"""The servers of a workload, each by its own address: told by whoever follows the workload, taken up by probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio


@dataclass(frozen=True)
class Replica:
    """A server at an address. One that gets another address is another one here."""

    id: str
    """Names the server for good, whoever has its address later."""
    number: int
    """From 1, never given twice in a run."""
    name: str
    host: str
    """An address, or a name."""
    port: int
    up: bool = True
    """Whether it says that it serves. Before that it may not listen yet, and nobody is to be blamed for it."""

    @property
    def address(self) -> str:
        """As in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Replicas:
    """The replicas that there are now. Only the latest set counts: a reader that was busy misses those between."""

    def __init__(self) -> None:
        self.now: tuple[Replica, ...] = ()
        self._news = anyio.Event()

    def set(self, replicas: Sequence[Replica]) -> None:
        if tuple(replicas) != self.now:
            self.now = tuple(replicas)
            self._news.set()
            self._news = anyio.Event()

    async def other_than(self, known: tuple[Replica, ...]) -> tuple[Replica, ...]:
        """Those that there are, once they are not the known ones."""
        while self.now == known:
            await self._news.wait()
        return self.now
