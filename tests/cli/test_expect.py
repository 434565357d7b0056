"""--expect: verdicts, and checks that must be among those that failed."""

from __future__ import annotations

import pytest

from chaosrunner.cli.expect import Expected, read
from chaosrunner.errors import UserError
from chaosrunner.playbook import load_playbook
from tests.analysis.tape import Tape, context, facts
from tests.reports.story import eviction, quiet

EVICT = load_playbook("evict-one-replica")
DRAIN = load_playbook("drain-node")


def test_the_verdict() -> None:
    assert Expected("passed").missed(eviction(lost=0)) is None
    assert Expected("failed").missed(eviction()) is None
    missed = Expected("failed").missed(eviction(lost=0))
    assert missed == "expected failed, got passed: all 4 checks passed"
    assert str(Expected("passed").missed(quiet())).startswith("expected passed, got inconclusive: ")


def test_named_checks_must_be_among_those_that_failed() -> None:
    """A lost stream also lowers the success rate: one reason, three checks."""
    assert Expected("failed", ("loss_on_victim", "incomplete_200")).missed(eviction()) is None
    assert Expected("failed", ("loss_on_victim == 0",)).missed(eviction()) is None
    missed = str(Expected("failed", ("time_to_serve", "loss_on_victim")).missed(eviction()))
    assert missed.startswith("time_to_serve did not fail; what failed: loss_on_victim == 0; incomplete_200")


def test_a_check_with_a_name_of_its_own() -> None:
    tape = Tape()
    tape.request(1.0, 2.0, "cut_stream", status=200)
    tape.end(3.0)
    settings = context("incomplete_200 == 0")
    checks = tuple(type(check)(expression=check.expression, name="whole streams") for check in settings.checks)
    found = facts(tape, context("incomplete_200 == 0", checks=checks))
    assert Expected("failed", ("whole streams",)).missed(found) is None
    assert Expected("failed", ("incomplete_200",)).missed(found) is None


def test_one_for_all_or_one_for_each() -> None:
    assert read([], [EVICT, DRAIN]) == [None, None]
    assert read(["passed"], [EVICT, DRAIN]) == [Expected("passed")] * 2
    assert read(["failed:loss_on_victim, incomplete_200", "passed"], [EVICT, DRAIN]) == [
        Expected("failed", ("loss_on_victim", "incomplete_200")),
        Expected("passed"),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["passed"] * 3, "given 3 times for 2 drills"),
        (["pass"], "the verdict is one of passed, failed"),
        (["passed:loss_on_victim"], "only `failed` takes names"),
        (["failed:"], "name checks after the colon"),
        (["failed:success"], 'did you mean "success_rate"'),
        (["failed:replacement.tokens"], "playbook drain-node has no check replacement.tokens"),
    ],
)
def test_what_makes_no_sense(given: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", "\\(")):
        read(given, [EVICT, DRAIN])
