"""Containers that ended although nobody asked their Pod to leave, and what was lost until that was noticed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chaosrunner.analysis.clocks import Interval
from chaosrunner.analysis.facts import Finding
from chaosrunner.analysis.findings.base import finding, plural
from chaosrunner.analysis.folds.pods import Death, PodState
from chaosrunner.analysis.picture import Picture
from chaosrunner.timeline.outcomes import Outcome

BROKEN = (
    Outcome.CUT_STREAM,
    Outcome.UNTERMINATED_STREAM,
    Outcome.NO_RESPONSE,
    Outcome.CONNECT_REFUSED,
    Outcome.CONNECT_RESET,
    Outcome.HTTP_ERROR,
)
"""How requests end whose server is dead; others, like an abort, were still said by it."""

SIGNALS = {130: "SIGINT", 134: "SIGABRT", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}
"""Exit code of a process that a signal ended: 128 + its number."""


def deaths(picture: Picture) -> Iterator[Finding]:
    for pod in picture.pods.all:
        if picture.context.selector.matches(pod.labels):
            for number, death in enumerate(pod.deaths):
                later = pod.deaths[number + 1].moment.high if number + 1 < len(pod.deaths) else picture.now
                yield _death(picture, pod, death, later)


def _death(picture: Picture, pod: PodState, death: Death, until: float) -> Finding:
    """`until`: the next death, or the end of the recording."""
    requests, endpoints = picture.requests, picture.observations.endpoints
    seen = death.moment
    mine = picture.on(pod) & requests.in_service & ~requests.success
    window, rows = _window(picture, pod, death), [seen.row]
    change = endpoints.not_ready_after(pod.uid, window.low)
    noticed = seen.high if change is None else change.at
    # A stream that had begun was cut; what was sent later reached a server that was dead, or about to be.
    affected = mine & (requests.sent <= noticed) & (requests.ended >= window.low) & (requests.sent < until)
    begun = ~np.isnan(requests.first_token) | (requests.sent < window.low)
    cut, refused = int(np.count_nonzero(affected & begun)), int(np.count_nonzero(affected & ~begun))
    text = (
        f"container {death.dead.container} on {pod.name} died between {window.low:.1f} and {window.high:.1f} s "
        f"({_cause(picture, pod, death, rows)})"
    )
    if change is not None and endpoints.ready_at(pod.uid, window.low):
        rows.append(change.row)
        text += f"; its endpoint stayed ready until {change.at:.1f} s"
    if refused:
        text += f"; {plural(refused, 'request')} sent to it in that time {_were(refused)} lost"
    text += f"; {plural(cut, 'stream')} in flight on it {_were(cut)} lost" if cut else ""
    back = next((one for one in pod.readiness if one.ready and one.moment.high > seen.high), None)
    again = until if back is None else min(until, back.moment.high)
    # Its endpoint was not ready any more, and they were sent there all the same.
    late = mine & (requests.sent > noticed) & (requests.sent < again) & (change is not None)
    if count := int(np.count_nonzero(late)):
        lag = float(requests.sent[late].max()) - noticed
        text += f"; {plural(count, 'request')} sent to it up to {lag:.1f} s after that {_were(count)} lost too"
    unplaced = picture.unplaced & ~requests.success & (requests.ended >= window.low) & (requests.sent <= noticed)
    if count := int(np.count_nonzero(unplaced)):
        text += f"; {count} more lost then {_were(count)} on no known Pod"
    if back is not None and back.moment.high < until:
        rows.append(back.moment.row)
        text += f"; Ready again at {back.moment.high:.1f} s"
    advice = None
    if refused:
        advice = "let the gateway try another replica where a connection is refused: nothing was sent, so this is safe"
    return finding("container_died", "warning", text, [*rows, *requests.ids(affected | late)], advice)


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _window(picture: Picture, pod: PodState, death: Death) -> Interval:
    """When it died: by the kubelet's clock, which ticks in seconds; before the row that shows it; and before the first
    request on it failed as requests on a dead server do."""
    low, high = max(0.0, death.moment.low), death.moment.high
    if death.dead.time is not None:
        high = min(high, picture.observations.clocks.interval(death.dead.time, "kubelet", pod.node).high)
    requests = picture.requests
    broken = np.zeros(len(requests), dtype=bool)
    for outcome in BROKEN:
        broken |= requests.is_outcome(outcome)
    failed = requests.ended[picture.on(pod) & broken & (requests.ended >= low) & (requests.ended <= high)]
    return Interval(low, float(failed.min()) if len(failed) else max(low, high))


def _cause(picture: Picture, pod: PodState, death: Death, rows: list[int]) -> str:
    """What is known of why; the rows that show it are added to `rows`."""
    dead = death.dead
    if dead.reason == "OOMKilled":
        return "OOMKilled: it had used up its memory"
    for event in picture.observations.events.of(pod.uid, "Killing"):
        if event.at <= death.moment.high and "probe" in (event.message or ""):
            rows.append(event.id)
            return f"exit {dead.exit_code}; its kubelet killed it: {event.message}"
    if dead.exit_code is None:
        return "exit code not known"
    if dead.exit_code in SIGNALS:
        return f"exit {dead.exit_code}: {SIGNALS[dead.exit_code]}; who sent it is not known"
    return f"exit {dead.exit_code}"
