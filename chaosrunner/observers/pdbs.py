"""PodDisruptionBudgets as rows."""

from __future__ import annotations

from chaosrunner.cluster.resources import Object, meta
from chaosrunner.observers.values import conditions, identity, part, text
from chaosrunner.timeline import rows


def to_row(obj: Object, *, seen: rows.Seen, at: float, gap: int | None = None) -> rows.Pdb:
    """One budget, with the figures of its status; those that the controller has not computed are None."""
    spec, status = part(obj, "spec"), part(obj, "status")
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    return rows.Pdb(
        **identity(obj, seen, at, gap),
        allowed=status.get("disruptionsAllowed"),
        current=status.get("currentHealthy"),
        desired=status.get("desiredHealthy"),
        expected=status.get("expectedPods"),
        generation=meta(obj).get("generation"),
        observed_generation=status.get("observedGeneration"),
        min_available=None if least is None else str(least),
        max_unavailable=None if most is None else str(most),
        unhealthy_policy=spec.get("unhealthyPodEvictionPolicy"),
        selector=spec.get("selector"),
        disrupted_times={name: text(time) for name, time in part(status, "disruptedPods").items()},
        conditions=conditions(status),
    )
