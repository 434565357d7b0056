"""How the chunks of streams reached the probe: one by one as they were made, or held back and then in lumps."""

from __future__ import annotations

from typing import NamedTuple

from chaosrunner.analysis.requests import Floats, Mask, Requests

FEWEST_CHUNKS = 8
"""Chunks with content below which a stream shows nothing of how it was delivered."""
LUMPED = 0.8
"""Share of a stream's chunks that come at once, less than 1 ms after the one before, above which it came in lumps."""
SLOWEST_BURST = 0.005
"""Seconds a chunk, from sending to the last one, below which a model may really have been that fast."""
SHORTEST_WAIT = 0.5
"""Seconds that a stream took, below which holding it back makes no difference to anybody."""


class Delivery(NamedTuple):
    """What is known of each request."""

    told: Mask
    """Streams long enough to tell."""
    held: Mask
    """Those that came in lumps although they took their time."""
    lumps: Floats
    """How many lumps each came in."""
    took: Floats
    """Seconds from the begin to the last chunk."""


def delivery(requests: Requests, lag: float) -> Delivery:
    """`lag`: the largest lateness of our own loop, seconds; what came while it stood still piled up at our end."""
    chunks, took = requests.content_chunks, requests.last_token - requests.began()
    lumps = chunks - requests.at_once
    told = requests.in_service & (chunks >= FEWEST_CHUNKS) & (took >= SHORTEST_WAIT)
    held = told & (requests.at_once >= LUMPED * (chunks - 1)) & (took >= SLOWEST_BURST * chunks)
    return Delivery(told, held & (took > 2 * lag * lumps), lumps, took)
