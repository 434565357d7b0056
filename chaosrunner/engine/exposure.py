"""Why no stream came to be in flight on a Pod that a step wanted to take: what to change, not only that it was so."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from chaosrunner.analysis import Live
from chaosrunner.analysis.placement import UNPLACED, serving
from chaosrunner.plan.targets import Candidate
from chaosrunner.probes.spec import ProbeSpec

MOST_NAMED = 3
"""Pods named one by one; more are counted."""


def missed(
    live: Live, candidates: Sequence[Candidate], probes: Collection[ProbeSpec], *, since: float, now: float
) -> str | None:
    """What kept the requests of `since` to `now` (seconds) from counting on each candidate, in words.

    None where every candidate was served: then the step asks for more at once than there was.
    """
    picture = live.picture(now)
    requests, pods = picture.requests, picture.pods
    recent = requests.in_service & (requests.ended >= since)
    flying = list(picture.flight.requests.values())
    found = [serving(one, pods, live.context) for one in flying]
    total = int(np.count_nonzero(recent)) + len(flying)
    served = {pods.all[position].uid for position in np.unique(picture.placed[recent]) if position != UNPLACED}
    served |= {pod.uid for pod in found if pod is not None}
    if not total:
        return "no request was in flight"
    if not served:
        return _unknown(probes, total)
    without = [candidate.name for candidate in candidates if candidate.uid not in served]
    if not without:
        return None
    text = f"none of the {total} requests seen meanwhile was on {_names(without)}"
    through = [probe for probe in probes if not probe.replicas]
    if reused := [probe.name for probe in through if probe.connection != "new"]:
        text += (
            f"; {', '.join(reused)} reuses its connections, and the address of a Service keeps each of them with one "
            "Pod: set connection: new in the probe, or a higher concurrency"
        )
    return text


def _unknown(probes: Collection[ProbeSpec], total: int) -> str:
    if headers := sorted({probe.pod_header for probe in probes if probe.pod_header is not None}):
        return f"none of the {total} requests seen meanwhile named a known Pod in {', '.join(headers)}: see pod_header"
    return (
        f"which Pod served the {total} requests seen meanwhile is not known: no response header names it, and the "
        "address that answered is no Pod's: give endpoint.pod_header in the drill"
    )


def _names(pods: Sequence[str]) -> str:
    return ", ".join(pods) if len(pods) <= MOST_NAMED else f"{len(pods)} of the candidates"
