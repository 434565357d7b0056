"""Runs a probe alone for the command line, shows how it goes, and reports it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import click

from chaosrunner.cli.asked import asked, duration, expressions
from chaosrunner.cli.metrics import serving
from chaosrunner.cli.output import err, out, print_json
from chaosrunner.cli.progress import Progress
from chaosrunner.engine.alone import Alone, run_alone
from chaosrunner.reports.load import load_headline, load_sections
from chaosrunner.reports.terminal import render


def run(timelines: Path, output: str, record: bool, metrics: str | None, **given: Any) -> int:
    found = asked(given)
    alone = Alone(
        spec=found.spec,
        slo=found.slo,
        checks=expressions(given["checks"]),
        duration=duration(given, found.spec),
        requests=given["requests"],
        drain=given["drain"],
        playbook=found.playbook,
        parameters=found.parameters,
        sources=found.sources,
        hidden=found.hidden,
    )
    progress = Progress(err(), alone)
    with serving(metrics) as measured:
        follow = [progress.follow] + ([measured.follow] if measured else [])
        with progress.shown():
            ran = anyio.run(run_alone, alone, timelines if record else None, tuple(follow))
    if output == "json":
        print_json(ran.facts)
    else:
        render(out(), load_headline(ran.facts), load_sections(ran.facts, found.spec.url, alone.load, recorded=record))
    if ran.folder:
        click.echo(
            f"recording: {ran.folder}" if output == "json" else f"\nrecording: {ran.folder}", err=output == "json"
        )
    return ran.facts.exit_code
