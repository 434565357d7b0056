"""What is wrong with a file, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from chaosrunner.errors import UserError


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong. Lines and columns count from 1; line 0 means that no place in a file is to blame."""

    file: str
    line: int
    column: int
    message: str
    hint: str = ""
    """How to mend it."""
    severity: Literal["error", "warning"] = "error"
    """Warnings do not keep a file from being used."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        warning = "warning: " if self.severity == "warning" else ""
        return f"{place}: {warning}{self.message}" + (f" ({self.hint})" if self.hint else "")


class PlaybookError(UserError):
    """A playbook or drill that cannot be used; prints one problem a line, warnings included."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(set(problems))
        super().__init__("\n".join(map(str, self.problems)))
