"""Commands on recordings: report, timeline, runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chaosrunner.cli.commands import Command, Duration, Group
from chaosrunner.cli.ending import fail
from chaosrunner.cli.options import (
    check_target,
    complete_recording,
    junit_option,
    output_option,
    timelines_option,
    write_target,
)
from chaosrunner.errors import UserError


@click.command(
    cls=Command,
    examples="""
    chaosrunner report
    chaosrunner report lab-evict-one-replica -o json | jq .lost_requests
    chaosrunner report timelines/chat/20261129-180000-ab12 -o markdown > report.md
    """,
)
@click.argument("recording", default="latest", shell_complete=complete_recording)
@timelines_option
@output_option("text", "json", "markdown")
@junit_option
def report(recording: str, timelines: Path, output: str, junit_file: Path | None) -> int:
    """Analyse a recording again and report it.

    RECORDING is a folder, a run id, a drill's name (its latest run), or `latest`. The exit code is 0 whatever the
    verdict was: this command reports, `run` judges.
    """
    from chaosrunner.analysis import AnalysisContext, analyse
    from chaosrunner.cli import guardians
    from chaosrunner.cli.output import out, print_json
    from chaosrunner.reports.junit import junit
    from chaosrunner.reports.load import load_headline, load_sections
    from chaosrunner.reports.markdown import markdown
    from chaosrunner.reports.sections import headline, sections
    from chaosrunner.reports.terminal import render
    from chaosrunner.timeline import reader

    check_target("--junit", junit_file)
    found = reader.resolve(timelines, recording)
    try:
        context = AnalysisContext.of(found.manifest)
    except ValueError as error:
        raise UserError(f"{found.folder}: the manifest's checks or selector cannot be read: {error}") from error
    facts = analyse(found, context)
    if (load := found.manifest.load) is not None:
        first, parts = load_headline(facts), load_sections(facts, found.manifest.url or "", load)
    else:
        first, parts = headline(facts), sections(facts)
    code = 0
    if junit_file:
        try:
            write_target("--junit", junit_file, junit([facts]))
        except UserError as error:  # no reason to keep the report back
            code = fail(error)
    if output == "json":
        print_json(facts)
    elif output == "markdown":
        click.echo(markdown(f"{facts.run.drill} {facts.run.id}", first, parts), nl=False)
    else:
        render(out(), first, parts)
        if (did := guardians.in_words(found.folder)) is not None:
            click.echo(f"\n{did}")
        click.echo(f"\nrecording: {found.folder}")
    return code


@click.command(
    cls=Command,
    examples="""
    chaosrunner timeline
    chaosrunner timeline latest --kind action,pod,endpoints,pdb
    chaosrunner timeline latest --from 10 --to 12.5 --pod model-5d9
    chaosrunner timeline latest --lost -o json
    """,
)
@click.argument("recording", default="latest", shell_complete=complete_recording)
@timelines_option
@output_option("text", "json")
@click.option(
    "--kind",
    "kinds",
    metavar="KIND,...",
    help="Only these kinds: run, step, action, journal, effect, clock, skew, prober, worker, replica, request_sent, "
    "request_headers, request, pod, endpoints, node, pdb, event, alerts, watch. Where absent, all but clock, skew and "
    "prober.",
)
@click.option("--from", "begin", type=float, metavar="SECOND", help="Only rows from this second of the recording on.")
@click.option("--to", "end", type=float, metavar="SECOND", help="Only rows up to this second of the recording.")
@click.option("--pod", metavar="TEXT", help="Only rows that name this Pod (part of its name).")
@click.option("--request", metavar="ID", help="Only rows of this request, like chat-17.")
@click.option("--grep", metavar="REGEX", help="Only rows whose text matches.")
@click.option("--lost", is_flag=True, help="Only the ends of requests that did not succeed.")
@click.option("--notable", "only_notable", is_flag=True, help="Only news, as a run shows it.")
@click.option("--wall", is_flag=True, help="Show wall time (UTC) instead of seconds since the recording began.")
def timeline(recording: str, timelines: Path, output: str, wall: bool, **filters: Any) -> None:
    """Print the merged rows of a recording, ordered by time.

    RECORDING is as with `report`. Each line gives the second of the recording, the kind, what was seen, and the row's
    id, to which reports refer.
    """
    from chaosrunner.cli.filters import line, selected
    from chaosrunner.cli.output import print_json_line
    from chaosrunner.timeline import reader

    found = reader.resolve(timelines, recording)
    for row in selected(found.rows(), **filters):
        if output == "json":
            print_json_line(row)
        else:
            click.echo(line(row, found.manifest.anchor if wall else None))


@click.group(cls=Group)
def runs() -> None:
    """List the recordings, or remove old ones."""


@runs.command(
    "list",
    examples="""
    chaosrunner runs list
    chaosrunner runs list -o json | jq '.[0].verdict'
    """,
)
@timelines_option
@output_option("text", "json")
def list_runs(timelines: Path, output: str) -> None:
    """List the recordings, newest first."""
    from chaosrunner.cli import shelf
    from chaosrunner.cli.output import out, print_json
    from chaosrunner.reports.terminal import print_table

    listed = shelf.listed(timelines)
    if output == "json":
        print_json(listed)
    elif listed:
        print_table(out(), shelf.table(listed))
    else:
        click.echo(f"no recordings below {timelines}", err=True)


@runs.command(
    examples="""
    chaosrunner runs prune --keep 10
    chaosrunner runs prune --older-than 30d --dry-run
    """,
)
@timelines_option
@output_option("text", "json")
@click.option("--keep", type=click.IntRange(0), metavar="N", help="Keep this many of each drill, the newest.")
@click.option("--older-than", type=Duration(), help="Remove only those that began longer ago than this.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune(timelines: Path, output: str, keep: int | None, older_than: float | None, dry_run: bool) -> None:
    """Remove old recordings. Runs that are alive, and those with something left to undo, are kept."""
    from chaosrunner.cli import shelf
    from chaosrunner.cli.output import print_json

    if keep is None and older_than is None:
        raise UserError("say what to remove: --keep N, --older-than AGE, or both")
    removed = [str(folder) for folder in shelf.prune(timelines, keep=keep, older_than=older_than, dry_run=dry_run)]
    if output == "json":
        print_json({"removed": removed, "dry_run": dry_run})
        return
    for name in removed:
        click.echo(f"{'would remove' if dry_run else 'removed'} {name}")
    if not removed:
        click.echo("nothing to remove", err=True)
