"""Stretches without service: as the endpoints showed them, and as the probes felt them."""

from __future__ import annotations

import numpy as np

from chaosrunner.analysis.facts import Span, Window
from chaosrunner.analysis.picture import Picture
from chaosrunner.timeline.outcomes import Outcome


def zero_ready(picture: Picture) -> list[Window]:
    """Windows in which no endpoint was ready, from what was seen; a watch gap ends a window and blurs its edge."""
    windows: list[Window] = []
    segments = list(picture.observations.endpoints.segments(picture.now))
    for index, (begin, end, ready, row) in enumerate(segments):
        if ready != 0:
            continue
        before = segments[index - 1] if index else None
        after = segments[index + 1] if index + 1 < len(segments) else None
        windows.append(
            Window(
                begin=begin,
                end=end,
                begin_low=before[0] if before is not None and before[2] is None else begin,
                end_high=after[1] if after is not None and after[2] is None else end,
                open=after is None,
                evidence=[row] if after is None else [row, after[3]],
            )
        )
    return windows


def zero_ready_seconds(picture: Picture, windows: list[Window]) -> Span:
    """Seconds without a ready endpoint: as seen; `high` adds all time in gaps. Unknown where nothing was watched."""
    segments = list(picture.observations.endpoints.segments(picture.now))
    if not segments:
        return Span(value=None, low=None, high=None)
    seen = sum(window.seconds for window in windows)
    hidden = sum(end - begin for begin, end, ready, _ in segments if ready is None)
    return Span(value=None if hidden else seen, low=seen, high=seen + hidden)


def outages(picture: Picture) -> list[Window]:
    """Stretches in which nobody was served: runs of at least two requests, by send time, that all failed before their
    first token, from the sending of the first (or, if later, the last sign of service of an earlier request: its last
    token, or its end) to the sending of the next one that was served (or the end of the recording).

    A stream that was served and then cut is a loss, but the service answered. A 429 is a refusal by policy: it
    neither makes an outage nor ends one.
    """
    requests = picture.requests
    refused = requests.is_outcome(Outcome.REJECTED) & (requests.status == 429)
    positions = requests.by_sending(requests.in_service & ~refused)
    failed = (~requests.success & np.isnan(requests.first_token))[positions]
    signs = np.where(np.isnan(requests.last_token), requests.ended, requests.last_token)[positions]
    served_until = np.maximum.accumulate(np.where(failed, -np.inf, signs))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], failed, [False])).astype(np.int8)))
    windows = []
    for first, last in edges.reshape(-1, 2).tolist():
        run = positions[first:last]
        open_ = last == len(positions)
        begin = max(float(requests.sent[run[0]]), float(served_until[first]))
        end = picture.now if open_ else float(requests.sent[positions[last]])
        if len(run) < 2 or begin >= end:
            continue
        rows = [int(requests.id[run[0]]), int(requests.id[run[-1]])]
        if not open_:
            rows.append(int(requests.id[positions[last]]))
        windows.append(Window(begin=begin, end=end, begin_low=begin, end_high=end, open=open_, evidence=rows))
    return windows
