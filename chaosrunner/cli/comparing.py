"""`compare`: two recordings beside each other."""

from __future__ import annotations

from pathlib import Path

import click

from chaosrunner.cli.commands import Command
from chaosrunner.cli.options import complete_recording, output_option, timelines_option
from chaosrunner.errors import UserError


@click.command(
    cls=Command,
    examples="""
    chaosrunner compare lab-evict-one-replica lab-evict-one-replica-graceful
    chaosrunner compare chat/20261129-180000-ab12 chat -o markdown > before-after.md
    chaosrunner compare reference/chat latest --exit-code
    """,
)
@click.argument("a", metavar="RECORDING", shell_complete=complete_recording)
@click.argument("b", metavar="RECORDING", shell_complete=complete_recording)
@timelines_option
@output_option("text", "json", "markdown")
@click.option("--exit-code", is_flag=True, help="Exit code 1 where verdicts or outcomes differ, as git diff has it.")
def compare(a: str, b: str, timelines: Path, output: str, exit_code: bool) -> int:
    """Put two recordings beside each other.

    Of before and after a change, say, or of one drill on two clusters. Each RECORDING is as with `report`; the first
    is called A, the second B. Timelines are aligned at the sending of
    the first fault, and Pods, endpoints and nodes are matched by their role in the drill, never by their names.

    The exit code is 0 whatever differs. With --exit-code it is 1 where the verdicts differ, or where in some phase
    one side has outcomes that the other has not; their numbers may differ.
    """
    from chaosrunner.analysis.comparison import compare as compared
    from chaosrunner.analysis.reading import Reading
    from chaosrunner.cli.output import out, print_json
    from chaosrunner.reports.comparison import headline, sections
    from chaosrunner.reports.markdown import markdown
    from chaosrunner.reports.terminal import render
    from chaosrunner.timeline import reader

    found = [reader.resolve(timelines, name) for name in (a, b)]
    sides = []
    for recording in found:
        try:
            sides.append(Reading(recording))
        except ValueError as error:
            raise UserError(f"{recording.folder}: cannot be read: {error}") from error
    left, right = sides
    comparison = compared(left, right)
    if output == "json":
        print_json(comparison)
    else:
        said = sections(comparison, left.facts, right.facts)
        if output == "markdown":
            title = f"{left.manifest.drill} {left.manifest.run} and {right.manifest.drill} {right.manifest.run}"
            click.echo(markdown(title, headline(comparison), said), nl=False)
        else:
            render(out(), headline(comparison), said)
    return 1 if exit_code and not comparison.same else 0
