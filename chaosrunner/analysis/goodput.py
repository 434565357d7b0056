"""Goodput: successes inside every SLO given (a probe without an SLO asks for a success only)."""

from __future__ import annotations

import numpy as np

from chaosrunner.analysis import aggregate
from chaosrunner.analysis.facts import Estimate
from chaosrunner.analysis.picture import Picture
from chaosrunner.analysis.requests import Mask
from chaosrunner.analysis.warm import within


def good_mask(picture: Picture) -> Mask:
    """Counted requests that are a success inside every limit of their probe's SLO."""
    requests = picture.requests
    good = np.zeros(len(requests), dtype=bool)
    for code, name in enumerate(requests.vocabulary["probe"].words):
        mine = np.flatnonzero(requests.counted & (requests.probe == code))
        good[mine] = within(requests, picture.context.probe(name).slo, mine)
    return good


def given(picture: Picture) -> bool:
    """Whether any probe has an SLO."""
    return any(probe.slo.limits() for probe in picture.context.probes)


def traffic(picture: Picture, phase: str) -> float | None:
    """Seconds of the part of a phase with traffic: from the first sending to the last end of the run; None where
    nothing was sent then."""
    requests = picture.requests
    window = picture.phase_window(phase)
    if window is None or not requests.counted.any():
        return None
    begin = max(window[0], float(requests.sent[requests.counted].min()))
    end = min(window[1], float(requests.ended[requests.counted].max()))
    return end - begin if end > begin else None


def goodput(picture: Picture, phase: str, mask: Mask) -> float | None:
    """Good requests a second among the masked ones, over the part of the phase with traffic. None where no SLO is given
    or nothing was sent."""
    seconds = traffic(picture, phase)
    if not given(picture) or seconds is None:
        return None
    return float(np.count_nonzero(good_mask(picture) & mask)) / seconds


def good_share(picture: Picture, mask: Mask) -> Estimate | None:
    """Good requests over the denominator of success_rate; None where no SLO is given."""
    if not given(picture):
        return None
    counted = int(np.count_nonzero(picture.requests.counted & mask))
    return aggregate.estimate(int(np.count_nonzero(good_mask(picture) & mask)), counted)
