"""What all findings have in common."""

from __future__ import annotations

from chaosrunner.analysis.facts import Finding, Severity
from chaosrunner.analysis.spans import evidence


def finding(code: str, severity: Severity, text: str, rows: list[int], advice: str | None = None) -> Finding:
    return Finding(code=code, severity=severity, text=text, evidence=evidence(rows), advice=advice)


def plural(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")
