"""Which texts of a drill nobody may read in its recording, its logs or its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chaosrunner.playbook.drill import Drill
from chaosrunner.playbook.secret import Secret
from chaosrunner.probes.spec import ProbeSpec


def credentials(drill: Drill, specs: Iterable[ProbeSpec], prometheus: Mapping[str, str]) -> list[str]:
    """The credentials as they were read for this run; `prometheus` are the headers sent there.

    Headers count where the drill holds them as credentials: other values are ordinary words, which must stay
    readable wherever else they occur.
    """
    found: list[str] = []
    for spec in specs:
        found += [spec.api_key] if spec.api_key else []
        found += _of(drill.endpoint.headers, spec.headers)
    if drill.prometheus is not None:
        found += _of(drill.prometheus.headers, prometheus)
    # A server that echoes `Bearer x` may leave out the scheme.
    return list(dict.fromkeys([*found, *(value.split()[-1] for value in found)]))


def _of(given: Mapping[str, str | Secret], sent: Mapping[str, str]) -> list[str]:
    return [value for name, value in sent.items() if isinstance(given.get(name), Secret)]
