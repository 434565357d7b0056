"""JUnit XML: one suite a drill, one case a check, for CI systems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from chaosrunner.analysis.facts import Facts

_UNPRINTABLE = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(runs: Sequence[Facts]) -> str:
    """A check that failed is a `failure`, one without enough evidence `skipped`; a run that did not come to its
    checks (inconclusive, aborted, rollback failed) has a case of its own with an `error`."""
    root = ElementTree.Element("testsuites", name="chaosrunner")
    for facts in runs:
        _suite(root, facts)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: ElementTree.Element, facts: Facts) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(facts.run.drill))
    suite.set("time", f"{facts.run.end - facts.run.begin:.3f}")
    if facts.run.started_time:
        suite.set("timestamp", facts.run.started_time.removesuffix("Z"))
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("run", facts.run.id), ("verdict", facts.verdict), ("reason", facts.reason)):
        ElementTree.SubElement(properties, "property", name=name, value=_clean(value))
    for check in facts.checks:
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(facts.run.drill), name=_clean(check.check))
        if check.verdict == "failed":
            ElementTree.SubElement(case, "failure", message=_clean(check.text)).text = _evidence(check.evidence)
        elif check.verdict == "skipped":
            ElementTree.SubElement(case, "skipped", message=_clean(check.reason or "not enough evidence"))
        else:
            ElementTree.SubElement(case, "system-out").text = _clean(check.text)
    errors = facts.verdict in ("inconclusive", "aborted", "rollback_failed")
    if errors or not facts.checks:
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(facts.run.drill), name="run")
        if facts.verdict == "failed":
            ElementTree.SubElement(case, "failure", message=_clean(facts.reason))
        elif errors:
            ElementTree.SubElement(case, "error", message=_clean(facts.reason), type=facts.verdict)
    elif facts.verdict == "failed" and not any(check.verdict == "failed" for check in facts.checks):
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(facts.run.drill), name="run")
        ElementTree.SubElement(case, "failure", message=_clean(facts.reason))
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))


def _evidence(ids: Sequence[int]) -> str:
    return "rows " + ", ".join(map(str, ids)) if ids else ""


def _clean(text: str) -> str:
    """XML has no way to carry most control characters."""
    return _UNPRINTABLE.sub("\ufffd", text)
