"""Errors that a user can act on, each with the exit code that the command line returns."""

from __future__ import annotations


class UserError(Exception):
    """Bad usage or a bad file: exit code 2. The text is shown as it is, so it says what and how to mend."""

    exit_code = 2


class Refused(UserError):
    """Refused before anything was changed (plan, lock, unreachable cluster): exit code 6."""

    exit_code = 6


class Locked(Refused):
    """Another run holds the target; `holder` is its id."""

    def __init__(self, message: str, holder: str) -> None:
        super().__init__(message)
        self.holder = holder
