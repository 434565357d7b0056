"""When a fault that nobody undoes ends by itself, counted from the instant at which it was really there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

import anyio

from chaosrunner.cluster import Cluster
from chaosrunner.journal import injected
from chaosrunner.journal.journal import Entry, Injected
from tests.torture.state import effects
from tests.torture.world import Lab

LEAVE = 2.0
"""Seconds after its own end at which a fault must be gone."""
LOOK = 0.1
"""Seconds between two looks."""


@dataclass(frozen=True)
class Ended:
    """How a fault ended that was left to itself."""

    seen: bool
    """Whether its effect was seen in the target before."""
    after: float
    """Seconds from its own end until it had been looked for in vain: tells of it only where it was seen before."""
    left: tuple[str, ...] = ()
    """What was still there `LEAVE` seconds after its end."""


async def await_end(cluster: Cluster, lab: Lab, entry: Entry) -> Ended | None:
    """Follows a fault whose runner and guardian are dead to its end; None where it was never there."""
    there = await _set(cluster, entry)
    if there is None or entry.ends is None:
        return None
    end = there + entry.ends - injected.START - entry.wall
    seen = False
    while True:
        began = time.time()
        found = effects(lab)
        if not found and (seen or began > end):
            return Ended(seen, time.time() - end)
        if began > end + LEAVE:
            return Ended(seen, began - end, tuple(f"{what}, {began - end:.1f} s after its end" for what in found))
        seen = seen or bool(found)
        await anyio.sleep(LOOK)


async def _set(cluster: Cluster, entry: Entry) -> float | None:
    """Unix seconds at which the agent told that its effect is there, by the kubelet's stamp; None where it never is."""
    made = entry.made
    assert isinstance(made, Injected)
    while True:
        pod = await cluster.request("GET", entry.resource)
        found = injected.status(pod.body, made.container)
        query = {"container": made.container, "timestamps": "true"}
        log = await cluster.request("GET", f"{entry.resource}/log", query=query)
        for line in log.text.splitlines() if log.ok else ():
            stamp, _, told = line.partition(" ")
            if injected.event(told).get("event") == "set":
                return datetime.fromisoformat(stamp).timestamp()
        waited = time.time() - entry.wall
        if found.phase == "terminated" or waited > injected.START or (found.phase == "absent" and waited > LEAVE):
            return None
        await anyio.sleep(LOOK)
