"""Figures over many values: exact percentiles, shares with their intervals, tables of outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from chaosrunner.analysis.facts import ALL, PHASES, Estimate, Percentiles
from chaosrunner.analysis.requests import OUTCOMES, Codes, Floats, Ints, Mask, Requests

Z95 = 1.959963984540054
"""Quantile 0.975 of the standard normal distribution."""

PERCENTS = (50, 90, 95, 99)
LATENCIES = ("ttft", "ttft_answer", "tpot", "e2e", "chunk_gap")


def nearest_rank(ordered: Floats, percent: int) -> float | None:
    """The value at rank ceil(percent/100 * n) of ascending values; None of none. Never above the maximum."""
    n = len(ordered)
    return float(ordered[(percent * n + 99) // 100 - 1]) if n else None


def percentiles(values: Floats, straddling: int = 0) -> Percentiles:
    """p50, p90, p95, p99 and maximum; a percentile with n < 1/(1-p) values is flagged: it equals the maximum."""
    ordered = np.sort(values)
    n = len(ordered)
    p50, p90, p95, p99 = (nearest_rank(ordered, percent) for percent in PERCENTS)
    flags = {
        f"p{percent}": f"equals max, n<{100 // (100 - percent)}"
        for percent in PERCENTS
        if n > 0 and n * (100 - percent) < 100
    }
    largest = float(ordered[-1]) if n else None
    return Percentiles(n=n, p50=p50, p90=p90, p95=p95, p99=p99, max=largest, straddling=straddling, flags=flags)


def wilson(successes: int, total: int) -> tuple[float, float]:
    """Bounds of the Wilson score interval at 95 %; total must be positive.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927) 209-212.
    """
    share = successes / total
    denominator = 1 + Z95**2 / total
    centre = (share + Z95**2 / (2 * total)) / denominator
    half = Z95 / denominator * sqrt(share * (1 - share) / total + Z95**2 / (4 * total**2))
    # At the ends the bound is 0 or 1 exactly; floating point need not say so.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == total else min(1.0, centre + half)
    return low, high


def estimate(successes: int, total: int) -> Estimate:
    """A share with its 95 % interval; with no loss, or no success, the rule of three beside it.

    J. A. Hanley, A. Lippman-Hand, If nothing goes wrong, is everything all right?, JAMA 249 (1983) 1743-1745.
    """
    if total == 0:
        return Estimate(value=None, successes=0, total=0, low=None, high=None, note=None)
    low, high = wilson(successes, total)
    note = None
    if successes in (0, total):
        what = "lost" if successes == total else "successful"
        note = f"none of {total} {what}: up to {min(1.0, 3 / total):.2g} still possible (rule of three, 95 %)"
    return Estimate(value=successes / total, successes=successes, total=total, low=low, high=high, note=note)


def success_rate(requests: Requests, mask: Mask) -> Estimate:
    """successes / (sent + not_sent - prober_fault - cancelled) among the masked requests, probe-once apart."""
    counted = requests.counted & mask
    return estimate(int(np.count_nonzero(requests.success & counted)), int(np.count_nonzero(counted)))


def incomplete_200(requests: Requests, mask: Mask) -> Mask:
    """HTTP status 200 and neither a success nor cancelled nor prober_fault (nor unfinished), probe-once apart."""
    return np.asarray(requests.counted & mask & (requests.status == 200) & ~requests.success)


def outcome_table(requests: Requests, phases: Codes) -> dict[str, dict[str, int]]:
    """Phase or `all` -> outcome -> count, in the order of the outcome table; probe-once requests apart."""
    keep = ~requests.once
    kinds = len(OUTCOMES)
    counts = np.bincount(phases[keep] * kinds + requests.outcome[keep], minlength=len(PHASES) * kinds)
    by_phase = counts.reshape(len(PHASES), kinds)
    table = {ALL: _named(by_phase.sum(axis=0))}
    return table | {name: _named(row) for name, row in zip(PHASES, by_phase, strict=True) if row.any()}


def _named(counts: Ints) -> dict[str, int]:
    return {name: int(count) for name, count in zip(OUTCOMES, counts, strict=True) if count}


def status_table(requests: Requests) -> dict[str, int]:
    """HTTP status, or `none` -> requests, probe-once apart."""
    values, counts = np.unique(requests.status[~requests.once], return_counts=True)
    return {"none" if status < 0 else str(status): int(n) for status, n in zip(values, counts, strict=True)}


def latency(requests: Requests, metric: str, mask: Mask) -> Floats:
    """Single values of the masked successful requests: for chunk_gap every gap, else one a request."""
    return _chosen(_values(requests, metric), requests.success & requests.counted & mask)


def latency_table(requests: Requests, masks: Mapping[str, Mask], straddling: Mask) -> dict[str, dict[str, Percentiles]]:
    """Metric -> phase or `all` -> percentiles; phases without requests are left out."""
    chosen = {name: requests.success & requests.counted & mask for name, mask in masks.items()}
    across = {name: int(np.count_nonzero(mask & straddling)) for name, mask in chosen.items()}
    table: dict[str, dict[str, Percentiles]] = {}
    for metric in LATENCIES:
        values = _values(requests, metric)
        table[metric] = {name: percentiles(_chosen(values, mask), across[name]) for name, mask in chosen.items()}
    return table


def _values(requests: Requests, metric: str) -> tuple[Floats, Codes | None]:
    """Values, and the positions of their requests where these are not simply all."""
    return requests.gaps() if metric == "chunk_gap" else (requests.latency(metric), None)


def _chosen(values: tuple[Floats, Codes | None], mask: Mask) -> Floats:
    numbers, owners = values
    chosen = numbers[mask if owners is None else mask[owners]]
    return np.asarray(chosen[~np.isnan(chosen)])
