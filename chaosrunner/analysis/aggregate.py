"""Figures over many values: exact percentiles, shares with their intervals, tables of outcomes."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from chaosrunner.analysis.facts import ALL, PHASES, Estimate, Percentiles
from chaosrunner.analysis.requests import NONE, OUTCOMES, Codes, Floats, Mask, Requests

if TYPE_CHECKING:
    import pandas as pd

Z95 = 1.959963984540054
"""Quantile 0.975 of the standard normal distribution."""

PERCENTS = (50, 90, 95, 99)
LATENCIES = ("ttft", "ttft_answer", "tpot", "e2e", "chunk_gap")


def nearest_rank(ordered: Floats, percent: int) -> float | None:
    """The value at rank ceil(percent/100 * n) of ascending values; None of none. Never above the maximum."""
    n = len(ordered)
    return float(ordered[(percent * n + 99) // 100 - 1]) if n else None


def too_few(n: int, percent: int) -> str | None:
    """Why a percentile of n values is to be read with care: with n < 1/(1-p) it equals the maximum."""
    return f"equals max, n<{100 // (100 - percent)}" if 0 < n * (100 - percent) < 100 else None


def percentiles(values: Floats, straddling: int = 0) -> Percentiles:
    """p50, p90, p95, p99 and maximum; a percentile with n < 1/(1-p) values is flagged: it equals the maximum."""
    ordered = np.sort(values)
    n = len(ordered)
    p50, p90, p95, p99 = (nearest_rank(ordered, percent) for percent in PERCENTS)
    flags = {f"p{percent}": flag for percent in PERCENTS if (flag := too_few(n, percent))}
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


def frame(requests: Requests, phases: Codes, straddling: Mask) -> pd.DataFrame:
    """One row a request, probe-once apart.

    phase and outcome as categories; status (-1 without one); success; straddles (ended in a later phase than it was
    sent in); each latency in seconds (NaN where undefined; chunk_gap: the largest of the request).
    """
    import pandas as pd  # half a second of its own: only whoever analyses a run waits for it

    columns: dict[str, object] = {
        "phase": pd.Categorical.from_codes(phases, pd.Index(PHASES)),
        "outcome": pd.Categorical.from_codes(requests.outcome, pd.Index(OUTCOMES)),
        "status": requests.status,
        "success": requests.success,
        "straddles": straddling,
    }
    whole = pd.DataFrame(columns | {metric: requests.latency(metric) for metric in LATENCIES})
    return whole[~requests.once]


def by_phase(ended: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The whole run as `all`, and each phase that has requests."""
    return {ALL: ended} | {str(name): group for name, group in ended.groupby("phase", observed=True)}


def outcome_table(ended: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Phase or `all` -> outcome -> count, in the order of the outcome table; phases without requests are left out."""
    return {name: _counts(group["outcome"]) for name, group in by_phase(ended).items()}


def _counts(outcomes: pd.Series[Any]) -> dict[str, int]:
    counted = outcomes.value_counts(sort=False).sort_index()
    return {str(name): int(count) for name, count in counted.items() if count}


def status_table(ended: pd.DataFrame) -> dict[str, int]:
    """HTTP status, or `none` -> requests."""
    counted = ended["status"].value_counts(sort=False).sort_index()
    return {"none" if status == NONE else str(status): int(count) for status, count in counted.items()}


def latency(requests: Requests, metric: str, mask: Mask) -> Floats:
    """Single values of the masked successful requests: for chunk_gap every gap, else one a request."""
    chosen = requests.success & requests.counted & mask
    if metric == "chunk_gap":
        gaps, owners = requests.gaps()
        return np.asarray(gaps[chosen[owners]])
    values = requests.latency(metric)[chosen]
    return np.asarray(values[~np.isnan(values)])


def latency_table(requests: Requests, ended: pd.DataFrame) -> dict[str, dict[str, Percentiles]]:
    """Metric -> phase or `all` -> percentiles over successful requests; phases without requests are left out."""
    table: dict[str, dict[str, Percentiles]] = {metric: {} for metric in LATENCIES}
    gaps, owners = requests.gaps()
    for name, group in by_phase(ended).items():
        good = group[group["success"]]
        straddling = int(good["straddles"].sum())
        for metric in LATENCIES:
            if metric == "chunk_gap":  # every gap of a request counts, not only its largest
                mine = np.zeros(len(requests), dtype=bool)
                mine[good.index] = True
                values = gaps[mine[owners]]
            else:
                values = good[metric].dropna().to_numpy()
            table[metric][name] = percentiles(values, straddling)
    return table
