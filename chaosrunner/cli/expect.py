"""`--expect`: a verdict that is wanted, and optionally the checks that must be the ones that failed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from chaosrunner.analysis.facts import Facts
from chaosrunner.errors import UserError

VERDICTS = ("passed", "failed", "inconclusive", "aborted", "rollback_failed")

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True)
class Expected:
    """What a run should come to. `checks` are names, or metrics, of exactly those checks that should fail."""

    verdict: str
    checks: frozenset[str] = field(default_factory=frozenset)

    def missed(self, facts: Facts) -> str | None:
        """Why the run is not as expected; None if it is."""
        if facts.verdict != self.verdict:
            return f"expected {self.verdict}, got {facts.verdict}: {facts.reason}"
        if not self.checks:
            return None
        failed = [check.check for check in facts.checks if check.verdict == "failed"]
        surprising = [check for check in failed if not self.checks & {check, *_WORD.findall(check)}]
        missing = sorted(name for name in self.checks if not any(name in {c, *_WORD.findall(c)} for c in failed))
        if surprising:
            return f"failed for another reason too: {'; '.join(surprising)}"
        if missing:
            return f"these checks were to fail and did not: {', '.join(missing)}"
        return None


def read(given: tuple[str, ...], drills: int) -> list[Expected | None]:
    """One expectation a drill: none, one for all, or one each in their order.

    Raises UserError for anything else.
    """
    if not given:
        return [None] * drills
    if len(given) not in (1, drills):
        raise UserError(f"--expect is given {len(given)} times for {drills} drills: give it once, or once for each")
    parsed = [_parse(text) for text in given]
    return [*parsed] if len(parsed) == drills else [parsed[0]] * drills


def _parse(text: str) -> Expected:
    verdict, _, checks = text.partition(":")
    if verdict not in VERDICTS:
        raise UserError(f"--expect {text}: the verdict is one of {', '.join(VERDICTS)}")
    names = frozenset(name.strip() for name in checks.split(",") if name.strip())
    if names and verdict != "failed":
        raise UserError(f"--expect {text}: only `failed` takes names of checks")
    return Expected(verdict, names)
