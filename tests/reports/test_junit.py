"""JUnit XML, held against the shape that CI systems read."""

from __future__ import annotations

from xml.etree import ElementTree

from chaosrunner.reports.junit import junit
from chaosrunner.timeline import rows
from tests.analysis.tape import Tape, context, facts
from tests.reports.story import eviction, quiet

ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"classname", "name", "time"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
    "system-out": set(),
}
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase"},
    "properties": {"property"},
    "testcase": {"failure", "error", "skipped", "system-out"},
}
"""Of the schema that Jenkins' xUnit plugin publishes (junit-10.xsd), what we use."""


def parsed(document: str) -> ElementTree.Element:
    root = ElementTree.fromstring(document)
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.attrib) <= ATTRIBUTES[element.tag], element.tag
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set()), element.tag
    for suite in [root, *root]:
        cases = suite.findall(".//testcase")
        assert suite.get("tests") == str(len(cases))
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert suite.get(name) == str(sum(case.find(tag) is not None for case in cases))
    return root


def results(root: ElementTree.Element) -> dict[str, str]:
    """Case -> passed, failure, error, skipped."""
    tags = ("failure", "error", "skipped")
    return {
        str(case.get("name")): next((tag for tag in tags if case.find(tag) is not None), "passed")
        for case in root.iter("testcase")
    }


def test_checks_are_cases() -> None:
    root = parsed(junit([eviction()]))
    assert results(root) == {
        "loss_on_victim == 0": "failure",
        "incomplete_200 == 0": "failure",
        "success_rate >= 99.9%": "failure",
        "time_to_serve <= 60s": "passed",
    }
    failure = root.find(".//failure")
    assert failure is not None
    assert "(2 of 2)" in str(failure.get("message"))
    assert str(failure.text).startswith("rows ")
    suite = root[0]
    assert (suite.get("name"), suite.get("time"), suite.get("timestamp")) == (
        "chat-evict", "29.000", "2026-11-29T17:00:00",
    )  # fmt: skip


def test_a_check_without_evidence_is_skipped_and_the_run_an_error() -> None:
    found = results(parsed(junit([quiet()])))
    assert found["loss_on_victim == 0"] == "skipped"
    assert found["run"] == "error"


def test_a_step_that_failed_fails_the_run() -> None:
    tape = Tape()
    tape.request(1.0, 2.0)
    tape.add(rows.Step(at=3.0, index=0, step="wait", name="wait", event="started"))
    tape.add(rows.Step(at=9.0, index=0, step="wait", name="wait", event="ended", result="failed", reason="too late"))
    tape.end(10.0)
    found = facts(tape, context("incomplete_200 == 0"))
    assert results(parsed(junit([found]))) == {"incomplete_200 == 0": "passed", "run": "failure"}


def test_a_run_without_checks_is_one_case() -> None:
    tape = Tape()
    tape.request(1.0, 2.0)
    tape.end(3.0)
    assert results(parsed(junit([facts(tape)]))) == {"run": "passed"}


def test_a_drill_that_was_not_run_is_an_error() -> None:
    root = parsed(junit([eviction(lost=0)], {"other": 'refused:\x00 <no> "rights" & such'}))
    assert [suite.get("name") for suite in root] == ["chat-evict", "other"]
    error = root[1].find("testcase/error")
    assert error is not None
    assert error.get("message") == 'refused:\ufffd <no> "rights" & such'
