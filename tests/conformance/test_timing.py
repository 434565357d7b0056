"""A kubelet's steps within bounds that follow from the API's own definitions, never tighter than a busy machine is.

A period is never shorter than it says but for the noise of one late probe (`SLACK`); it may be longer by what starting
processes side by side takes on two cores (`LATE`).
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.conformance.episodes import AtOnce
from tests.conformance.experiments import Found, all_experiments
from tests.labs import Lab

Finds = AtOnce[Found]
SLACK = 0.7
"""Seconds by which an interval may seem too short: the one at its beginning was noted late."""
LATE = 4.0
"""Seconds by which anything may come too late."""
BACK_OFF_LOOK = 15.0
"""Seconds after which a kubelet looks again at a Pod that waits (backOffPeriod of 10 s, jittered by half)."""
RELIST = 1.0
"""Seconds within which a kubelet looks at its containers again."""


@pytest.fixture(scope="session")
def found(lab: Lab) -> Finds:
    """All experiments, done once on a lab."""
    return all_experiments(lab)


def within(seconds: float, least: float, most: float) -> bool:
    return least - SLACK <= seconds <= most + LATE


def intervals(instants: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(instants)]


def test_a_startup_probe_comes_before_the_others_and_then_no_more(found: Finds) -> None:
    seen = found["periods"]
    assert seen["/started"][-1] - seen["start"][0] >= 2.5
    for other in ("/ready", "/live"):
        assert seen[other][0] >= seen["/started"][-1]


@pytest.mark.parametrize(("probe", "period"), [("/started", 1), ("/ready", 1), ("/live", 2)])
def test_a_probe_has_its_period(found: Finds, probe: str, period: float) -> None:
    gaps = intervals(found["periods"][probe])
    # What was noted late, and a server's first note always is, takes from the interval that follows.
    late = [LATE, *(max(0.0, gap - period) for gap in gaps)]
    assert all(within(gap, period - before, period) for gap, before in zip(gaps, late, strict=False))
    assert period * 0.8 <= sorted(gaps)[len(gaps) // 2] <= period * 2


def test_the_first_readiness_probe_follows_the_startup_probe_at_once(found: Finds) -> None:
    seen = found["periods"]
    assert within(seen["/ready"][0] - seen["/started"][-1], 0, 1)


def test_the_initial_delay_counts_from_the_container_s_start(found: Finds) -> None:
    seen = found["initial_delay"]
    assert within(seen["first"] - seen["started"], 4, 1 + 4 + 1)
    assert within(seen["ready"] - seen["first"], 0, 0)


def test_thresholds_count_probes_in_a_row(found: Finds) -> None:
    seen = found["thresholds"]

    def probes(start: float, end: float) -> int:
        return len([at for at in seen["probes"] if start <= at < end])

    begun = seen["start"]
    assert probes(begun, seen["ready"]) >= 2
    assert within(seen["ready"] - begun, 1, 3)
    assert probes(begun + 6, seen["unready"]) >= 3
    assert within(seen["unready"] - begun, 6 + 2, 6 + 3)
    assert probes(begun + 12, seen["again"]) >= 2
    assert within(seen["again"] - begun, 12 + 1, 12 + 2)


def test_the_endpoint_follows_the_pod(found: Finds) -> None:
    """Never before it (but for the order in which two watches are read), and within moments."""
    seen = found["endpoint"]
    assert len(seen["endpoint"]) == 3
    for pod, endpoint in zip(seen["pod"], seen["endpoint"], strict=True):
        assert within(endpoint - pod, 0, 0)


def test_a_failing_liveness_probe_ends_the_container_gracefully(found: Finds) -> None:
    seen = found["liveness"]
    assert len([at for at in seen["probes"] if seen["start"] + 4 <= at < seen["ended"]]) >= 2
    assert within(seen["ended"] - seen["start"], 4 + 1, 4 + 2)
    assert within(seen["restarted"] - seen["ended"], 1.5, 1.5 + RELIST)
    assert (seen["last"]["exitCode"], seen["last"]["reason"]) == (0, "Completed")
    assert seen["log"].splitlines()[-1].endswith('"SIGTERM"]')


def test_a_failing_startup_probe_ends_the_container(found: Finds) -> None:
    seen = found["startup"]
    assert [what for _, what in seen["lines"]] == ["start", "/started", "/started", "/started", "SIGTERM"]
    assert within(seen["lines"][-1][0] - seen["started"], 4 + 2, 1 + 4 + 3)


def test_pre_stop_comes_first_then_sigterm(found: Finds) -> None:
    seen = found["pre_stop"]
    assert within(seen["hook"] - seen["deleted"], 0, 0)
    assert within(seen["SIGTERM"] - seen["hook"], 2, 2)
    assert seen["SIGTERM"] - seen["hook"] >= 2
    assert within(seen["gone"] - seen["SIGTERM"], 3.5, 3.5 + RELIST)


def test_a_terminating_pod_is_asked_whether_it_is_ready_but_not_whether_it_lives(found: Finds) -> None:
    seen = found["pre_stop"]
    assert len([at for at in seen["ready"] if at > seen["SIGTERM"]]) >= 2
    assert [at for at in seen["live"] if at > seen["SIGTERM"]] == []


def test_sigterm_does_not_wait_for_pre_stop_beyond_the_grace_period(found: Finds) -> None:
    seen = found["pre_stop_beyond_grace"]
    # From the request on, which nobody notes late: never earlier. From the hook on: not much later.
    assert seen["SIGTERM"] - seen["deleted"] >= 3
    assert seen["SIGTERM"] - seen["hook"] <= 3 + LATE
    assert seen["SIGKILL"] - seen["deleted"] >= 3 + 2
    assert seen["SIGKILL"] - seen["hook"] <= 3 + 2 + LATE
    assert (seen["code"], seen["phase"]) == (137, "Failed")


def test_sigkill_comes_at_the_end_of_the_grace_period(found: Finds) -> None:
    seen = found["grace"]
    assert within(seen["SIGTERM"] - seen["deleted"], 0, 0)
    assert seen["SIGKILL"] - seen["deleted"] >= 4
    assert seen["SIGKILL"] - seen["SIGTERM"] <= 4 + LATE
    assert (seen["code"], seen["phase"]) == (137, "Failed")


def test_a_pod_goes_as_soon_as_its_containers_have_ended(found: Finds) -> None:
    seen = found["prompt_end"]
    assert within(seen["gone"] - seen["deleted"], 0.2, 0.2 + RELIST)
    assert (seen["code"], seen["phase"]) == (7, "Failed")


def test_the_first_restart_is_immediate_and_the_second_waits_ten_seconds(found: Finds) -> None:
    seen = found["back_off"]
    first, second = seen["restarts"]
    assert within(first - seen["ended"], 0, 0)
    assert within(second - first, 10, 10 + BACK_OFF_LOOK)
    # A kubelet may say CrashLoopBackOff at once, or only when it looks again, just before the next start.
    assert first <= seen["waiting"] <= second


def test_a_killed_container_is_noticed_after_about_a_second(found: Finds) -> None:
    seen = found["killed"]
    assert within(seen["noticed"] - seen["killed"], 0, 1 + RELIST)
    assert within(seen["restarted"] - seen["noticed"], 0, 0)
    assert within(seen["again"] - seen["restarted"], 0, 1)
