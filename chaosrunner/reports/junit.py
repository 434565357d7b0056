"""JUnit XML: one suite a drill, one case a check, for CI systems."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from chaosrunner.analysis.facts import CheckResult, Facts

_UNPRINTABLE = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}
"""Attribute of a suite -> element that it counts."""


def junit(runs: Sequence[Facts], not_run: Mapping[str, str] | None = None) -> str:
    """A check that failed is a `failure`, one without enough evidence `skipped`.

    What no check tells is told by a case `run`: an `error` where the run came to no judgement (inconclusive, aborted,
    rollback failed), a `failure` where something else than a check failed it. Drills that were not run at all
    (`not_run`: name -> why) have such a case only, so that a CI system never takes their absence for success.
    """
    root = ElementTree.Element("testsuites", name="chaosrunner")
    for facts in runs:
        _count(_suite(root, facts))
    for drill, why in (not_run or {}).items():
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(drill), time="0")
        _complain(_case(suite, drill, "run"), "error", why, "not_run")
        _count(suite)
    for name in ("tests", *COUNTS):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: ElementTree.Element, facts: Facts) -> ElementTree.Element:
    drill = facts.run.drill
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(drill))
    suite.set("time", f"{facts.run.end - facts.run.begin:.3f}")
    if facts.run.started_time:
        suite.set("timestamp", facts.run.started_time.partition(".")[0].removesuffix("Z"))
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("run", facts.run.id), ("verdict", facts.verdict), ("reason", facts.reason)):
        ElementTree.SubElement(properties, "property", name=name, value=_clean(value))
    for check in facts.checks:
        _check(_case(suite, drill, check.check), check)
    told = any(check.verdict == "failed" for check in facts.checks)
    if facts.verdict in ("aborted", "rollback_failed", "inconclusive"):
        _complain(_case(suite, drill, "run"), "error", facts.reason, facts.verdict)
    elif facts.verdict == "failed" and not told:
        _complain(_case(suite, drill, "run"), "failure", facts.reason, facts.verdict)
    elif not facts.checks:
        _case(suite, drill, "run")
    return suite


def _check(case: ElementTree.Element, check: CheckResult) -> None:
    if check.verdict == "failed":
        rows = f"rows {', '.join(map(str, check.evidence))}" if check.evidence else ""
        _complain(case, "failure", check.text, "check").text = rows
    elif check.verdict == "skipped":
        ElementTree.SubElement(case, "skipped", message=_clean(check.reason or "not enough evidence"))
    else:
        ElementTree.SubElement(case, "system-out").text = _clean(check.text)


def _case(suite: ElementTree.Element, drill: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_clean(drill), name=_clean(name), time="0")


def _complain(case: ElementTree.Element, tag: str, message: str, kind: str) -> ElementTree.Element:
    return ElementTree.SubElement(case, tag, message=_clean(message), type=kind)


def _count(suite: ElementTree.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for name, tag in COUNTS.items():
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))


def _clean(text: str) -> str:
    """XML has no way to carry most control characters."""
    return _UNPRINTABLE.sub("\ufffd", text)
