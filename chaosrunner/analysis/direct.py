"""What probes saw that sent to each replica by its own address, beside what the gateway made of the same replicas."""

from __future__ import annotations

from typing import Literal

import numpy as np

from chaosrunner.analysis import aggregate, recovery
from chaosrunner.analysis.facts import ALL, PHASES, DirectProbe, DirectReplica, Milestone, Span
from chaosrunner.analysis.folds.pods import PodState
from chaosrunner.analysis.picture import DirectPicture, Picture
from chaosrunner.analysis.placement import UNPLACED
from chaosrunner.analysis.requests import Ints, Mask
from chaosrunner.analysis.spans import UNKNOWN, between, evidence, never, worst
from chaosrunner.timeline.rows import Replica


def direct_probes(picture: Picture) -> list[DirectProbe]:
    """One for each probe whose target is the replicas."""
    return [_probe(picture, probe.name) for probe in picture.context.probes if probe.direct]


def routing_delay(picture: Picture) -> Span:
    """From serving directly to the gateway's first request, the longest of the replacements; unknown while one of them
    has none."""
    found = replacements(picture)
    complete = picture.pairs and len(found) == len(picture.pairs)
    return worst([replica.routing_delay for replica in found]) if complete else UNKNOWN


def replacements(picture: Picture) -> list[DirectReplica]:
    """Each replacement, as the probe saw it that was served first."""
    seen = [replica for probe in direct_probes(picture) for replica in probe.replicas if replica.role == "replacement"]
    first: dict[str, DirectReplica] = {}
    for replica in sorted(seen, key=lambda replica: np.inf if replica.served.at is None else replica.served.at):
        first.setdefault(replica.uid, replica)
    return list(first.values())


def _probe(picture: Picture, name: str) -> DirectProbe:
    direct = picture.direct
    requests = direct.requests
    mine = requests.of_probe(name)
    counted = mine & ~direct.early
    frame = aggregate.frame(requests, direct.phase_codes, direct.straddling)
    frame = frame[counted[frame.index]]
    masks = {ALL: counted} | {phase: mask for phase in PHASES if (mask := counted & direct.in_phase(phase)).any()}
    told = [row for row in picture.observations.replicas if row.probe == name]
    known = dict.fromkeys(row.replica for row in told)
    pods = [pod for uid in known if (pod := picture.pods.by_uid.get(uid)) is not None]
    replicas = [_replica(picture, pod, mine, [row for row in told if row.replica == pod.uid]) for pod in pods]
    return DirectProbe(
        probe=name,
        success_rate={phase: aggregate.success_rate(requests, mask) for phase, mask in masks.items()},
        incomplete_200={
            phase: int(np.count_nonzero(aggregate.incomplete_200(requests, mask))) for phase, mask in masks.items()
        },
        outcomes=aggregate.outcome_table(frame),
        latency=aggregate.latency_table(requests, frame),
        early=sum(replica.early for replica in replicas),
        early_served=sum(replica.early_served for replica in replicas),
        replicas=replicas,
    )


def _replica(picture: Picture, pod: PodState, of_probe: Mask, told: list[Replica]) -> DirectReplica:
    direct, service = picture.direct, picture.requests
    requests = direct.requests
    on = of_probe & direct.on(pod) & requests.in_service
    counted = on & ~direct.early
    through = picture.on(pod) & service.in_service
    stages = recovery.milestones(picture, pod)
    served = _served(direct, requests.by_sending(on), told)
    stopped = _stopped(direct, requests.by_sending(counted), pod)
    after = through & (service.sent > (np.inf if stopped.at is None else stopped.at))
    fresh = not _ready_from_the_start(pod)
    return DirectReplica(
        pod=pod.name,
        uid=pod.uid,
        addresses=list(dict.fromkeys(row.address for row in told)),
        role=_role(picture, pod),
        listens=next((row.at for row in told if row.event == "listens"), None),
        left=next((row.at for row in reversed(told) if row.event == "left"), None),
        fresh=fresh,
        served=served,
        ready=stages.ready,
        endpoint_ready=stages.endpoint_ready,
        routed=stages.first_routed,
        routing_delay=between(served, stages.first_routed) if fresh else UNKNOWN,
        passed_by=_passed_by(picture, pod, served, stages.endpoint_ready, stages.first_routed) if fresh else None,
        stopped=stopped,
        routed_after=int(np.count_nonzero(after)),
        routed_after_lost=int(np.count_nonzero(after & ~service.success)),
        last_routed=float(service.sent[after].max()) if after.any() else None,
        requests=int(np.count_nonzero(counted)),
        successes=int(np.count_nonzero(counted & requests.success)),
        early=int(np.count_nonzero(on & direct.early)),
        early_served=int(np.count_nonzero(on & direct.early & requests.success)),
        ttft=aggregate.percentiles(aggregate.latency(requests, "ttft", counted)),
        routed_requests=int(np.count_nonzero(through)),
        routed_successes=int(np.count_nonzero(through & service.success)),
        routed_ttft=aggregate.percentiles(aggregate.latency(service, "ttft", through)),
        evidence=evidence(requests.ids(on & ~requests.success)),
    )


def _role(picture: Picture, pod: PodState) -> Literal["victim", "replacement"] | None:
    if any(victim.pod is pod for victim in picture.victims):
        return "victim"
    return "replacement" if pod in picture.replacements else None


def _ready_from_the_start(pod: PodState) -> bool:
    ready = pod.milestones.get("ready")
    return pod.listed and ready is not None and ready.row == pod.first_row


def _served(direct: DirectPicture, positions: Ints, told: list[Replica]) -> Milestone:
    """When the first of its successes was sent. It could not be known to serve before the failure that was sent last
    before it, or before it was first asked."""
    requests = direct.requests
    good = np.flatnonzero(requests.success[positions])
    if not len(good):
        return never("no request to it succeeded" if len(positions) else "no request was sent to it")
    first = int(positions[good[0]])
    at = float(requests.sent[first])
    asked = [row.at for row in told if row.event == "listens" and row.at <= at]
    before = float(requests.sent[positions[good[0] - 1]]) if good[0] else max(asked, default=at)
    shown = float(requests.first_token[first])
    high = float(requests.ended[first]) if np.isnan(shown) else shown
    return Milestone(at=at, low=min(before, at), high=high, sent=at, why=None, evidence=[int(requests.id[first])])


def _stopped(direct: DirectPicture, positions: Ints, pod: PodState) -> Milestone:
    """When the first of the last requests to it failed, none of which was answered: it had stopped serving by then."""
    requests = direct.requests
    if not pod.terminating and pod.gone is None and pod.failed is None:
        return never("it did not leave")
    answered = requests.success[positions] | ~np.isnan(requests.first_token[positions])
    served = np.flatnonzero(answered)
    if not len(served):
        return never("no request to it was answered")
    if served[-1] + 1 == len(positions):
        return never("the last request to it was answered")
    last, refused = int(positions[served[-1]]), positions[served[-1] + 1 :]
    first = int(refused[np.argmin(requests.ended[refused])])
    at = float(requests.ended[first])
    answer = float(np.fmin(requests.headers[last], requests.ended[last]))
    return Milestone(
        at=at,
        low=min(answer, at),
        high=at,
        sent=float(requests.sent[first]),
        why=None,
        evidence=[int(requests.id[first])],
    )


def _passed_by(
    picture: Picture, pod: PodState, served: Milestone, endpoint: Milestone, routed: Milestone
) -> int | None:
    """Requests of the service that went to others when this one served and was a ready endpoint; None where it never
    did, or nobody says who served them."""
    if served.at is None or not (picture.placed != UNPLACED).any():
        return None
    requests = picture.requests
    since = served.at if endpoint.at is None else max(served.at, endpoint.at)
    until = picture.now if routed.at is None else routed.at
    elsewhere = requests.in_service & (requests.sent > since) & (requests.sent < until) & ~picture.on(pod)
    return int(np.count_nonzero(elsewhere))
