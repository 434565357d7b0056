"""Every answer of `scripts.py` is the recorded one of a real Kubernetes 1.37, or differs as `differences.py` says."""

from __future__ import annotations

import json

import pytest

from tests.conformance.conftest import LABS
from tests.conformance.differences import DIFFERENCES, Difference, compare, matches, unlisted
from tests.conformance.episodes import AtOnce
from tests.conformance.record import FILE
from tests.conformance.scripts import SCRIPTS, Json, Script
from tests.labs import Lab

RECORDED: dict[str, dict[str, Json]] = json.loads(FILE.read_text())
Answers = dict[str, Json]


@pytest.fixture(scope="session")
def scripts(lab: Lab) -> AtOnce[Answers]:
    """All scripts, run once on a lab, a few side by side."""

    def answers(name: str) -> Answers:
        script = Script(lab)
        SCRIPTS[name](script)
        return script.answers

    return AtOnce(dict.fromkeys(SCRIPTS, answers), lambda name: name, workers=4)


def test_every_script_is_recorded() -> None:
    assert list(RECORDED) == list(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_asks_what_was_recorded(scripts: AtOnce[Answers], name: str) -> None:
    assert list(scripts[name]) == list(RECORDED[name])


@pytest.mark.parametrize(
    ("name", "label"),
    [pytest.param(name, label, id=f"{name}: {label}") for name in RECORDED for label in RECORDED[name]],
)
def test_answer(scripts: AtOnce[Answers], lab: Lab, name: str, label: str) -> None:
    real, seen = RECORDED[name][label], scripts[name][label]
    found = list(compare(real, seen)) if lab.name == "real" else unlisted(name, label, real, seen)
    assert found == []


LISTED = [
    pytest.param(entry, where, id=where) for entry in DIFFERENCES for where in entry.where if where.count(": ") == 2
]


@pytest.mark.parametrize("lab", LABS[:1], indirect=True)
@pytest.mark.parametrize(("entry", "where"), LISTED)
def test_a_listed_difference_still_holds(scripts: AtOnce[Answers], lab: Lab, entry: Difference, where: str) -> None:
    """On the embedded lab; the recording is the real one's side, and `test_answer` holds the real one to it."""
    met = [
        (name, label, path)
        for name in RECORDED
        for label in RECORDED[name].keys() & scripts[name].keys()
        for path, real, embedded in compare(RECORDED[name][label], scripts[name][label])
        if matches(entry, where, name, label, path, real, embedded)
    ]
    assert met, "the labs no longer differ here"
