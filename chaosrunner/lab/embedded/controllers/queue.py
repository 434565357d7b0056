"""The work queue of a controller: a set of keys, each reconciled once however often it was added meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import structlog

from chaosrunner.lab.embedded.store import ApiError, Store
from chaosrunner.lab.objects import Json

log = structlog.get_logger()

Key = TypeVar("Key")
ObjectKey = tuple[str, str]
"""(namespace, name)"""

_RETRY_SECONDS = 1.0
_REST_SECONDS = 0.01
"""A key rests this long between two rounds. A real controller hears of changes, its own too, through a watch some
milliseconds later; without the rest it would be done before any other controller has seen the states in between."""


def key_of(obj: Json) -> ObjectKey:
    """(namespace, name) of an object; the namespace of a cluster-wide object is ""."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


class WorkQueue(Generic[Key]):
    """Keys in the order of their first adding."""

    def __init__(self) -> None:
        self._keys: dict[Key, None] = {}
        self._resting: set[Key] = set()
        self._again: set[Key] = set()
        self._filled = anyio.Event()
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def add(self, key: Key) -> None:
        if key in self._resting:
            self._again.add(key)
            return
        self._keys[key] = None
        self._filled.set()

    def _rested(self, key: Key) -> None:
        self._resting.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Add the key later; an earlier pending time for the same key wins."""
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0.0, seconds)
        pending = self._timers.get(key)
        if pending is not None and not pending.cancelled() and loop.time() < pending.when() <= at:
            return
        if pending is not None:
            pending.cancel()
        self._timers[key] = loop.call_at(at, self.add, key)

    async def run(self, reconcile: Callable[[Key], None]) -> None:
        """Reconcile key by key. A refusal of the store is logged and the key tried again after a second.

        An object that a controller cannot cope with is logged and left alone, and harms no other.
        """
        while True:
            await self._filled.wait()
            while self._keys:
                key = next(iter(self._keys))
                del self._keys[key]
                self._resting.add(key)
                asyncio.get_running_loop().call_later(_REST_SECONDS, self._rested, key)
                try:
                    reconcile(key)
                except ApiError as error:
                    log.info("reconcile refused", key=key, error=str(error))
                    self.add_after(key, _RETRY_SECONDS)
                except Exception:
                    log.exception("reconcile failed", key=key)
                await anyio.lowlevel.checkpoint()
            self._filled = anyio.Event()


class Controller:
    """A controller of one kind of object. Subclasses subscribe in `start` and bring one object in order per call."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.queue: WorkQueue[ObjectKey] = WorkQueue()

    def start(self) -> None:
        """Subscribe to what makes a key worth a look, and look at what is there already."""
        raise NotImplementedError

    def reconcile(self, key: ObjectKey) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        """Reconcile until cancelled; `start` came before."""
        await self.queue.run(self.reconcile)
