"""What follows from the rows seen so far: victims, replacements, phases. Computed when asked, from the folds.

A `Picture` is a view at one instant. The engine makes them while the run lasts, the analysis makes one at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chaosrunner.analysis import warm
from chaosrunner.analysis.delivery import Delivery, delivery
from chaosrunner.analysis.facts import ALL, PHASES, PhaseName
from chaosrunner.analysis.folds.actions import MOVES_PODS, Call
from chaosrunner.analysis.folds.endpoints import RESOURCE as ENDPOINTS
from chaosrunner.analysis.folds.pods import Moment, PodState
from chaosrunner.analysis.observations import Observations
from chaosrunner.analysis.placement import UNPLACED, place, serving
from chaosrunner.analysis.requests import Codes, Mask
from chaosrunner.analysis.warm import WarmRule, Warmth

PODS = "pods"


@dataclass(frozen=True)
class Victim:
    """A Pod that one of our calls hit."""

    call: Call
    pod: PodState | None
    """None: no row ever showed it."""
    at: float
    """When the call was sent; where a controller took the Pod on its account, when the Pod was first seen to leave."""
    leaves: bool = True
    """Whether it was taken away; else it stayed, and did not serve as it should."""

    @property
    def name(self) -> str:
        return self.call.sent.target.name if self.pod is None else self.pod.name

    @property
    def uid(self) -> str | None:
        return self.call.sent.target.uid if self.pod is None else self.pod.uid


@dataclass(frozen=True)
class Pair:
    """A victim that was taken away and the Pod that came in its place (None: not seen yet)."""

    victim: Victim
    replacement: PodState | None

    @property
    def call(self) -> Call:
        return self.victim.call


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
    def victims(self) -> list[Victim]:
        """Pods that our calls hit, each once, by time."""
        actions, found = self.observations.actions, dict[str, Victim]()
        for call in [*actions.disruptions, *(call for call in actions.calls if call.hits)]:
            uid = call.sent.target.uid
            pod = self.pods.by_uid.get(uid) if uid else call.pod
            left = pod is not None and pod.deletion is not None and pod.deletion.at >= call.at
            victim = Victim(call, pod, call.at, leaves=left or not call.hits)
            found.setdefault(victim.uid or victim.name, victim)
        for victim in self._moved(frozenset(found)):
            found.setdefault(str(victim.uid), victim)
        return sorted(found.values(), key=lambda victim: victim.at)

    def _moved(self, known: frozenset[str]) -> Iterator[Victim]:
        """Pods of the workload that somebody took away on account of a call of ours that was about no single Pod."""
        calls = [call for call in self.observations.actions.calls if call.sent.action in MOVES_PODS and call.change]
        for pod in self.pods.all if calls else ():
            leaving = pod.deletion
            if leaving is None or pod.uid in known or not self.context.selector.matches(pod.labels):
                continue
            earlier = [call for call in calls if call.at <= leaving.at]
            if earlier:
                yield Victim(earlier[-1], pod, leaving.at)

    @cached_property
    def taken(self) -> list[Victim]:
        """Victims that were taken away."""
        return [victim for victim in self.victims if victim.leaves]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Victims and replacements: Pods created after the fault under the same root controller, k-th to k-th.

        A replacement that left before it served (refused or thrown out by its node, rolled over), and was itself
        replaced, is none: its successor is.
        """
        free = [pod for pod in self.pods.all if self.context.selector.matches(pod.labels) and pod.last is not None]
        free.sort(key=lambda pod: (_created(pod), pod.uid))
        pairs = []
        for victim in self.taken:
            roots = victim.pod.roots if victim.pod is not None else frozenset()
            tried: list[PodState] = []
            for pod in free:
                if pod is not victim.pod and _created_after(pod, victim.call.at) and (not roots or roots & pod.roots):
                    tried.append(pod)
                    if not self._failed_early(pod):
                        break
            free = [pod for pod in free if pod not in tried]
            chosen = tried[-1] if tried else None
            pairs.append(Pair(victim, chosen))
        return pairs

    def _failed_early(self, pod: PodState) -> bool:
        """Whether a Pod left before it served (or, where nobody says who served, before it was Ready)."""
        left = pod.terminating or pod.gone is not None or pod.failed is not None
        if not left or any(victim.pod is pod for victim in self.taken):
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
        return frozenset(victim.uid for victim in self.taken if victim.uid is not None)

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
        """As many ready endpoints as before, every replacement warm, and nothing of a fault left that was seen."""
        if self.fault_at is None:
            return Whole(None, "no fault was sent", [])
        missing = [pair.victim.name for pair in self.pairs if pair.replacement is None]
        if missing:
            return Whole(None, f"no replacement of {', '.join(missing)}", [])
        begin, rows = self.fault_at, []
        for over, why, row in self._ends:
            if over is None:
                return Whole(None, why, [])
            if over >= begin:
                begin, rows = over, [row]
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

    @property
    def _ends(self) -> Iterator[tuple[float | None, str, int]]:
        """When each fault ended that left its Pod in place (None: it did not), in words where not, by which row."""
        for effects in self.observations.run.effects.values():
            if effects[0].entry is None:
                continue  # nothing that could be undone
            entry = self.observations.run.journal.get(effects[0].entry)
            undone = entry if entry is not None and entry.event in ("undone", "already_undone") else None
            healed = next((row for row in effects if row.event == "healed"), None)
            there = [row for row in effects if row.event in ("bitten", "unknown", "not_healed")]
            if effects[-1].event == "unknown" and undone is not None:
                yield undone.at, "undone", undone.id  # nobody could look
            elif there or healed:
                last = healed or there[-1]
                why = f"{last.fault} of {last.target.name} was not seen to end"
                yield (healed.at if healed else None), why, last.id
        for victim in self.victims:
            if victim.pod is None or victim.leaves:
                continue
            died = [death.moment.high for death in victim.pod.deaths if death.moment.high >= victim.at]
            if died:
                back = next((r for r in victim.pod.readiness if r.ready and r.moment.high >= died[-1]), None)
                why = f"{victim.name} was not Ready again after its container ended"
                yield (back.moment.high if back else None), why, back.moment.row if back else victim.call.sent.id

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
