"""Streams in flight: on which Pod, before they have ended."""

from __future__ import annotations

from typing import Any

import pytest

from chaosrunner.analysis import ProbeContext
from tests.analysis.tape import Tape, context, facts, live


@pytest.mark.parametrize(
    ("remote", "pod_header", "places"),
    [
        ("10.0.0.1:8000", None, True),
        # The probe reads a header, and this response has none: a proxy answered, or an old version of the server.
        ("10.0.0.1:8000", "x-pod", False),
        # A gateway's address is no Pod's.
        ("10.9.9.9:80", None, False),
    ],
)
def test_a_peer_address_places_streams_in_flight_as_it_places_ended_ones(
    remote: str, pod_header: str | None, places: bool
) -> None:
    settings = context(probes=(ProbeContext(name="chat", pod_header=pod_header),))
    tape = Tape()
    tape.pod(0.0, "a", "LISTED", ready=True, ip="10.0.0.1")
    tape.pod(0.0, "b", "LISTED", ready=True, ip="10.0.0.2")
    # The address goes to a successor while the stream is still read: the stream was a's.
    tape.pod(7.0, "a", "DELETED", ip="10.0.0.1")
    tape.pod(8.0, "c", "ADDED", ready=True, ip="10.0.0.1")
    tape.request(5.0, 9.0, headers=5.1, remote=remote)
    tape.evict(6.0, "a")
    tape.end(20.0)
    asked: dict[float, Any] = {}
    analysis = live([], settings)
    for row in tape.rows:
        analysis.feed(row)
        asked[row.at] = analysis.scope("u-a", now=row.at).value("in_flight", ("target",), None)
        if row.at == 8.0:
            assert analysis.in_flight_by_pod() == ({"u-a": 1} if places else {})
    assert (asked[5.0], asked[5.1], asked[8.0], asked[9.0]) == ((0, 1, 1, 0) if places else (0, 0, 0, 0))
    found = facts(tape, settings)
    assert (found.exposure.exposed, found.exposure.unplaced) == ((1, 0) if places else (0, 1))
