"""Values of the metrics that expressions use, by the names of `chaosrunner.playbook.expressions.METRICS`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import numpy as np

from chaosrunner.analysis import aggregate, direct, outages, recovery
from chaosrunner.analysis.exposure import exposure, unplaced_across
from chaosrunner.analysis.facts import ALL, Estimate, Exposure, Milestone, Replacement, Span
from chaosrunner.analysis.folds.actions import Call
from chaosrunner.analysis.folds.pods import PodState
from chaosrunner.analysis.goodput import good_mask, good_share, goodput
from chaosrunner.analysis.picture import PODS, Picture
from chaosrunner.analysis.placement import UNPLACED, serving
from chaosrunner.analysis.requests import Floats, Mask
from chaosrunner.analysis.spans import evidence
from chaosrunner.playbook.expressions import Value

Side = Literal["point", "low", "high"]
"""Which value an uncertain metric takes: its estimate, or an end of what is possible (or, with confidence, of its
95 % interval)."""

Args = tuple[str, ...]


class MetricScope:
    """Values of metrics at one instant; None where a value is not known."""

    def __init__(
        self,
        picture: Picture,
        *,
        target: str | None = None,
        probe: str | None = None,
        side: Side = "point",
        confident: bool = False,
        judging: bool = False,
        known: dict[tuple[object, ...], Value] | None = None,
    ) -> None:
        """`judging` asks for values at the end of the run, which are not known where the recording has no end; else
        the values are those of this instant. `known` is a cache that scopes of one picture and one probe may share,
        where both judge or neither does."""
        self.picture = picture.of_probe(probe)
        self._target = target
        self._probe = probe
        self._side = side
        self._confident = confident
        self._cut = judging and not picture.observations.run.ended
        self._known = {} if known is None else known

    def value(self, name: str, args: Args, window: float | None) -> Value:
        """Value of a metric; raises KeyError for a name that is none."""
        key = (name, args, window, self._side if self._cut or name in UNCERTAIN else "point")
        if key not in self._known:
            found = self._measure(name, args, window)
            self._known[key] = self._to_come(name, found) if self._cut else found
        return self._known[key]

    def _to_come(self, name: str, found: Value) -> Value:
        """What a value so far says of the one at an end that nobody recorded: a state nothing, what was reached all,
        a count that it is no less, and a loss that it may be total."""
        if name in AT_THE_END:
            return None
        if name in _REACHED:
            return found or None
        if found is None or self._side != "high":
            return found
        return float("inf") if name in _GROWING else 1.0 if name == "loss_on_victim" else found

    def open(self, name: str) -> bool:
        """Whether the value of a metric is not decided because the recording has no end."""
        return self._cut and (name == "loss_on_victim" or name in AT_THE_END | _REACHED | _GROWING)

    def _measure(self, name: str, args: Args, window: float | None) -> Value:
        if name in _PERCENTILES:
            return self._percentile(_PERCENTILES[name], args)
        if name in _RECOVERY:
            return self._span(getattr(self._recovery, name))
        if name == "routing_delay":
            return self._span(direct.routing_delay(self.picture))
        if name in MILESTONES:
            return self._reached(MILESTONES[name])
        return _METRICS[name](self, args, window)

    # --- requests ---

    def _mask(self, args: Args, window: float | None = None, position: int = 0) -> Mask:
        requests = self.picture.requests
        mask = self.picture.in_phase(_phase(args, position))
        if self._probe is not None:
            mask = mask & requests.of_probe(self._probe)
        if window is not None:
            mask = mask & (requests.ended > self.picture.now - window) & (requests.ended <= self.picture.now)
        return np.asarray(mask)

    def _share(self, share: Estimate | None) -> Value:
        if share is None:
            return None
        if not self._confident or self._side == "point":
            return share.value
        return share.low if self._side == "low" else share.high

    def _success_rate(self, args: Args, window: float | None) -> Value:
        return self._share(aggregate.success_rate(self.picture.requests, self._mask(args, window)))

    def _incomplete_200(self, args: Args, window: float | None) -> Value:
        """Not known of no request: a count of 0 would say that none was lost."""
        requests, mask = self.picture.requests, self._mask(args)
        if not (requests.counted & mask).any():
            return None
        return int(np.count_nonzero(aggregate.incomplete_200(requests, mask)))

    def _requests(self, args: Args, window: float | None) -> Value:
        if self.picture.phase_window(_phase(args, 0)) is None:
            return None
        return int(np.count_nonzero(self.picture.requests.counted & self._mask(args)))

    def _outcome(self, args: Args, window: float | None) -> Value:
        """Not known of no request, like `incomplete_200`; outcomes that do not count are found all the same."""
        requests, mask = self.picture.requests, self._mask(args, None, 1)
        count = int(np.count_nonzero(requests.is_outcome(args[0]) & ~requests.once & mask))
        return count if count or (requests.counted & mask).any() else None

    def _latencies(self, args: Args) -> Floats:
        return aggregate.latency(self.picture.requests, args[0], self._mask(args, None, 1))

    def _percentile(self, percent: int, args: Args) -> float | None:
        return aggregate.nearest_rank(np.sort(self._latencies(args)), percent)

    def note(self, name: str, args: Args) -> str | None:
        """What the value of a percentile rests on; nothing of other metrics, nor of one that is not known."""
        n = len(self._latencies(args)) if name in _PERCENTILES else 0
        if not n:
            return None
        few = aggregate.too_few(n, _PERCENTILES[name])
        held = int(np.count_nonzero(self._held_back(args)))
        return (
            f"n = {n}"
            + (f": {few}" if few else "")
            + (f"; {held} came in lumps: this tells of the way there" if held else "")
        )

    def not_the_service(self, name: str, args: Args) -> str | None:
        """Why the value of a metric proves nothing of the service: the way there is found to hold streams back."""
        for probe in self.picture.buffered:
            if name in _PERCENTILES:
                times = args[:1]
            elif name in ("good_share", "goodput"):
                times = tuple(self.picture.context.probe(probe).slo.limits())
            else:
                return None
            for time in times:
                held = self._held_back((time, *args[1:])) & self.picture.requests.of_probe(probe)
                if count := int(np.count_nonzero(held)):
                    return f"{count} streams of {probe} came in lumps: {time} tells of the way there"
        return None

    def _held_back(self, args: Args) -> Mask:
        """Successes whose times between begin, chunks and tokens are not the model's, as they came in lumps."""
        picture = self.picture
        if args[0] == "e2e":
            return np.zeros(len(picture.requests), dtype=bool)
        return np.asarray(picture.delivery.held & picture.requests.success & self._mask(args, None, 1))

    def no_sample(self, name: str, args: Args, window: float | None) -> str | None:
        """Why a metric of requests has none to be of; None where it has some, and for other metrics."""
        if name not in OF_REQUESTS:
            return None
        position = 1 if name in _PERCENTILES or name == "outcome" else 0
        phase = _phase(args, position)
        if self.picture.phase_window(phase) is None:
            return f"phase {phase} never came"
        where = f" of probe {self._probe}" if self._probe is not None else ""
        where += f" in phase {phase}" if phase != ALL else ""
        counted = self.picture.requests.counted & self._mask(args, window, position)
        if not counted.any():
            return f"no request{where}" + (f" ended in the last {window:g} s" if window is not None else "")
        if name in _PERCENTILES and not len(self._latencies(args)):
            return f"no success{where} has a {args[0]}"
        return None

    def _goodput(self, args: Args, window: float | None) -> Value:
        mask = self._mask(())
        return goodput(self.picture, ALL, mask) if (self.picture.requests.counted & mask).any() else None

    def _good_share(self, args: Args, window: float | None) -> Value:
        return self._share(good_share(self.picture, self._mask(())))

    def _in_flight(self, args: Args, window: float | None) -> Value:
        flight = self.picture.flight.requests.values()
        flying = [f for f in flight if self._probe in (None, f.sent.probe)]
        if not args:
            return len(flying)
        target = None if self._target is None else self.picture.pods.by_uid.get(self._target)
        if target is None:
            return None
        return len([f for f in flying if serving(f, self.picture.pods, self.picture.context) is target])

    # --- exposure ---

    @cached_property
    def exposure(self) -> Exposure:
        return exposure(self.picture, self._probe)

    def _loss(self, args: Args, window: float | None) -> Value:
        found = self.exposure
        if not found.exposed or self._side == "point":
            return found.loss_on_victim
        if self._confident:
            return aggregate.wilson(found.lost, found.exposed)[0 if self._side == "low" else 1]
        return found.lower if self._side == "low" else found.upper

    def _exposed(self, args: Args, window: float | None) -> Value:
        if not self.picture.victims:
            return None
        return self.exposure.exposed + (self.exposure.unplaced if self._side == "high" else 0)

    def _unplaced(self, args: Args, window: float | None) -> Value:
        return self.exposure.unplaced if self.picture.victims else None

    # --- recovery ---

    @cached_property
    def replacements(self) -> list[Replacement]:
        return recovery.replacements(self.picture)

    @cached_property
    def _recovery(self) -> Any:
        return recovery.recovery(self.picture, self.replacements)

    def _span(self, span: Span) -> Value:
        if span.value is not None or self._side == "point":
            return span.value
        return span.low if self._side == "low" else span.high

    def _reached(self, name: str) -> Value:
        """Whether every replacement reached a milestone. Not reached is unknown while a watch gap may hide it."""
        if not self.picture.pairs:
            return None
        found: list[Milestone] = [getattr(r.milestones, name) for r in self.replacements]
        if len(found) == len(self.picture.pairs) and all(milestone.high is not None for milestone in found):
            return True
        placed = name in ("first_routed", "first_complete", "warm")
        if placed and len(self.picture.requests) and not (self.picture.placed != UNPLACED).any():
            return None
        hidden = self.picture.observations.watches.open(PODS) or (
            name == "endpoint_ready" and self.picture.ready_now is None
        )
        return None if hidden else False

    def _tokens(self, args: Args, window: float | None) -> Value:
        pods = self.picture.replacements
        if not pods or len(pods) != len(self.picture.pairs):
            return None
        counts = [recovery.tokens(self.picture, pod) for pod in pods]
        known = [count for count in counts if count is not None]
        return min(known) if len(known) == len(counts) else None

    def _replacements(self, args: Args, window: float | None) -> Value:
        return None if self.picture.observations.watches.open(PODS) else len(self.picture.replacements)

    # --- state of the workload ---

    def _ready_endpoints(self, args: Args, window: float | None) -> Value:
        return self.picture.ready_now

    def _pods_ready(self, args: Args, window: float | None) -> Value:
        if self.picture.observations.watches.open(PODS) or not self._workload:
            return None
        leaving = self.picture.victim_uids
        return len([pod for pod in self._workload if pod.ready and not pod.terminating and pod.uid not in leaving])

    @cached_property
    def _workload(self) -> list[PodState]:
        selector = self.picture.context.selector
        return [pod for pod in self.picture.pods.all if pod.last is not None and selector.matches(pod.labels)]

    def _endpoints_back(self, args: Args, window: float | None) -> Value:
        return self.picture.endpoints_back

    def _restarts(self, args: Args, window: float | None) -> Value:
        """Exact but where a Pod vanished in a gap: then only the least is known."""
        count = restarts(self.picture)
        hidden = self.picture.observations.watches.open(PODS) or any(
            pod.gone is not None and pod.gone.at is None for pod in self._workload
        )
        if count is None or not hidden:
            return count
        return {"point": None, "low": count, "high": float("inf")}[self._side]

    def _zero_ready_seconds(self, args: Args, window: float | None) -> Value:
        return self._span(outages.zero_ready_seconds(self.picture, outages.zero_ready(self.picture)))

    def _evictions(self, args: Args, window: float | None) -> Value:
        return len(self._evicted(args[0]))

    def _evicted(self, answer: str) -> list[Call]:
        calls = self.picture.observations.actions.calls
        return [call for call in calls if call.sent.action == "evict" and call.outcome == answer]

    def _alert(self, args: Args, window: float | None) -> Value:
        return self.picture.observations.alerts.state(args[0])

    def _alert_fired(self, args: Args, window: float | None) -> Value:
        return self.picture.observations.alerts.fired(args[0], self.picture.fault_at)

    # --- evidence ---

    def evidence(self, name: str, args: Args, window: float | None = None) -> list[int]:
        """Rows that show the value of a metric: for a rate or a count, those of the requests that spoil it; for a
        percentile, those of the requests that reach it."""
        picture, requests = self.picture, self.picture.requests
        match name:
            case "success_rate" | "requests":
                rows = requests.ids(requests.counted & ~requests.success & self._mask(args, window))
            case "good_share" | "goodput":
                rows = requests.ids(requests.counted & ~good_mask(picture) & self._mask(()))
            case "incomplete_200":
                rows = requests.ids(aggregate.incomplete_200(requests, self._mask(args)))
            case "outcome":
                rows = requests.ids(requests.is_outcome(args[0]) & ~requests.once & self._mask(args, None, 1))
            case _ if name in _PERCENTILES:
                least = self._percentile(_PERCENTILES[name], args)
                mask = requests.success & requests.counted & self._mask(args, None, 1)
                rows = [] if least is None else requests.ids(mask & (requests.latency(args[0]) >= least))
            case "unplaced":
                rows = requests.ids(unplaced_across(picture, self._probe))
            case "loss_on_victim" | "exposed":
                rows = [row for victim in self.exposure.victims for row in victim.evidence]
            case "routing_delay":
                replicas = direct.replacements(picture)
                rows = [row for r in replicas for row in (*r.served.evidence, *r.routed.evidence)]
            case _ if name in MILESTONES:
                stage = MILESTONES[name]
                rows = [row for r in self.replacements for row in getattr(r.milestones, stage).evidence]
            case "replacement.tokens":
                longest = [recovery.longest(picture, pod) for pod in picture.replacements]
                rows = [int(requests.id[position]) for position in longest if position is not None]
            case "replacements":
                rows = [row for r in self.replacements for row in r.milestones.created.evidence]
            case "pods_ready":
                rows = [pod.last.id for pod in self._workload if pod.last and pod.gone is None]
            case "zero_ready_seconds":
                rows = [row for window in outages.zero_ready(picture) for row in window.evidence]
            case "ready_endpoints" | "endpoints_back":
                rows = [point.row for point in picture.observations.endpoints.history[-1:]]
            case "evictions":
                rows = [row for call in self._evicted(args[0]) for row in call.rows]
            case "alert" | "alert_fired":
                rows = picture.observations.alerts.evidence(args[0])
            case "restarts":
                rows = [pod.last.id for pod in self._workload if pod.last and any(pod.restarts.values())]
            case _:
                rows = []
        return evidence(rows)


def restarts(picture: Picture) -> int | None:
    """Container restarts of the workload since the recording began; None where no Pod was ever seen."""
    seen = [pod for pod in picture.pods.all if pod.last is not None and picture.context.selector.matches(pod.labels)]
    return sum(sum(pod.restarts.values()) for pod in seen) if seen else None


def _phase(args: Args, position: int) -> str:
    """The phase that the arguments name, or the whole run."""
    return args[position] if len(args) > position else ALL


UNCERTAIN = frozenset(
    {
        "success_rate", "good_share", "loss_on_victim", "exposed", "time_to_serve", "time_to_ready",
        "time_to_first_stream", "routing_delay", "restarts", "zero_ready_seconds",
    }
)  # fmt: skip
"""Metrics whose value depends on the side."""

_PERCENTILES = {f"p{percent}": percent for percent in aggregate.PERCENTS}
MILESTONES = {
    "time_to_serve": "warm",
    "time_to_ready": "ready",
    "time_to_first_stream": "first_complete",
    "replacement.created": "created",
    "replacement.ready": "ready",
    "replacement.endpoint_ready": "endpoint_ready",
    "replacement.routed": "first_routed",
    "replacement.first_complete": "first_complete",
    "replacement.warm": "warm",
}
"""The milestone of a replacement that a metric is about."""
_RECOVERY = frozenset({"time_to_serve", "time_to_ready", "time_to_first_stream"})
OF_REQUESTS = frozenset(
    {"success_rate", "incomplete_200", "requests", "outcome", "goodput", "good_share", *_PERCENTILES}
)
"""Metrics of the requests in a sample, which may be empty."""
OF_TRAFFIC = OF_REQUESTS | {"in_flight"}
"""Metrics that need no cluster to be known."""
AT_THE_END = frozenset({"in_flight", "ready_endpoints", "pods_ready", "endpoints_back", "alert"})
"""States: what they were in the end, only the end tells."""
_REACHED = frozenset({"alert_fired", *MILESTONES}) - _RECOVERY
"""Once true, they stay so."""
_GROWING = frozenset(
    {
        "incomplete_200", "requests", "outcome", "exposed", "unplaced", "replacement.tokens", "replacements",
        "restarts", "zero_ready_seconds", "evictions",
    }
)  # fmt: skip
"""They never shrink."""
_METRICS: dict[str, Callable[[MetricScope, Args, float | None], Value]] = {
    "success_rate": MetricScope._success_rate,
    "incomplete_200": MetricScope._incomplete_200,
    "requests": MetricScope._requests,
    "outcome": MetricScope._outcome,
    "goodput": MetricScope._goodput,
    "good_share": MetricScope._good_share,
    "in_flight": MetricScope._in_flight,
    "loss_on_victim": MetricScope._loss,
    "exposed": MetricScope._exposed,
    "unplaced": MetricScope._unplaced,
    "replacement.tokens": MetricScope._tokens,
    "replacements": MetricScope._replacements,
    "ready_endpoints": MetricScope._ready_endpoints,
    "pods_ready": MetricScope._pods_ready,
    "endpoints_back": MetricScope._endpoints_back,
    "restarts": MetricScope._restarts,
    "zero_ready_seconds": MetricScope._zero_ready_seconds,
    "evictions": MetricScope._evictions,
    "alert": MetricScope._alert,
    "alert_fired": MetricScope._alert_fired,
}
