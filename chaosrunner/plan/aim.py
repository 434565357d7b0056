"""From a step of the playbook and the targets chosen for it to the fault."""

from __future__ import annotations

from collections.abc import Sequence

from chaosrunner.cluster.drain import DrainOptions
from chaosrunner.cluster.resources import Object
from chaosrunner.faults import cordon, delete_pod, drain, evict
from chaosrunner.faults.base import Fault
from chaosrunner.plan.limits import Guard
from chaosrunner.playbook import models
from chaosrunner.timeline import rows

PodStep = models.Evict | models.DeletePod
NodeStep = models.Cordon | models.Uncordon | models.Drain


def pod_fault(body: PodStep, pods: Sequence[Object]) -> Fault:
    """The fault of a step that takes Pods."""
    match body:
        case models.Evict():
            return evict.Evict(
                pods,
                dry_run=body.dry_run,
                grace_period=body.grace_period,
                expect=body.expect,
                retry_for=body.retry_for,
            )
        case models.DeletePod():
            return delete_pod.DeletePod(pods, grace_period=body.grace_period, force=body.force, expect=body.expect)


def node_fault(body: NodeStep, nodes: Sequence[rows.Target], guard: Guard) -> Fault:
    """The fault of a step that takes nodes. A drain evicts no Pod that the drill's limits exclude."""
    match body:
        case models.Cordon():
            return cordon.Cordon(nodes)
        case models.Uncordon():
            return cordon.Uncordon(nodes)
        case models.Drain():
            return drain.Drain(
                nodes,
                timeout=body.timeout,
                options=DrainOptions(
                    ignore_daemonsets=body.ignore_daemonsets,
                    delete_emptydir_data=body.delete_emptydir_data,
                    force=body.force,
                ),
                grace_period=body.grace_period,
                retry_every=body.retry_every,
                off_limits=guard.off_limits,
                too_many=guard.too_many_evictions,
            )
