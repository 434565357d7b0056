"""How Pods left: taken by others, with too little time, by force, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chaosrunner.analysis.clocks import Interval
from chaosrunner.analysis.facts import Disruption, Finding, Termination
from chaosrunner.analysis.findings.base import finding, plural
from chaosrunner.analysis.folds.pods import PodState
from chaosrunner.analysis.picture import PODS, Picture
from chaosrunner.timeline.rows import Event

STUCK_AFTER = 10.0
"""Seconds past its deadline after which a Pod that still has finalizers counts as stuck: the kubelet itself may
need a few (grace + 2 s was recorded on a real 1.37)."""

AT_ONCE = 2.0
"""Seconds within which an object goes that nobody waits for."""

NOTICED_WITHIN = 2.0
"""Seconds within which a client has noticed that the other end was killed; a gateway may keep it for one."""

SIGKILL = 137
"""Exit code of a process ended by SIGKILL: 128 + 9."""


def disruptions(found: list[Disruption]) -> Iterator[Finding]:
    for disruption in found:
        if disruption.type == "node_shutdown":
            text = (
                f"{disruption.pod} was ended by its kubelet, without a deletionTimestamp: a node shutdown, "
                "not a crash of the application"
            )
            yield finding("node_shutdown", "warning", text, disruption.evidence)
            if disruption.endpoint_lag:
                lag = disruption.endpoint_lag
                text = f"the endpoint of {disruption.pod} stayed ready for {lag:.1f} s after it had failed"
                yield finding("endpoint_lag", "warning", text, disruption.evidence)
        elif not disruption.ours and disruption.type != "deletion":
            text = f"{disruption.pod} was taken away by somebody else: {disruption.type}"
            yield finding("other_disruption", "warning", text, disruption.evidence)


def terminations(picture: Picture, found: list[Termination]) -> Iterator[Finding]:
    for termination in found:
        pod = picture.pods.by_uid[termination.uid]
        deadline = termination.deadline.high
        explained = list(_forced(picture, pod)) + list(_hurried(picture, pod, termination))
        yield from explained
        if termination.gone.high is not None:
            late = termination.late_by
            if not explained and late.low is not None and late.low > 0 and late.value:
                text = f"{termination.pod} went {late.value:.1f} s after its grace period had ended"
                yield finding("grace_exceeded", "info", text, termination.evidence)
        elif termination.finalizers and deadline is not None and picture.now > deadline + STUCK_AFTER:
            if picture.observations.watches.overlapping(PODS, deadline, picture.now):
                continue
            text = (
                f"{termination.pod} is stuck terminating, {picture.now - deadline:.0f} s past its deadline: "
                f"finalizer {', '.join(termination.finalizers)}"
            )
            advice = "the controller that owns the finalizer must remove it; the Pod has not left"
            yield finding("stuck_terminating", "failure", text, termination.evidence, advice)


def _forced(picture: Picture, pod: PodState) -> Iterator[Finding]:
    """Deleted with grace 0, gone at once, its containers running when last seen: nobody waited for its process."""
    row, last, gone = pod.deletion, pod.last, pod.gone
    if row is None or last is None or gone is None or row.deletion_grace != 0 or picture.pods.requested(pod) is None:
        return
    running = any(container.state == "running" for container in last.containers if not container.init)
    if not running or gone.at is None or gone.at - row.at > AT_ONCE:
        return
    requests = picture.requests
    after = picture.on(pod) & requests.in_service & (requests.ended > gone.at)
    whole = after & requests.success
    text = f"{pod.name} was deleted with grace 0, and its object was gone at once while its containers ran: "
    rows = [row.id, gone.row]
    if whole.any():
        last_end = float(requests.ended[whole].max()) - gone.at
        text += (
            f"its process ran on; {plural(int(np.count_nonzero(whole)), 'request')} on it completed up to "
            f"{last_end:.1f} s after the object was gone"
        )
    else:
        text += "the process may run on, and streams on it may still complete"
    lost = int(np.count_nonzero(after & ~requests.success))
    text += f"; {lost} on it were lost after that" if lost else ""
    advice = "a deletion without force waits until the process has ended; until then its replacement is not alone"
    yield finding("deleted_by_force", "warning", text, [*rows, *requests.ids(after)], advice)


def _hurried(picture: Picture, pod: PodState, termination: Termination) -> Iterator[Finding]:
    """What its grace period was too short for, as far as the rows prove it."""
    row, last, ended = pod.deletion, pod.last, pod.terminated
    if row is None or last is None or not row.deletion_grace or termination.deadline.low is None:
        return
    # It was asked for before the row came that shows it: a bound that needs nobody else's clock.
    latest = row.at + row.deletion_grace
    deadline = Interval(termination.deadline.low, min(termination.deadline.high or latest, latest))
    hooks = picture.observations.events.of(pod.uid, "FailedPreStopHook")
    killed = [name for name, code in termination.exit_codes.items() if code == SIGKILL]
    if ended is not None and ended.at is not None and killed:
        over = ended.low > deadline.high
        if not over and ended.high < deadline.low:
            return  # long before: something else killed it
        yield _killed(picture, pod, Interval(ended.low, ended.high), killed, over, hooks, deadline)
    elif hooks and picture.observations.events.interval(hooks[0]).high < deadline.low:
        after = hooks[0].at - row.at
        text = (
            f"the preStop hook of {pod.name} failed {after:.1f} s after the deletion, long before its grace period of "
            f"{row.deletion_grace:g} s ended: SIGTERM followed at once"
        )
        yield finding("prestop_failed", "warning", text, [row.id, hooks[0].id], "mend the hook; its wait was cut short")


def _killed(
    picture: Picture,
    pod: PodState,
    ended: Interval,
    containers: list[str],
    over: bool,
    hooks: list[Event],
    deadline: Interval,
) -> Finding:
    """A container that got SIGKILL at its deadline or after it."""
    row = pod.deletion
    assert row is not None
    assert pod.terminated is not None
    requests = picture.requests
    cut = picture.on(pod) & requests.in_service & ~requests.success
    cut &= (requests.ended >= ended.low) & (requests.ended <= ended.high + NOTICED_WITHIN)
    rows = [row.id, pod.terminated.row, *(hook.id for hook in hooks), *requests.ids(cut)]
    grace, names = row.deletion_grace or 0.0, ", ".join(containers)
    lost = int(np.count_nonzero(cut))
    streams = f"; {plural(lost, 'request')} on it {'were' if lost > 1 else 'was'} lost then" if lost else ""
    low, high = max(0.0, ended.low - row.at), ended.high - row.at
    when = f"{names} got SIGKILL (exit {SIGKILL}) {low:.1f} to {high:.1f} s after the deletion"
    if not over:
        text = (
            f"{pod.name}: {when}, at about the end of its grace period of {grace:g} s; that this was the cause is "
            f"not proven{streams}"
        )
        return finding("killed_near_deadline", "warning", text, rows)
    late = [hook for hook in hooks if picture.observations.events.interval(hook).low > deadline.high]
    if late:
        cause = "its preStop hook had not ended by then (FailedPreStopHook)"
    elif hooks:
        cause = "its preStop hook failed too; whether before the end or by it is not known"
    elif picture.observations.events.of(pod.uid, "Killing"):  # so its Events are seen
        cause = "no preStop hook failed: what was left after SIGTERM was too short for it"
    else:
        cause = "no Event tells whether its preStop hook or what follows SIGTERM took the time"
    text = f"{pod.name} exceeded its grace period of {grace:g} s: {when}; {cause}{streams}"
    advice = "set terminationGracePeriodSeconds above preStop + drain"
    return finding("grace_exceeded", "warning", text, rows, advice)
