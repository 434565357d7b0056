"""The same drill on both labs: one verdict, the same outcomes in each phase, the same things happening to each role."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from chaosrunner.analysis.comparison import Comparison, compare
from tests.analysis.sides import of_lab

KINDS = ("default", "graceful")

EXPLAINED = [
    # A kubelet's readiness probe goes on while its container shuts down, and says so.
    (r"victim 1", r"Event Unhealthy"),
    # A kubelet that may not write its node's cgroup says so at intervals; the drill does not depend on it.
    (r"node \d", r"Event FailedNodeAllocatableEnforcement"),
    # Whether the alert of the start-up was over before the recording began is a matter of when it began.
    (r"alert ReplicaMissing", r"over"),
]
"""Transitions that only one of the labs may have."""


def found(kind: str) -> Comparison:
    return compare(of_lab("embedded", kind), of_lab("real", kind))


@pytest.mark.parametrize(("kind", "verdict", "lost"), [("default", "failed", 2), ("graceful", "passed", 0)])
def test_verdict_and_outcomes_are_the_same(kind: str, verdict: str, lost: int) -> None:
    both = found(kind)
    assert both.same
    assert (both.a.lab, both.b.lab) == ("embedded", "real")
    assert (both.a.verdict, both.b.verdict) == (verdict, verdict)
    assert [(pair.a and pair.a.verdict) for pair in both.checks] == [
        (pair.b and pair.b.verdict) for pair in both.checks
    ]
    (loss,) = [share for share in both.shares if share.what == "lost on the victim"]
    assert [share and share.successes for share in (loss.a, loss.b)] == [lost, lost]
    assert not [share for share in both.shares if share.chance is False]


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_one_of_them_shows_is_explained(kind: str) -> None:
    for line in found(kind).timeline:
        if line.a is None or line.b is None:
            known = [one for one in EXPLAINED if re.fullmatch(one[0], line.role) and re.fullmatch(one[1], line.what)]
            assert known, (line.role, line.what)


def thing(role: str) -> str:
    """A Pod and its endpoint are one story; others, like two Pods, run beside each other."""
    return role.removeprefix("endpoint of ")


@pytest.mark.parametrize("kind", KINDS)
def test_no_object_goes_another_way(kind: str) -> None:
    turned = [item for item in found(kind).inversions if thing(item.earlier[0]) == thing(item.later[0])]
    assert turned == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_run_differs_in_the_lab_only(kind: str) -> None:
    both = found(kind)
    assert {item.what for item in both.settings} == {"lab", "container model image"}
    assert both.texts == []


@pytest.mark.parametrize("kind", KINDS)
def test_stages_come_in_the_same_order_and_take_longer_on_the_real_one(kind: str) -> None:
    stages = found(kind).stages
    for side in ("a", "b"):
        values = [getattr(stage, side).value for stage in stages if stage.stage not in ("first_complete", "warm")]
        assert all(earlier <= later for earlier, later in pairwise(values))
    assert all(stage.ratio is not None and stage.ratio > 1 for stage in stages)
