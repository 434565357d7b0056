"""Nodes that were not Ready: what became of the Pods on them, which nobody deleted for that alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from chaosrunner.analysis.facts import Finding
from chaosrunner.analysis.findings.base import finding, plural
from chaosrunner.analysis.folds.nodes import NodeOutage
from chaosrunner.analysis.folds.pods import PodState
from chaosrunner.analysis.picture import Picture


def outages(picture: Picture) -> Iterator[Finding]:
    for outage in picture.observations.nodes.outages:
        yield _outage(picture, outage)


class _Tale(NamedTuple):
    text: str
    rows: list[int]


def _outage(picture: Picture, outage: NodeOutage) -> Finding:
    end = picture.now if outage.end is None else outage.end
    since = f"{outage.begin:.1f} s"
    if outage.low == float("-inf"):
        since = "before it was first seen"
    elif outage.low < outage.begin:
        since = f"between {outage.low:.1f} and {outage.begin:.1f} s"
    until = "to the end of the recording" if outage.end is None else f"to {outage.end:.1f} s"
    state = f"Ready={outage.ready}" + (f", {outage.reason}" if outage.reason else "")
    if outage.heartbeat is not None:
        state += f"; last heartbeat between {max(0.0, outage.heartbeat.low):.1f} and {outage.heartbeat.high:.1f} s"
    word = "not heard of" if outage.ready == "Unknown" else "not ready"
    text = f"node {outage.node} was {word} from {since} {until} ({state})"
    rows = list(outage.rows)
    cut = outage.begin if outage.heartbeat is None else max(0.0, outage.heartbeat.low)
    hosted = [
        pod
        for pod in picture.pods.all
        if pod.node == outage.node
        and picture.context.selector.matches(pod.labels)
        and (pod.gone is None or pod.gone.high > cut)
        and (pod.first_row is None or pod.created is None or pod.created.low < end)
    ]
    for tale in (
        _unready(picture, [pod for pod in hosted if pod.deletion is None or pod.deletion.at > end], cut, end),
        _leaving([pod for pod in hosted if pod.deletion is not None and pod.deletion.at <= end], outage),
        _traffic(picture, hosted, outage, end),
    ):
        text += tale.text
        rows += tale.rows
    advice = None
    if hosted and outage.ready == "Unknown":
        advice = "nothing on a cut node is known to have ended: what must not run twice needs a fence"
    return finding("node_unreachable" if outage.ready == "Unknown" else "node_not_ready", "warning", text, rows, advice)


def _unready(picture: Picture, pods: list[PodState], cut: float, end: float) -> _Tale:
    """Pods that were marked not Ready, not deleted, and came back."""
    rows: list[int] = []
    marked, out, back = [], [], []
    for pod in pods:
        lost = next((c for c in pod.readiness if not c.ready and c.moment.high >= cut and c.moment.low <= end), None)
        if lost is None:
            continue
        marked.append(pod)
        rows.append(lost.moment.row)
        change = picture.observations.endpoints.not_ready_after(pod.uid, cut)
        if change is not None and change.at <= end:
            out.append(change.at)
            rows.append(change.row)
        again = next((c for c in pod.readiness if c.ready and c.moment.high > lost.moment.high), None)
        if again is not None:
            back.append(again.moment.high)
            rows.append(again.moment.row)
    if not marked:
        return _Tale("", [])
    text = f"; {', '.join(pod.name for pod in marked)}: marked not Ready, not deleted"
    text += f", out of the endpoints at {max(out):.1f} s" if out else ""
    if back:
        some = "" if len(back) == len(marked) else f"{len(back)} of them "
        text += f", {some}Ready again at {max(back):.1f} s without being replaced"
    return _Tale(text, rows)


def _leaving(pods: list[PodState], outage: NodeOutage) -> _Tale:
    """Pods that were asked to leave while nobody on their node could hear it."""
    deaf = [pod for pod in pods if pod.terminated is None or pod.terminated.high > outage.begin]
    if not deaf:
        return _Tale("", [])
    names = ", ".join(pod.name for pod in deaf)
    text = f"; {names}: asked to leave, but only its node can tell that its processes ended"
    return _Tale(text, [pod.deletion.id for pod in deaf if pod.deletion is not None])


def _traffic(picture: Picture, pods: list[PodState], outage: NodeOutage, end: float) -> _Tale:
    """Whether requests prove that the processes ran on, and what was lost on them."""
    requests = picture.requests
    mine = np.zeros(len(requests), dtype=bool)
    for pod in pods:
        mine |= picture.on(pod)
    mine &= requests.in_service
    # A stream lives in its process: one that was open before and completed later proves it as well.
    meanwhile = (requests.ended > outage.begin) & ((requests.ended <= end) | (requests.sent < outage.begin))
    whole = mine & meanwhile & requests.success
    text, rows = "", []
    if whole.any():
        text = f"; their processes ran on: {plural(int(np.count_nonzero(whole)), 'request')} open meanwhile completed"
        rows = requests.ids(whole)
    elif pods:
        text = "; their processes may have run on"
    begin = outage.begin if outage.heartbeat is None else outage.heartbeat.low
    lost = mine & ~requests.success & (requests.ended >= begin) & (requests.sent <= end)
    if lost.any():
        text += f"; {plural(int(np.count_nonzero(lost)), 'request')} on them lost"
        rows = [*rows, *requests.ids(lost)]
    return _Tale(text, rows)
