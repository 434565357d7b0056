"""Commands on recordings: report, timeline, runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from chaosrunner.analysis import AnalysisContext, analyse
from chaosrunner.cli.options import timelines_option
from chaosrunner.cli.output import out, output_option, print_json, print_json_line, show_table
from chaosrunner.errors import UserError
from chaosrunner.journal import process
from chaosrunner.journal.journal import NAME as JOURNAL
from chaosrunner.journal.journal import open_entries
from chaosrunner.playbook.durations import parse_duration
from chaosrunner.reports import junit, markdown, render, sections
from chaosrunner.reports.lines import describe, kind, notable
from chaosrunner.reports.sections import STYLES, Cell, Table, headline
from chaosrunner.timeline import reader, rows
from chaosrunner.timeline.outcomes import Outcome

SAMPLES = {"clock", "skew", "prober"}
"""Kinds that are shown only where they are asked for: they come every second and with every call."""

KINDS = tuple(str(row.__struct_config__.tag) for row in rows.Row.__args__)


@click.command()
@click.argument("recording", default="latest")
@timelines_option
@output_option("text", "json", "markdown")
@click.option("--junit", "junit_file", type=click.Path(path_type=Path), help="Also write JUnit XML to this file.")
def report(recording: str, timelines: Path, output: str, junit_file: Path | None) -> None:
    """Analyse a recording again and report it.

    RECORDING is a folder, a run id, a drill's name (its latest run), or `latest`. The exit code is 0 whatever the
    verdict was: this command reports, `run` judges.

    \b
    chaosrunner report
    chaosrunner report lab-evict-one-replica -o json | jq .lost_requests
    chaosrunner report timelines/chat/20261129-180000-ab12 -o markdown > report.md
    """
    found = reader.resolve(timelines, recording)
    facts = analyse(found, AnalysisContext.of(found.manifest))
    if junit_file:
        junit_file.write_text(junit([facts]), encoding="utf-8")
    if output == "json":
        print_json(facts)
    elif output == "markdown":
        click.echo(markdown(f"{facts.run.drill} {facts.run.id}", headline(facts), sections(facts)), nl=False)
    else:
        render(out(), headline(facts), sections(facts))
        click.echo(f"\n{found.folder}")


@click.command()
@click.argument("recording", default="latest")
@timelines_option
@output_option("text", "json")
@click.option(
    "--kind",
    "kinds",
    help=f"Only these kinds, with commas: {', '.join(KINDS)}; all but clock, skew and prober where absent.",
)
@click.option("--from", "begin", type=float, help="Only rows from this second of the recording on.")
@click.option("--to", "end", type=float, help="Only rows up to this second of the recording.")
@click.option("--pod", help="Only rows that name this Pod (part of its name).")
@click.option("--request", help="Only rows of this request, like chat-17.")
@click.option("--grep", help="Only rows whose text matches this regular expression.")
@click.option("--lost", is_flag=True, help="Of the requests, only those that did not succeed.")
@click.option("--notable", "only_notable", is_flag=True, help="Only news: steps, calls, losses, watch gaps.")
@click.option("--wall", is_flag=True, help="Show wall time (UTC) instead of seconds since the recording began.")
def timeline(
    recording: str,
    timelines: Path,
    output: str,
    kinds: str | None,
    begin: float | None,
    end: float | None,
    pod: str | None,
    request: str | None,
    grep: str | None,
    lost: bool,
    only_notable: bool,
    wall: bool,
) -> None:
    """Print the merged rows of a recording, ordered by time.

    \b
    chaosrunner timeline latest --kind action,pod,endpoints,pdb
    chaosrunner timeline latest --from 10 --to 12.5 --pod model-5d9
    chaosrunner timeline latest --lost -o json
    """
    found = reader.resolve(timelines, recording)
    wanted = _kinds(kinds) or set(KINDS) - SAMPLES
    pattern = _pattern(grep)

    def keep(row: rows.Row) -> bool:
        if kind(row) not in wanted:
            return False
        if (begin is not None and row.at < begin) or (end is not None and row.at > end):
            return False
        if lost and not (isinstance(row, rows.Request) and row.outcome not in _SUCCESS):
            return False
        if only_notable and not notable(row):
            return False
        if request and getattr(row, "request", None) != request:
            return False
        text = describe(row)
        return not (pod and pod not in text) and not (pattern and not pattern.search(f"{kind(row)} {text}"))

    kept = sorted((row for row in found.rows() if keep(row)), key=lambda row: (row.at, row.id))
    for row in kept:
        if output == "json":
            print_json_line(row)
        else:
            at = f"{_utc(found.manifest.anchor + row.at)}" if wall else f"{row.at:11.3f}"
            click.echo(f"{at}  {kind(row):<16} {describe(row)}  #{row.id}")


_SUCCESS = {Outcome.COMPLETE, Outcome.COMPLETE_MISSING_DONE}


def _kinds(text: str | None) -> set[str]:
    given = {part.strip() for part in text.split(",")} if text else set()
    for name in given - set(KINDS):
        raise UserError(f"--kind: unknown kind {name!r}; known are {', '.join(KINDS)}")
    return given


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise UserError(f"--grep: not a regular expression: {error}") from None


def _utc(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%H:%M:%S.%f")[:-3] + "Z"


@click.group()
def runs() -> None:
    """List the recordings, or remove old ones."""


@runs.command("list")
@timelines_option
@output_option("text", "json")
def list_runs(timelines: Path, output: str) -> None:
    """List the recordings, newest first.

    \b
    chaosrunner runs list
    chaosrunner runs list -o json | jq '.[0].verdict'
    """
    listed = [_row(recording) for recording in reversed(list(_recordings(timelines)))]
    if output == "json":
        print_json(listed)
        return
    table = [
        (
            run["drill"],
            run["run"],
            run["began"],
            Cell(run["verdict"] or run["state"], STYLES.get(run["verdict"] or "", "warn")),
            str(run["requests"]),
            f"{run['bytes'] / 1e6:.1f} MB",
            str(run["to_undo"] or ""),
        )
        for run in listed
    ]
    if table:
        columns = ("drill", "run", "began (UTC)", "verdict", "requests", "size", "to undo")
        show_table(Table(columns, table, frozenset({4, 5, 6})))
    else:
        click.echo(f"no recordings below {timelines}", err=True)


@runs.command()
@timelines_option
@output_option("text", "json")
@click.option("--keep", type=click.IntRange(0), help="Keep this many of each drill, the newest.")
@click.option("--older-than", help="Remove only those that began longer ago than this, like 30d or 12h.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune(timelines: Path, output: str, keep: int | None, older_than: str | None, dry_run: bool) -> None:
    """Remove old recordings. Runs that are alive, and those with something left to undo, are kept.

    \b
    chaosrunner runs prune --keep 10
    chaosrunner runs prune --older-than 30d --dry-run
    """
    if keep is None and older_than is None:
        raise UserError("say what to remove: --keep N, --older-than AGE, or both")
    age = _age(older_than) if older_than else None
    now = datetime.now(UTC).timestamp()
    seen: dict[str, int] = {}
    removed = []
    for recording in reversed(list(_recordings(timelines))):
        manifest = recording.manifest
        seen[manifest.drill] = seen.get(manifest.drill, 0) + 1
        if keep is not None and seen[manifest.drill] <= keep:
            continue
        if age is not None and now - manifest.anchor <= age:
            continue
        if _alive(recording) or _to_undo(recording.folder):
            continue
        removed.append(str(recording.folder))
        if not dry_run:
            shutil.rmtree(recording.folder)
    if output == "json":
        print_json({"removed": removed, "dry_run": dry_run})
    else:
        for name in removed:
            click.echo(f"{'would remove' if dry_run else 'removed'} {name}")


def _age(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UserError(f"--older-than: {error}") from None


def _recordings(root: Path) -> Iterator[reader.Recording]:
    for folder in reader.find(root):
        try:
            yield reader.Recording.open(folder)
        except UserError as error:
            click.echo(f"skipped: {error}", err=True)


def _alive(recording: reader.Recording) -> bool:
    host = recording.manifest.host
    if not recording.crashed or host is None:
        return False
    owner = process.Process(pid=host.pid, started=host.started, host=host.hostname)
    return process.liveness(owner) != "dead"


def _to_undo(folder: Path) -> int:
    path = folder / JOURNAL
    return len(open_entries(path)) if path.exists() else 0


def _row(recording: reader.Recording) -> dict[str, Any]:
    manifest = recording.manifest
    state = manifest.state if manifest.state == "ended" else ("running" if _alive(recording) else "crashed")
    return {
        "drill": manifest.drill,
        "run": manifest.run,
        "began": datetime.fromtimestamp(manifest.anchor, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "state": state,
        "verdict": manifest.verdict,
        "requests": manifest.rows.get("request", 0),
        "bytes": sum(path.stat().st_size for path in recording.folder.iterdir() if path.is_file()),
        "to_undo": 0 if state == "running" else _to_undo(recording.folder),
        "folder": str(recording.folder),
    }
