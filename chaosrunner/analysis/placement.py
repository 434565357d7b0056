"""Which Pod served which request: by the name or address that the response gave, at the time of the request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chaosrunner.analysis.context import AnalysisContext
from chaosrunner.analysis.folds.flight import Flying
from chaosrunner.analysis.folds.pods import Pods, PodState
from chaosrunner.analysis.requests import NONE, Codes, Floats, Requests

UNPLACED = -1


def place(requests: Requests, pods: Pods, context: AnalysisContext) -> Codes:
    """Position in `pods.all` of the Pod that served each request; `UNPLACED` where it is not known.

    Of a request that went to a replica by its address it is that replica, or who had come to have the address. Else the
    response header decides; where a probe has none, the peer's address does. A name or address that several
    Pods had one after the other means the one that had it when the headers came. An address that several living
    Pods share means none of them.
    """
    positions = {pod.uid: position for position, pod in enumerate(pods.all)}
    when = np.where(np.isnan(requests.headers), requests.ended, requests.headers)
    placed = _resolve(requests.pod, requests.vocabulary["pod"].words, when, pods, positions)
    direct = np.zeros(len(requests), dtype=bool)
    for code, name in enumerate(requests.vocabulary["probe"].words):
        if context.probe(name).pod_header is None:
            direct |= requests.probe == code
    usable = direct & (requests.pod == NONE)
    if usable.any():
        remote = np.where(usable, requests.remote, NONE).astype(np.int32)
        by_address = _resolve(remote, requests.vocabulary["remote"].words, when, pods, positions)
        placed = np.where(placed == UNPLACED, by_address, placed)
    sent_to = requests.replica != NONE
    if sent_to.any():
        targets = [positions.get(uid, UNPLACED) for uid in requests.vocabulary["replica"].words]
        target = np.array([*targets, UNPLACED], dtype=np.int32)[requests.replica]
        remote = np.where(sent_to, requests.remote, NONE).astype(np.int32)
        holder = _resolve(remote, requests.vocabulary["remote"].words, when, pods, positions)
        # An address may have become another Pod's before anybody told the probe.
        placed = np.where(sent_to, np.where(holder == UNPLACED, target, holder), placed)
    return placed


def serving(flying: Flying, pods: Pods, context: AnalysisContext) -> PodState | None:
    """The Pod that serves a request in flight, by the rules of `place`; None before its headers came."""
    if flying.sent.replica is not None:
        return pods.by_uid.get(flying.sent.replica)
    if flying.headers is None:
        return None
    label = flying.label
    if label is None and context.probe(flying.sent.probe).pod_header is None:
        label = flying.remote
    return None if label is None else holder(pods, label, flying.headers)


def holder(pods: Pods, label: str, at: float) -> PodState | None:
    """The Pod that a name or address meant at `at`."""
    candidates, starts, shared = _holders(pods, label)
    if not candidates:
        return None
    index = int(np.searchsorted(starts, at, side="right")) - 1
    return None if any(low <= at < high for low, high in shared) else candidates[max(0, index)]


def _resolve(codes: Codes, words: Sequence[str], when: Floats, pods: Pods, positions: dict[str, int]) -> Codes:
    # One extra entry at the end: where code -1 (no label) points.
    sole = np.full(len(words) + 1, UNPLACED, dtype=np.int32)
    several = []
    for code, word in enumerate(words):
        candidates, starts, shared = _holders(pods, word)
        if len(candidates) == 1:
            sole[code] = positions[candidates[0].uid]
        elif candidates:
            several.append((code, np.array([positions[pod.uid] for pod in candidates], np.int32), starts, shared))
    placed = np.asarray(sole[codes])
    for code, targets, starts, shared in several:
        rows = np.flatnonzero(codes == code)
        times = when[rows]
        index = np.maximum(0, np.searchsorted(starts, times, side="right") - 1)
        chosen = targets[index]
        for low, high in shared:
            chosen[(times >= low) & (times < high)] = UNPLACED
        placed[rows] = chosen
    return placed


def _holders(pods: Pods, label: str) -> tuple[Sequence[PodState], Floats, list[tuple[float, float]]]:
    """The Pods that had this label, since when each of them had it, and when several living ones shared it.

    A header may hold several values (a gateway adds its own): the Pod is the one that one of them names. Where they
    name two, as after a retry, nobody knows which of them answered.
    """
    found = [holders for part in dict.fromkeys(label.split(",")) if (holders := _of_value(pods, part))[0]]
    if len({tuple(pod.uid for pod in holders) for holders, *_ in found}) != 1:
        return (), _starts([]), []
    return found[0]


def _of_value(pods: Pods, value: str) -> tuple[Sequence[PodState], Floats, list[tuple[float, float]]]:
    """The same for one value: a name, namespace/name or DNS name, an address, each with or without scheme and port."""
    label = value.strip().strip('"').rstrip("/").rsplit("/", 1)[-1]
    host = _host(label)
    named = pods.named(label) or pods.named(host)
    addressed = () if named else pods.addressed(host)
    if not named and not addressed:
        named = pods.named(host.partition(".")[0])
    if named:
        return named, _starts([pod.named_from for pod in named]), []
    starts = _starts([pod.addressed_from[host] for pod in addressed])
    shared = []
    for position, start in enumerate(starts):
        for earlier in addressed[:position]:
            left = float("inf") if earlier.left is None else earlier.left
            if left > start:
                shared.append((float(start), left))
    return addressed, starts, shared


def _starts(times: Sequence[float | None]) -> Floats:
    # The first one may be named by a response before a watch event shows it.
    return np.array([float("-inf") if time is None or not index else time for index, time in enumerate(times)])


def _host(label: str) -> str:
    if label.startswith("["):
        host = label[1:].partition("]")[0]
    else:
        host = label.partition(":")[0] if label.count(":") == 1 else label
    # An IPv4 address as a socket of both families shows it.
    return host.removeprefix("::ffff:") if "." in host else host
