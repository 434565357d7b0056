"""Commands as this project writes them: examples in every help, logging set up only for a command that runs."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from typing import Any, TextIO, cast

import click

SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Command(click.Command):
    """A command with examples, which are shown below its options."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**SETTINGS, **self.context_settings}
        self._examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [line.strip() for line in self._examples.strip().splitlines()]
        if lines:
            with formatter.section("Examples"):
                formatter.write("".join(f"{'':{formatter.current_indent}}{line}\n" for line in lines))

    def invoke(self, ctx: click.Context) -> Any:
        # Not before: a question for help is answered without the libraries that a run needs.
        from chaosrunner import logs

        settings = ctx.find_root().params
        logs.configure(level=settings["log_level"], json=settings["log_json"], stream=cast(TextIO, _StandardError()))
        return super().invoke(ctx)


class Group(click.Group):
    """A group that knows near names, and that ends quietly when nobody reads on (`| head`)."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**SETTINGS, **self.context_settings}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are needed, not by the alphabet."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = get_close_matches(name, self.list_commands(ctx), n=1)
            known = ", ".join(self.list_commands(ctx))
            hint = f"did you mean {near[0]}?" if near else f"known: {known}"
            ctx.fail(f"no such command: {name} ({hint})")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is still buffered goes nowhere, so that the interpreter has nothing to complain about at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return result


class Duration(click.ParamType[float]):
    """Seconds, from `500ms`, `30s`, `10m`, `1h30m` or a plain number of seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from chaosrunner.playbook.durations import parse_duration

        if not isinstance(value, str):
            return float(value)
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _StandardError:
    """Standard error as it is when something is written: the live display stands in for it while it is shown."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()
