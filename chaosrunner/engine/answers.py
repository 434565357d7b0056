"""Who answers the probes' requests: what tells from outside whether a Pod is reached."""

from __future__ import annotations

import numpy as np

from chaosrunner.analysis import Live
from chaosrunner.analysis.placement import UNPLACED, place, serving


def answered(live: Live, uid: str, since: float) -> tuple[int, int]:
    """How many requests sent since then this Pod has answered, and how many others have: with status 2xx and headers
    that came, ended or not."""
    seen, pods, context = live.observations, live.observations.pods, live.context
    here = elsewhere = 0
    for flying in seen.flight.requests.values():
        if flying.sent.at < since or flying.status is None or not 200 <= flying.status < 300:
            continue
        pod = serving(flying, pods, context)
        here += pod is not None and pod.uid == uid
        elsewhere += pod is not None and pod.uid != uid
    requests = seen.requests
    good = (requests.sent >= since) & (requests.status >= 200) & (requests.status < 300)
    placed = place(requests, pods, context)[good]
    position = next((index for index, pod in enumerate(pods.all) if pod.uid == uid), None)
    ours = int(np.count_nonzero(placed == position)) if position is not None else 0
    return here + ours, elsewhere + int(np.count_nonzero(placed != UNPLACED)) - ours
