"""Loss on the victim: of the streams that were in flight on it when the fault was sent, which were lost."""

from __future__ import annotations

import numpy as np

from chaosrunner.analysis.facts import Exposure, VictimExposure
from chaosrunner.analysis.picture import Picture, Victim
from chaosrunner.analysis.requests import Mask
from chaosrunner.analysis.spans import evidence


def exposure(picture: Picture, probe: str | None = None) -> Exposure:
    """With T = fault sent: exposed = requests sent <= T < end, served by the victim; loss = exposed and not a success
    / exposed. Unplaced requests across T bound it: see `bounds`. With `probe`, only its requests count."""
    mine = _of_probe(picture, probe)
    victims = [_victim(picture, victim, mine) for victim in picture.victims]
    across = unplaced_across(picture, probe)
    exposed, lost = sum(victim.exposed for victim in victims), sum(victim.lost for victim in victims)
    lower, upper = bounds(exposed, lost, *_split(picture, across))
    return Exposure(
        exposed=exposed,
        lost=lost,
        loss_on_victim=lost / exposed if exposed else None,
        lower=lower,
        upper=upper,
        unplaced=int(np.count_nonzero(across)),
        unplaced_total=int(np.count_nonzero(picture.unplaced & mine)),
        victims=victims,
    )


def unplaced_across(picture: Picture, probe: str | None = None) -> Mask:
    """Requests across any of the faults whose Pod is not known."""
    across = np.zeros(len(picture.requests), dtype=bool)
    for victim in picture.victims:
        across |= _flying(picture, victim) & picture.unplaced
    return across & _of_probe(picture, probe)


def _of_probe(picture: Picture, probe: str | None) -> Mask:
    return np.ones(len(picture.requests), dtype=bool) if probe is None else picture.requests.of_probe(probe)


def _flying(picture: Picture, victim: Victim) -> Mask:
    requests = picture.requests
    return np.asarray(requests.in_service & (requests.sent <= victim.at) & (requests.ended > victim.at))


def bounds(exposed: int, lost: int, unplaced_good: int, unplaced_lost: int) -> tuple[float | None, float | None]:
    """Least and largest loss that unplaced requests leave possible: at least if all that succeeded, and none that
    was lost, were on the victim; at most the other way round. None where nothing was exposed for certain."""
    if not exposed:
        return None, None
    return lost / (exposed + unplaced_good), (lost + unplaced_lost) / (exposed + unplaced_lost)


def _split(picture: Picture, mask: Mask) -> tuple[int, int]:
    good = int(np.count_nonzero(mask & picture.requests.success))
    return good, int(np.count_nonzero(mask)) - good


def _victim(picture: Picture, victim: Victim, mine: Mask) -> VictimExposure:
    requests, call, pod = picture.requests, victim.call, victim.pod
    flying = mine & _flying(picture, victim)
    unplaced = flying & picture.unplaced
    on = np.zeros(len(requests), dtype=bool) if pod is None else picture.on(pod)
    exposed = flying & on
    lost = exposed & ~requests.success
    late = mine & on & requests.in_service & (requests.sent > victim.at)
    count, losses = int(np.count_nonzero(exposed)), int(np.count_nonzero(lost))
    lower, upper = bounds(count, losses, *_split(picture, unplaced))
    return VictimExposure(
        pod=victim.name,
        uid=victim.uid,
        action=call.sent.id,
        fault_at=victim.at,
        exposed=count,
        lost=losses,
        loss=losses / count if count else None,
        lower=lower,
        upper=upper,
        unplaced=int(np.count_nonzero(unplaced)),
        routed_after=int(np.count_nonzero(late)),
        routed_after_lost=int(np.count_nonzero(late & ~requests.success)),
        last_routed=float(requests.sent[late].max()) if late.any() else None,
        requests=requests.text("request", requests.positions(exposed)),
        evidence=evidence([*call.rows, *requests.ids(exposed)]),
    )
