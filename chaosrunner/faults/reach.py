"""Whether callers still reach a Pod: seen from their side, by what became of the probes' requests."""

from __future__ import annotations

from typing import NamedTuple

import anyio

from chaosrunner.cluster.resources import Object, meta
from chaosrunner.faults.base import Context

POLL = 0.2
"""Seconds between two looks."""


class Reached(NamedTuple):
    """Of requests sent while somebody looked: how many this Pod answered, and how many others did."""

    here: int
    elsewhere: int
    seconds: float
    """How long was looked; the first answer of the Pod ends it."""

    def text(self) -> str:
        within = f"within {self.seconds:.1f} s"
        if self.here:
            return f"it answered {self.here} of the requests sent afterwards, {within}"
        if self.elsewhere:
            return f"it answered none of the requests sent afterwards {within}, and others {self.elsewhere}"
        return f"nobody answered a request {within}"


async def reached(context: Context, pod: Object, seconds: float) -> Reached | None:
    """Looks for so many seconds; None where nobody sends requests."""
    if context.answered is None:
        return None
    began, uid = context.now, str(meta(pod)["uid"])
    while True:
        here, elsewhere = context.answered(uid, began)
        looked = context.now - began
        if here or looked >= seconds:
            return Reached(here, elsewhere, looked)
        await anyio.sleep(min(POLL, seconds))
