"""What follows from the rows seen so far: victims, replacements, phases. Computed when asked, from the folds.

A `Picture` is a view at one instant. The engine makes them while the run lasts, the analysis makes one at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chaosrunner.analysis import warm
from chaosrunner.analysis.delivery import Delivery, delivery
from chaosrunner.analysis.facts import ALL, PHASES, PhaseName
from chaosrunner.analysis.folds.actions import Call
from chaosrunner.analysis.folds.endpoints import RESOURCE as ENDPOINTS
from chaosrunner.analysis.folds.pods import Moment, PodState
from chaosrunner.analysis.observations import Observations
from chaosrunner.analysis.placement import UNPLACED, place, serving
from chaosrunner.analysis.requests import Codes, Mask
from chaosrunner.analysis.warm import WarmRule, Warmth

PODS = "pods"


@dataclass(frozen=True)
class Pair:
    """A victim and the Pod that came in its place (None: not seen yet)."""

    call: Call
    victim: PodState | None
    replacement: PodState | None

    @property
    def victim_name(self) -> str:
        return self.call.sent.target.name


@dataclass(frozen=True)
class Whole:
    """When the service was whole again."""

    at: float | None
    why: str
    rows: list[int]


class Picture:
    """By the requests of the service; see `direct` for the others."""

    def __init__(self, observations: Observations, now: float) -> None:
        self.observations = observations
        self.context = observations.context
        self.requests = observations.requests
        self.flight = observations.flight
        self.pods = observations.pods
        self.now = now

    @cached_property
    def direct(self) -> DirectPicture:
        """The same by the requests that went to replicas by their own addresses."""
        return DirectPicture(self)

    def of_probe(self, name: str | None) -> Picture:
        """The one that has a probe's requests."""
        return self.direct if name is not None and self.context.probe(name).direct else self

    # --- faults and victims ---

    @cached_property
    def first_fault(self) -> Call | None:
        return self.observations.actions.first_fault

    @cached_property
    def fault_at(self) -> float | None:
        return None if self.first_fault is None else self.first_fault.at

    @cached_property
    def victims(self) -> list[tuple[Call, PodState | None]]:
        """Accepted calls that took a Pod, in the order of sending, with the Pod (None: no row ever showed it)."""
        return [
            (call, self.pods.by_uid.get(call.sent.target.uid) if call.sent.target.uid else call.pod)
            for call in self.observations.actions.disruptions
        ]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Victims and replacements: Pods created after the fault under the same root controller, k-th to k-th.

        A replacement that left before it served (refused or thrown out by its node, rolled over), and was itself
        replaced, is none: its successor is.
        """
        free = [pod for pod in self.pods.all if self.context.selector.matches(pod.labels) and pod.last is not None]
        free.sort(key=lambda pod: (_created(pod), pod.uid))
        pairs = []
        for call, victim in self.victims:
            roots = victim.roots if victim is not None else frozenset()
            tried: list[PodState] = []
            for pod in free:
                if pod is not victim and _created_after(pod, call.at) and (not roots or roots & pod.roots):
                    tried.append(pod)
                    if not self._failed_early(pod):
                        break
            free = [pod for pod in free if pod not in tried]
            chosen = tried[-1] if tried else None
            pairs.append(Pair(call, victim, chosen))
        return pairs

    def _failed_early(self, pod: PodState) -> bool:
        """Whether a Pod left before it served (or, where nobody says who served, before it was Ready)."""
        left = pod.terminating or pod.gone is not None or pod.failed is not None
        if not left or any(victim is pod for _, victim in self.victims):
            return False
        if (self.placed != UNPLACED).any():
            return self.warm_at(pod) is None
        return "ready" not in pod.milestones

    @property
    def replacements(self) -> list[PodState]:
        return [pair.replacement for pair in self.pairs if pair.replacement is not None]

    # --- requests on Pods ---

    @cached_property
    def placed(self) -> Codes:
        """Position in `pods.all` of the Pod that served each request, or `UNPLACED`."""
        return place(self.requests, self.pods, self.context)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {pod.uid: position for position, pod in enumerate(self.pods.all)}

    def on(self, pod: PodState) -> Mask:
        """Requests that this Pod served."""
        return np.asarray(self.placed == self._positions[pod.uid])

    @cached_property
    def unplaced(self) -> Mask:
        """Requests that were sent, and nobody knows to which Pod."""
        return np.asarray(self.requests.in_service & (self.placed == UNPLACED))

    def pending_on(self, pod: PodState) -> list[float]:
        """Send times of the requests in flight on this Pod, as far as that is known."""
        return [
            flying.sent.at
            for flying in self.flight.requests.values()
            if serving(flying, self.pods, self.context) is pod
        ]

    @cached_property
    def delivery(self) -> Delivery:
        """How the chunks of each stream reached the probe."""
        return delivery(self.requests, max(self.observations.run.lags, default=0.0))

    @cached_property
    def buffered(self) -> list[str]:
        """Probes of which one stream in ten, or more, came in lumps: something on their way holds streams back."""
        told, held, _, _ = self.delivery
        mine = {name: self.requests.of_probe(name) for name in self.requests.vocabulary["probe"].words}
        counts = {name: (np.count_nonzero(held & mask), np.count_nonzero(told & mask)) for name, mask in mine.items()}
        return [name for name, (found, of) in counts.items() if found and found * 10 >= of]

    # --- warm ---

    @cached_property
    def warm_rule(self) -> WarmRule:
        return warm.rule(self.requests, self.context, self.fault_at, self.observations.usual)

    def warmth(self, pod: PodState) -> Warmth:
        if pod.uid not in self._warmth:
            mask = self.on(pod)
            if not len(self.requests) or not (self.placed != UNPLACED).any():
                self._warmth[pod.uid] = Warmth((), (), "no response says which Pod served it")
            else:
                self._warmth[pod.uid] = warm.warmth(self.requests, self.warm_rule, mask, self.pending_on(pod))
        return self._warmth[pod.uid]

    @cached_property
    def _warmth(self) -> dict[str, Warmth]:
        return {}

    def warm_at(self, pod: PodState) -> float | None:
        """Send time of the first of the good streams that showed the Pod to be warm."""
        run = self.warmth(pod).run
        return float(self.requests.sent[run[0]]) if run else None

    @cached_property
    def victim_uids(self) -> frozenset[str]:
        """Pods that accepted calls took: on their way out, whether or not a watch has shown it."""
        return frozenset(uid for call, _ in self.victims if (uid := call.sent.target.uid) is not None)

    # --- endpoints ---

    @cached_property
    def ready_before(self) -> int | None:
        """Ready endpoints before the first fault."""
        seen = self.first_fault.ready_endpoints if self.first_fault is not None else None
        return self.context.ready_endpoints if seen is None else seen

    @property
    def ready_now(self) -> int | None:
        return None if self.observations.watches.open(ENDPOINTS) else self.observations.endpoints.ready

    @property
    def endpoints_back(self) -> bool | None:
        """As many ready endpoints now as before the first fault, and none of them a victim's that has not left yet;
        None where either is not known."""
        if self.fault_at is None or self.ready_before is None or self.ready_now is None:
            return None
        return self.ready_now >= self.ready_before and not self.victim_uids & self.observations.endpoints.ready_keys

    # --- phases ---

    @cached_property
    def whole(self) -> Whole:
        """As many ready endpoints as before and every replacement warm."""
        if self.fault_at is None:
            return Whole(None, "no fault was sent", [])
        missing = [pair.victim_name for pair in self.pairs if pair.replacement is None]
        if missing:
            return Whole(None, f"no replacement of {', '.join(missing)}", [])
        begin, rows = self.fault_at, []
        for pod in self.replacements:
            at = self.warm_at(pod)
            if at is None:
                return Whole(None, f"{pod.name} was not warm: {self.warmth(pod).why}", [])
            if at >= begin:
                begin, rows = at, [int(self.requests.id[self.warmth(pod).run[0]])]
        if self.ready_before is None:
            return Whole(None, "how many endpoints were ready before the fault is not known", [])
        for start, end, ready, row in self.observations.endpoints.segments(self.now):
            if ready is not None and ready >= self.ready_before and (end > begin or start >= begin):
                return Whole(max(start, begin), "whole again", [row] if start > begin else rows)
        return Whole(None, f"never again {self.ready_before} ready endpoints", [])

    @cached_property
    def phase_codes(self) -> Codes:
        """Phase of each request by its send time, as a position in `PHASES`."""
        return self._phase_at(self.requests.sent)

    @cached_property
    def straddling(self) -> Mask:
        """Requests that ended in a later phase than they were sent in."""
        return np.asarray(self._phase_at(self.requests.ended) > self.phase_codes)

    def _phase_at(self, times: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Codes:
        codes = np.zeros(len(times), dtype=np.int32)
        if self.fault_at is not None:
            codes += times > self.fault_at
            if self.whole.at is not None:
                codes += (times > self.fault_at) & (times >= self.whole.at)
        return codes

    def in_phase(self, name: str) -> Mask:
        """Requests sent in a phase, or in all of them."""
        if name == ALL:
            return np.ones(len(self.requests), dtype=bool)
        return np.asarray(self.phase_codes == PHASES.index(_phase(name)))

    def phase_window(self, name: str) -> tuple[float, float] | None:
        """Begin and end of a phase; None where it never came."""
        whole = self.whole.at
        match name:
            case "all":
                return 0.0, self.now
            case "baseline":
                return 0.0, self.now if self.fault_at is None else self.fault_at
            case "during" if self.fault_at is not None:
                return self.fault_at, self.now if whole is None else whole
            case "after" if whole is not None:
                return whole, self.now
        return None


class DirectPicture(Picture):
    """By the requests that went to replicas by their own addresses. Which Pods replace which, and when the service was
    whole again, is still the service's to say.

    Those sent before their replica was first Ready are in no phase, and so in no figure: until then nobody has said
    that it serves.
    """

    def __init__(self, service: Picture) -> None:
        super().__init__(service.observations, service.now)
        self.requests = service.observations.direct
        self.flight = service.observations.direct_flight
        self.service = service

    @cached_property
    def pairs(self) -> list[Pair]:
        return self.service.pairs

    @cached_property
    def whole(self) -> Whole:
        return self.service.whole

    @cached_property
    def early(self) -> Mask:
        """Those sent before their replica was first Ready."""
        early = np.zeros(len(self.requests), dtype=bool)
        for pod in self.pods.all:
            ready = pod.milestones.get("ready")
            early |= self.on(pod) & (self.requests.sent < (float("inf") if ready is None else ready.high))
        return early

    def in_phase(self, name: str) -> Mask:
        return np.asarray(super().in_phase(name) & ~self.early)


def _phase(name: str) -> PhaseName:
    for phase in PHASES:
        if phase == name:
            return phase
    raise ValueError(f"no such phase: {name}")


def _created(pod: PodState) -> float:
    moment = pod.created
    if moment is None:
        return float("-inf")
    return moment.high if moment.at is None else moment.at


def _created_after(pod: PodState, at: float) -> bool:
    """Whether the Pod was created after `at`: seen to be, or found after it and not known to be older."""
    moment: Moment | None = pod.created
    if moment is None or moment.high < at:
        return False
    return moment.at is None or moment.at >= at
