"""How the service came back: each replacement's way from creation to warm, in one place."""

from __future__ import annotations

import numpy as np

from chaosrunner.analysis.facts import Milestone, Milestones, Recovery, Replacement
from chaosrunner.analysis.folds.pods import PodState
from chaosrunner.analysis.picture import Pair, Picture
from chaosrunner.analysis.placement import UNPLACED
from chaosrunner.analysis.spans import between, evidence, milestone, never, worst

ORDER = (
    "created", "scheduled", "initialized", "started", "ready", "endpoint_ready", "first_routed", "first_complete",
    "warm",
)  # fmt: skip


def replacements(picture: Picture) -> list[Replacement]:
    return [_replacement(picture, pair, pair.replacement) for pair in picture.pairs if pair.replacement is not None]


def recovery(picture: Picture, found: list[Replacement]) -> Recovery:
    """The worst of the replacements; unknown while a victim has none."""
    missing = [pair.victim.name for pair in picture.pairs if pair.replacement is None]
    known = [] if missing else found
    return Recovery(
        time_to_ready=worst([replacement.time_to_ready for replacement in known]),
        time_to_first_stream=worst([replacement.time_to_first_stream for replacement in known]),
        time_to_serve=worst([replacement.time_to_serve for replacement in known]),
        missing=missing,
        measured_under=_load(picture),
    )


def milestones(picture: Picture, pod: PodState) -> Milestones:
    """A Pod's way to service."""
    seen = {name: milestone(moment) for name, moment in pod.milestones.items()}
    what = "not seen" if picture.observations.watches.open("pods") is None else "not seen before a watch gap"
    ready = seen.get("ready", never(what))
    return Milestones(
        created=never("not seen") if pod.created is None else milestone(pod.created),
        scheduled=seen.get("scheduled", never(what)),
        initialized=seen.get("initialized", never(what)),
        started=seen.get("started", never(what)),
        ready=ready,
        endpoint_ready=_endpoint_ready(picture, pod, ready),
        first_routed=_first_routed(picture, pod),
        first_complete=_first_complete(picture, pod),
        warm=_warm(picture, pod),
    )


def longest(picture: Picture, pod: PodState) -> int | None:
    """Position of the success on the Pod with most completion tokens, probe-once requests included."""
    requests = picture.requests
    on = np.flatnonzero(picture.on(pod) & requests.success & ~np.isnan(requests.tokens))
    return int(on[np.argmax(requests.tokens[on])]) if len(on) else None


def tokens(picture: Picture, pod: PodState) -> int | None:
    """Largest completion token count of a success on the Pod."""
    position = longest(picture, pod)
    return None if position is None else int(picture.requests.tokens[position])


def _replacement(picture: Picture, pair: Pair, pod: PodState) -> Replacement:
    way = milestones(picture, pod)
    at = pair.call.at
    warmth = picture.warmth(pod)
    before = np.array(warmth.before, dtype=np.int64)
    succeeded = picture.requests.success[before]
    good, _ = picture.warm_rule.judge(picture.requests, before)
    return Replacement(
        pod=pod.name,
        uid=pod.uid,
        node=pod.node,
        replaces=pair.victim.name,
        replaces_uid=None if pair.victim.pod is None else pair.victim.uid,
        fault_at=at,
        milestones=way,
        time_to_ready=between(at, way.ready),
        time_to_first_stream=between(at, way.first_complete),
        time_to_serve=between(at, way.warm),
        created_to={name: between(way.created, getattr(way, name)) for name in ORDER[1:]},
        ready_to_warm=between(way.ready, way.warm),
        warmup_failed=int(np.count_nonzero(~succeeded)),
        warmup_slow=int(np.count_nonzero(succeeded & ~good)),
        tokens=tokens(picture, pod),
    )


def _endpoint_ready(picture: Picture, pod: PodState, ready: Milestone) -> Milestone:
    change = picture.observations.endpoints.first_ready(pod.uid)
    if change is None:
        return never("no slice showed its endpoint ready")
    # Nobody reports when an endpoint became ready; it was not before its Pod (unless not-ready ones are published).
    low = change.low if ready.low is None else min(change.low, max(ready.low, 0.0))
    inside_gap = change.low < change.at
    return Milestone(
        at=None if inside_gap else change.at,
        low=low,
        high=change.at,
        sent=None,
        why="inside a watch gap" if inside_gap else None,
        evidence=[change.row],
    )


def _requests_on(picture: Picture, pod: PodState) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.flatnonzero(picture.on(pod) & picture.requests.in_service)


def _unserved(picture: Picture) -> str:
    if not (picture.placed != UNPLACED).any():
        return "no response says which Pod served it"
    return "no request was seen on it"


def _first_routed(picture: Picture, pod: PodState) -> Milestone:
    requests = picture.requests
    on = _requests_on(picture, pod)
    if not len(on):
        return never(_unserved(picture))
    first = on[np.argmin(requests.sent[on])]
    at = float(requests.sent[first])
    headers = float(requests.headers[first])
    known = float(requests.ended[first]) if np.isnan(headers) else headers
    return Milestone(at=at, low=at, high=known, sent=at, why=None, evidence=[int(requests.id[first])])


def _first_complete(picture: Picture, pod: PodState) -> Milestone:
    requests = picture.requests
    on = _requests_on(picture, pod)
    complete = on[requests.success[on]]
    if not len(complete):
        return never("no complete stream on it" if len(on) else _unserved(picture))
    first = complete[np.argmin(requests.ended[complete])]
    at = float(requests.ended[first])
    return Milestone(
        at=at, low=at, high=at, sent=float(requests.sent[first]), why=None, evidence=[int(requests.id[first])]
    )


def _warm(picture: Picture, pod: PodState) -> Milestone:
    requests = picture.requests
    warmth = picture.warmth(pod)
    if not warmth.run:
        return never(warmth.why or "not warm")
    run = np.array(warmth.run)
    at = float(requests.sent[run[0]])
    return Milestone(
        at=at,
        low=at,
        high=float(requests.ended[run].max()),
        sent=at,
        why=None,
        evidence=evidence(requests.id[run].tolist()),
    )


def _load(picture: Picture) -> str:
    loads = []
    for probe in picture.context.probes:
        if probe.load is not None:
            loads.append(f"{probe.name}: {probe.load}")
        elif probe.concurrency is not None:
            loads.append(f"{probe.name}: closed loop, {probe.concurrency} in flight")
    if loads:
        return "; ".join(loads)
    window = picture.phase_window("during")
    if window is None or window[1] <= window[0]:
        return "no load recorded"
    count = int(np.count_nonzero(picture.in_phase("during") & picture.requests.in_service))
    return f"{count / (window[1] - window[0]):.2g} requests a second"
