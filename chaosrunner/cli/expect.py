"""`--expect`: a verdict that is wanted, and optionally checks that must be among those that failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from chaosrunner.analysis.facts import Facts
from chaosrunner.errors import UserError
from chaosrunner.playbook import Playbook
from chaosrunner.playbook.expressions import suggest

VERDICTS = ("passed", "failed", "inconclusive", "aborted", "rollback_failed")

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True)
class Expected:
    """What a run should come to.

    `checks` are names of checks, or metrics in them. Each must have failed. Others may have failed too: a stream that
    is lost also lowers the success rate, and that is the same reason, not another one.
    """

    verdict: str
    checks: tuple[str, ...] = field(default_factory=tuple)

    def missed(self, facts: Facts) -> str | None:
        """Why the run is not as expected; None if it is."""
        if facts.verdict != self.verdict:
            return f"expected {self.verdict}, got {facts.verdict}: {facts.reason}"
        failed = {
            name for check in facts.checks if check.verdict == "failed" for name in _names(check.check, *check.values)
        }
        missing = [name for name in self.checks if name not in failed]
        return f"{', '.join(missing)} did not fail; what failed: {facts.reason}" if missing else None


def _names(title: str, *metrics: str) -> set[str]:
    """Everything by which a check can be named: its title, and the metrics in it."""
    return {title, *(word for text in (title, *metrics) for word in _WORD.findall(text))}


def read(given: Sequence[str], playbooks: Sequence[Playbook]) -> list[Expected | None]:
    """One expectation a drill: none, one for all, or one each in their order. `playbooks` are those of the drills.

    Raises UserError for anything else, and where a playbook has no such check.
    """
    if not given:
        return [None] * len(playbooks)
    if len(given) not in (1, len(playbooks)):
        raise UserError(
            f"--expect is given {len(given)} times for {len(playbooks)} drills: give it once, or once for each"
        )
    parsed = [_parse(text) for text in given]
    expected = parsed if len(parsed) == len(playbooks) else parsed * len(playbooks)
    for one, playbook in zip(expected, playbooks, strict=True):
        known = {name for check in playbook.checks for name in _names(check.title, str(check.check))}
        for name in one.checks:
            if name not in known:
                titles = "; ".join(check.title for check in playbook.checks) or "none"
                hint = suggest(name, sorted(known)) or f"its checks: {titles}"
                raise UserError(f"--expect: playbook {playbook.metadata.name} has no check {name} ({hint})")
    return [*expected]


def _parse(text: str) -> Expected:
    verdict, sign, checks = text.partition(":")
    if verdict not in VERDICTS:
        hint = suggest(verdict, VERDICTS)
        raise UserError(
            f"--expect {text}: the verdict is one of {', '.join(VERDICTS)}" + (f" ({hint})" if hint else "")
        )
    names = tuple(name.strip() for name in checks.split(",") if name.strip())
    if sign and verdict != "failed":
        raise UserError(f"--expect {text}: only `failed` takes names of checks")
    if sign and not names:
        raise UserError(f"--expect {text}: name checks after the colon, or leave it out")
    return Expected(verdict, names)
