"""How commands end that do not go well."""

from __future__ import annotations

import traceback

import click

from chaosrunner.errors import UserError

BUG = 70
"""Exit code of a bug in chaosrunner (EX_SOFTWARE of sysexits.h)."""


def fail(error: UserError) -> int:
    """Shows an error that the user can mend; returns its exit code."""
    click.echo(f"error: {error}", err=True)
    return error.exit_code


def user_error(group: BaseExceptionGroup[BaseException]) -> UserError | None:
    """The error for the user that a task group wrapped, where it wrapped nothing else."""
    errors, rest = group.split(UserError)
    if errors is None or rest is not None:
        return None
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, UserError)
    return first


def bug() -> int:
    traceback.print_exc()
    click.echo(
        "this is a bug in chaosrunner; what was recorded is kept, and `chaosrunner recover` undoes changes", err=True
    )
    return BUG
