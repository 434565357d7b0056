"""Pods that were taken away, by us or by others, and how they went."""

from __future__ import annotations

from typing import Literal

from chaosrunner.analysis.clocks import Interval
from chaosrunner.analysis.facts import Disruption, Milestone, Termination
from chaosrunner.analysis.folds.pods import Moment, PodState
from chaosrunner.analysis.picture import Picture
from chaosrunner.analysis.spans import between, evidence, milestone, never

Kind = Literal["eviction", "deletion", "node_shutdown", "node_pressure", "preemption", "taint", "garbage_collection"]

_BY_CONDITION: dict[str, Kind] = {
    "EvictionByEvictionAPI": "eviction",
    "PreemptionByScheduler": "preemption",
    "PreemptionByKubeScheduler": "preemption",
    "DeletionByTaintManager": "taint",
    "DeletionByDeviceTaintManager": "taint",
    "DeletionByPodGC": "garbage_collection",
}
"""Reasons of the Pod condition DisruptionTarget: kubernetes.io, "Disruptions", Pod disruption conditions. The
scheduler's had another name up to 1.25."""

_SHUTDOWN = frozenset({"Terminated", "NodeShutdown", "Shutdown"})
"""status.reason that a kubelet sets on a Pod which it ends because its node shuts down (by version)."""


def disruptions(picture: Picture) -> list[Disruption]:
    """Every Pod of the workload that was taken away while it was watched, by time."""
    ours = {victim.uid for victim in picture.taken if victim.pod is not None}
    found = []
    for pod in picture.pods.all:
        kind = _kind(pod)
        if kind is None or not picture.context.selector.matches(pod.labels):
            continue
        moments = [moment for moment in (pod.disrupted, _deletion(picture, pod), pod.failed) if moment is not None]
        first = min(moments, key=lambda moment: moment.high)
        if pod.listed and first.row == pod.first_row:
            continue  # it was leaving before the recording began
        found.append(
            Disruption(
                pod=pod.name,
                uid=pod.uid,
                type=kind,
                ours=pod.uid in ours,
                at=first.at,
                low=max(0.0, min(moment.low for moment in moments)),
                high=first.high,
                reason=_reason(pod),
                endpoint_lag=_endpoint_lag(picture, pod, first),
                evidence=evidence(moment.row for moment in moments),
            )
        )
    return sorted(found, key=lambda disruption: disruption.high)


def terminations(picture: Picture) -> list[Termination]:
    """How each deleted Pod went, in the order in which their deletions were seen."""
    found = []
    for pod in picture.pods.all:
        row = pod.deletion
        if row is None or pod.last is None:
            continue
        requested, deadline = _request(picture, pod)
        gone = never("still there when the recording ended") if pod.gone is None else milestone(pod.gone)
        containers = never("not seen") if pod.terminated is None else milestone(pod.terminated)
        found.append(
            Termination(
                pod=pod.name,
                uid=pod.uid,
                requested=requested,
                deadline=deadline,
                grace=row.deletion_grace,
                containers_terminated=containers,
                exit_codes={
                    container.name: container.exit_code
                    for container in pod.last.containers
                    if container.exit_code is not None and not container.init
                },
                gone=gone,
                late_by=between(deadline, gone),
                finalizers=pod.last.finalizers,
                evidence=evidence([row.id, *containers.evidence, *gone.evidence]),
            )
        )
    return sorted(found, key=lambda termination: termination.evidence[0])


def _kind(pod: PodState) -> Kind | None:
    reason = pod.disruption.reason if pod.disruption is not None else None
    if reason in _BY_CONDITION:
        return _BY_CONDITION[reason]
    if pod.failed is not None and pod.last is not None:
        status = pod.last.reason
        if status in _SHUTDOWN:
            return "node_shutdown"
        if status == "Preempting":  # by its kubelet, for a critical Pod
            return "preemption"
        if status == "Evicted" or reason == "TerminationByKubelet":
            return "node_pressure"
    if pod.deletion is not None:
        return "deletion"
    return None


def _reason(pod: PodState) -> str | None:
    if pod.disruption is not None:
        return pod.disruption.message or pod.disruption.reason
    return pod.last.reason if pod.last is not None else None


def _deletion(picture: Picture, pod: PodState) -> Moment | None:
    if pod.deletion is None:
        return None
    requested = picture.pods.requested(pod)
    return picture.pods.moment(pod, pod.deletion, None if requested is None else requested[0])


def _endpoint_lag(picture: Picture, pod: PodState, first: Moment) -> float | None:
    """How long its endpoint stayed ready after the disruption was seen; 0 where it was not ready any more."""
    endpoints = picture.observations.endpoints
    if first.at is None or pod.uid not in endpoints.changes:
        return None
    if not endpoints.ready_at(pod.uid, first.at):
        return 0.0
    change = endpoints.not_ready_after(pod.uid, first.at)
    return None if change is None or change.low < change.at else change.at - first.at


def _request(picture: Picture, pod: PodState) -> tuple[Milestone, Milestone]:
    """When the deletion was asked for, and its deadline."""
    row = pod.deletion
    requested = picture.pods.requested(pod)
    if row is None or requested is None:
        unknown = never("first seen after a gap with grace 0: a rewrite by the kubelet, or a forced deletion")
        return unknown, unknown
    window, at = requested
    grace = row.deletion_grace or 0.0
    return _reported(window, at, row.id), _reported(
        Interval(window.low + grace, window.high + grace), at + grace, row.id
    )


def _reported(window: Interval, at: float, row: int) -> Milestone:
    return Milestone(at=at, low=window.low, high=window.high, sent=None, why=None, evidence=[row])
