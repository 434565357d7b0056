"""What stands between the probe and the service, and does things to streams that the fault did not do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from chaosrunner.analysis.facts import Finding, Severity
from chaosrunner.analysis.findings.base import finding, plural
from chaosrunner.analysis.picture import Picture
from chaosrunner.analysis.requests import Floats, Ints, Mask
from chaosrunner.timeline.outcomes import Outcome

SHORTEST_LIMIT = 5.0
"""Seconds below which equal times are no sign of a limit: a gateway notices a dead replica after one second."""
TOLERANCE = 0.5
"""Seconds within which times are the same limit's."""
APART = 1.0
"""Seconds between two ends above which they are not one event that hit several requests."""
SURE = 3
"""Cases from which on it is no coincidence."""
DEATH_SEEN = 3.0
"""Seconds by which the end of a request may lie from the death of its container and still be due to it."""

CUT = (Outcome.CUT_STREAM, Outcome.UNTERMINATED_STREAM, Outcome.NO_RESPONSE, Outcome.CONNECT_RESET)
GATEWAY_TIMEOUT = 504

IDLE_DEFAULTS = {
    60.0: "nginx (proxy_read_timeout) and AWS application load balancers",
    300.0: "Envoy (stream_idle_timeout)",
    350.0: "AWS network load balancers",
}
"""Well known defaults of idle timeouts, seconds. nginx.org/en/docs/http/ngx_http_proxy_module.html,
docs.aws.amazon.com/elasticloadbalancing, envoyproxy.io/docs/envoy/latest/faq/configuration/timeouts."""
TOTAL_DEFAULTS = {15.0: "Envoy (timeout of a route)", 30.0: "Google Cloud load balancers (backend service timeout)"}
"""The same of the time that a request may take in all. envoyproxy.io as above,
cloud.google.com/load-balancing/docs/https/request-distribution."""


def buffering(picture: Picture) -> Iterator[Finding]:
    """Streams that came in lumps although they took their time (dstackai/dstack#4269: a gateway held back 16 KB)."""
    requests = picture.requests
    told, held, lumps, took = picture.delivery
    for name in picture.buffered:
        mine = requests.of_probe(name)
        found, of = np.flatnonzero(held & mine), int(np.count_nonzero(told & mine))
        chunks, seconds = float(np.median(requests.content_chunks[found])), float(np.median(took[found]))
        text = (
            f"{len(found)} of {plural(of, 'stream')} of {name} came in lumps: {chunks:.0f} chunks in "
            f"{np.median(lumps[found]):.0f} over {seconds:.1f} s (medians); something on the way holds them back, or "
            "the server does not stream. TTFT and chunk gaps tell of that and not of the model; whether streams were "
            "complete is not touched by it"
        )
        severity: Severity = "warning" if len(found) >= SURE else "info"
        yield finding("buffered_path", severity, text, requests.ids(held & mine), _BUFFER_ADVICE)


def time_limits(picture: Picture) -> Iterator[Finding]:
    """Requests cut after the same silence (BerriAI/litellm#34819, #31865), or after the same time in all
    (voidmind-io/voidllm#224)."""
    requests = picture.requests
    cut = requests.status == GATEWAY_TIMEOUT
    for outcome in CUT:
        cut = cut | requests.is_outcome(outcome)
    # A limit of our own is none of the way's, and streams of a Pod that left or died end for that reason.
    cut &= requests.in_service & ~requests.by_our_limit & ~_of_the_dying(picture)
    began = requests.began()
    # Of an answer that says that time ran out, the silence was before it.
    silent_from = np.where(requests.status == GATEWAY_TIMEOUT, began, _last_sign(picture))
    silence = requests.ended - silent_from
    for group in _groups(silence, requests.ended, cut):
        yield _finding(picture, group, "idle_timeout", "of silence", IDLE_DEFAULTS, _IDLE_ADVICE)
    with np.errstate(invalid="ignore"):
        flowing = cut & (silence < SHORTEST_LIMIT)
    for group in _groups(requests.ended - began, requests.ended, flowing):
        yield _finding(picture, group, "time_limit", "in all, data flowing", TOTAL_DEFAULTS, _TOTAL_ADVICE)


_BUFFER_ADVICE = "turn response buffering off on the way (nginx: proxy_buffering off, or X-Accel-Buffering: no)"
_IDLE_ADVICE = "raise that limit, or let the server send something meanwhile, like a comment every few seconds"
_TOTAL_ADVICE = "raise that limit for streams, or switch it off: an idle timeout guards them better"


class _Group(NamedTuple):
    """Requests that were cut after the same time."""

    where: Ints
    seconds: Floats
    cases: int
    """How many ends there were that are not one event."""


def _groups(seconds: Floats, ended: Floats, mask: Mask) -> Iterator[_Group]:
    """The largest group of equal times, then the next of those left, while they show at least two cases."""
    with np.errstate(invalid="ignore"):
        left = np.flatnonzero(mask & (seconds >= SHORTEST_LIMIT))
    left = left[np.argsort(seconds[left], kind="stable")]
    while len(left) > 1:
        ordered = seconds[left]
        ends = np.searchsorted(ordered, ordered + TOLERANCE, side="right")
        first = int(np.argmax(ends - np.arange(len(left))))
        where = left[first : ends[first]]
        cases = 1 + int(np.count_nonzero(np.diff(np.sort(ended[where])) > APART))
        if len(where) < 2:
            return
        if cases > 1:
            yield _Group(where, seconds[where], cases)
        left = np.delete(left, slice(first, ends[first]))


def _finding(picture: Picture, group: _Group, code: str, what: str, defaults: dict[float, str], advice: str) -> Finding:
    requests, fault = picture.requests, picture.fault_at
    limit = float(np.median(group.seconds))
    text = (
        f"{plural(len(group.where), 'request')} cut after {limit:.1f} s {what} "
        f"({group.seconds.min():.2f} to {group.seconds.max():.2f} s)"
    )
    if fault is not None:
        early = int(np.count_nonzero(requests.sent[group.where] <= fault))
        text += f", {early} of them sent before the fault" if early else ""
    known = next((who for seconds, who in defaults.items() if abs(seconds - limit) <= TOLERANCE), None)
    text += f"; that is the default of {known}" if known else ""
    text += ": a limit on the way, not the fault's doing" if group.cases >= SURE else ": perhaps a limit on the way"
    mask = np.zeros(len(requests), dtype=bool)
    mask[group.where] = True
    return finding(code, "warning" if group.cases >= SURE else "info", text, requests.ids(mask), advice)


def _last_sign(picture: Picture) -> Floats:
    """When something last came from the other end; the begin where nothing did."""
    requests = picture.requests
    sign = requests.began()
    for later in (requests.headers, requests.last_token, requests.last_byte):
        sign = np.where(np.isnan(later), sign, later)
    return sign


def _of_the_dying(picture: Picture) -> Mask:
    """Requests that ended on a Pod which had been asked to leave, or whose container died just then."""
    requests = picture.requests
    dying = np.zeros(len(requests), dtype=bool)
    for pod in picture.pods.all:
        reasons = np.zeros(len(requests), dtype=bool)
        if pod.deletion is not None:
            reasons |= requests.ended >= pod.deletion.at
        for death in pod.deaths:
            low, high = death.moment.low - DEATH_SEEN, death.moment.high + DEATH_SEEN
            reasons |= (requests.ended >= low) & (requests.ended <= high)
        if reasons.any():
            dying |= reasons & picture.on(pod)
    return dying
