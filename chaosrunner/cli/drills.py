"""Commands on drills: plan, run, rehearse."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click

from chaosrunner.analysis.facts import Facts
from chaosrunner.cli import expect as expectations
from chaosrunner.cli import lab_process
from chaosrunner.cli.display import Display
from chaosrunner.cli.expect import Expected
from chaosrunner.cli.options import (
    cluster_options,
    parameters_option,
    read_parameters,
    read_timeout,
    timelines_option,
)
from chaosrunner.cli.output import err, out, output_option, print_json
from chaosrunner.cli.select import chosen
from chaosrunner.cluster import ClusterConfig, Unreachable, connect
from chaosrunner.engine import Finished, Options, run_drill
from chaosrunner.errors import Refused, UserError
from chaosrunner.plan.plan import Plan, make_plan
from chaosrunner.playbook import BoundDrill, load_drill
from chaosrunner.reports import junit, render, sections, side_by_side
from chaosrunner.reports.plan import plan_headline, plan_sections
from chaosrunner.reports.sections import headline
from chaosrunner.timeline.clock import Clock

PRECEDENCE = (5, 4, 6, 3, 1)
"""Which exit code wins over several drills; 0 if there is none of these."""


@click.command()
@click.argument("drill")
@parameters_option
@cluster_options
@output_option("text", "json")
def plan(
    drill: str,
    parameters: tuple[str, ...],
    output: str,
    **flags: Any,
) -> None:
    """Tell what a drill would do; change nothing.

    Shows what would be touched, in which order, what each eviction would answer, and what is missing. Sends reads,
    access reviews and evictions with dryRun=All, nothing else. Exit code 6 if `run` would refuse.

    \b
    chaosrunner plan drills/chat.yaml
    chaosrunner plan drills/chat.yaml -p concurrency=8 -o json | jq .problems
    """
    bound = load_drill(drill, read_parameters(parameters))
    bound.check_environment(flags["context"])
    bound, config = _aimed(bound, flags)
    made = anyio.run(_plan, bound, config)
    if output == "json":
        print_json(made)
    else:
        render(out(), plan_headline(made), plan_sections(made))
    if made.refused:
        raise click.exceptions.Exit(Refused.exit_code)


async def _plan(bound: BoundDrill, config: ClusterConfig) -> Plan:
    try:
        async with connect(config, Clock()) as cluster:
            return await make_plan(bound, cluster)
    except Unreachable as error:
        raise Refused(f"the cluster cannot be reached: {error}") from error


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options: tuple[Callable[..., Any], ...] = (
        output_option("text", "json"),
        click.option("--stop-file", type=click.Path(path_type=Path), help="Abort when this file appears."),
        click.option("--junit", "junit_file", type=click.Path(path_type=Path), help="Write JUnit XML to this file."),
        click.option(
            "--expect",
            multiple=True,
            metavar="VERDICT",
            help="Verdict that means exit code 0; any other means 1. `failed:NAME,NAME` also names the checks that "
            "must be the ones that fail. Give it once, or once for each drill.",
        ),
        click.option("-x", "--exitfirst", is_flag=True, help="Stop after the first drill that is not as wanted."),
        click.option("-m", "by_tag", metavar="TAGS", help="Only drills with these tags: `smoke and not slow`."),
        click.option("-k", "by_name", metavar="NAMES", help="Only drills whose names match: `evict or drain`."),
        timelines_option,
        parameters_option,
    )
    for option in options:
        command = option(command)
    return command


@dataclass(frozen=True)
class _Wanted:
    """The options of `_run_options`."""

    bounds: list[BoundDrill]
    expected: list[Expected | None]
    timelines: Path
    exitfirst: bool
    junit_file: Path | None
    stop_file: Path | None
    output: str


def _wanted(
    drills: tuple[str, ...],
    parameters: tuple[str, ...],
    timelines: Path,
    by_name: str | None,
    by_tag: str | None,
    exitfirst: bool,
    expect: tuple[str, ...],
    junit_file: Path | None,
    stop_file: Path | None,
    output: str,
) -> _Wanted:
    if junit_file and not junit_file.resolve().parent.is_dir():
        raise UserError(f"--junit {junit_file}: there is no such folder")
    values = read_parameters(parameters)
    loaded = [load_drill(path, values) for path in _files(drills)]
    bounds = [
        bound
        for bound in loaded
        if chosen(
            bound.drill.metadata.name, [*bound.drill.metadata.tags, *bound.playbook.metadata.tags], by_name, by_tag
        )
    ]
    if not bounds:
        raise UserError(f"no drill is left of {len(loaded)}: {' '.join(drills)}")
    for bound in bounds:
        for problem in bound.warnings:
            click.echo(f"warning: {problem}", err=True)
    return _Wanted(bounds, expectations.read(expect, len(bounds)), timelines, exitfirst, junit_file, stop_file, output)


def _files(given: tuple[str, ...]) -> list[str]:
    """Drills by path or name; a folder stands for the drills in it."""
    files: list[str] = []
    for name in given:
        folder = Path(name)
        if folder.is_dir():
            inside = sorted(str(path) for path in (*folder.glob("*.yaml"), *folder.glob("*.yml")))
            if not inside:
                raise UserError(f"{name}: no *.yaml in this folder")
            files += inside
        else:
            files.append(name)
    return files


@click.command()
@click.argument("drills", nargs=-1, required=True, metavar="DRILL...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before the first change.")
@cluster_options
@_run_options
def run(drills: tuple[str, ...], yes: bool, **given: Any) -> None:
    """Run drills on the cluster that each one names.

    Plans first, asks, and then runs: baseline, faults, recovery, undo, report. DRILL is a file, a shipped drill's
    name, or a folder of drills. SIGINT or SIGTERM aborts: what was changed is put back, requests in flight end, and
    the report is still made.

    \b
    chaosrunner run drills/chat.yaml
    chaosrunner run drills/ -m smoke -x --yes --junit out.xml
    chaosrunner run drills/chat.yaml -p concurrency=8 --context staging -n inference
    """
    flags = {name: given.pop(name) for name in _FLAGS}
    wanted = _wanted(drills, **given)
    for bound in wanted.bounds:
        bound.check_environment(flags["context"])

    async def one(bound: BoundDrill, display: Display) -> Finished:
        aimed, config = _aimed(bound, flags)
        options = Options(
            timelines=wanted.timelines,
            stop_file=wanted.stop_file,
            confirm=None if yes else partial(_confirm, display),
            follow=display.follow,
        )
        return await run_drill(aimed, config, options)

    raise click.exceptions.Exit(_all(wanted, one))


async def _confirm(display: Display, made: Plan) -> None:
    """Shows the plan and asks. Raises Refused where the answer is no, or nobody is there to answer."""
    if made.refused:
        return  # the engine refuses, with the reasons
    render(err(), plan_headline(made), plan_sections(made))
    if not sys.stdin.isatty():
        raise Refused("nobody is there to say yes: give --yes")
    with display.paused():
        if not click.confirm("Run this drill?", err=True):
            raise Refused("not confirmed; nothing was changed")


@click.command()
@click.argument("drills", nargs=-1, required=True, metavar="DRILL...")
@_run_options
def rehearse(drills: tuple[str, ...], **given: Any) -> None:
    """Run drills on the embedded lab that each one's `lab:` section describes.

    The lab is a small cluster of local processes on loopback: an API server, controllers, a node agent, model
    servers and a gateway. No cluster, no root. The drill is the same as with `run`.

    \b
    chaosrunner rehearse drills/lab-evict-one-replica.yaml
    chaosrunner rehearse lab-drain-node -p concurrency=8
    chaosrunner rehearse drills/ -k lab --junit out.xml
    """
    wanted = _wanted(drills, **given)
    for bound in wanted.bounds:
        bound.check_lab()

    async def one(bound: BoundDrill, display: Display) -> Finished:
        async with lab_process.running_lab(lab_process.lab_spec(bound)) as (ready, _):
            aimed, config = lab_process.towards(bound, ready)
            options = Options(
                timelines=wanted.timelines,
                lab="embedded",
                stop_file=wanted.stop_file,
                follow=display.follow,
                finish=lambda folder: lab_process.keep_log(ready, folder),
            )
            return await run_drill(aimed, config, options)

    raise click.exceptions.Exit(_all(wanted, one))


_One = Callable[[BoundDrill, Display], Awaitable[Finished]]


def _all(wanted: _Wanted, one: _One) -> int:
    """Runs the drills, one after the other; reports them; returns the exit code for all."""
    codes: list[int] = []
    done: list[Facts] = []
    for bound, expected in zip(wanted.bounds, wanted.expected, strict=True):
        display = Display(err(), bound)
        try:
            with display.shown():
                finished = anyio.run(one, bound, display)
        except Refused as error:
            click.echo(f"{bound.drill.metadata.name}: {error}", err=True)
            codes.append(1 if expected else error.exit_code)
            if wanted.exitfirst:
                break
            continue
        facts = finished.facts
        done.append(facts)
        code = facts.exit_code
        if wanted.output == "text":
            _show(facts, finished.folder, short=len(wanted.bounds) > 1)
        if expected:
            missed = expected.missed(facts)
            code = 1 if missed else 0
            click.echo(f"{facts.run.drill}: {missed or f'{facts.verdict}, as expected'}", err=True)
        codes.append(code)
        if facts.verdict == "aborted" or (code and wanted.exitfirst):
            break
    if wanted.output == "json":
        print_json(done[0] if len(wanted.bounds) == 1 and done else done)
    elif len(done) > 1:
        render(out(), None, [side_by_side(done)])
    if wanted.junit_file:
        wanted.junit_file.write_text(junit(done), encoding="utf-8")
    return next((code for code in PRECEDENCE if code in codes), 0)


def _show(facts: Facts, folder: Path, *, short: bool) -> None:
    """The whole report of a single drill; of several, each one's summary and checks, then all side by side."""
    console = out()
    made = sections(facts)
    if short:
        made = [section for section in made if section.title in ("Summary", "Checks")]
        console.print()
        console.rule(facts.run.drill, align="left")
    render(console, headline(facts), made)
    console.print(f"\nrecording: {folder}", soft_wrap=True)


_FLAGS = ("kubeconfig", "context", "namespace", "as_user", "as_groups", "request_timeout")


def _aimed(bound: BoundDrill, flags: dict[str, Any]) -> tuple[BoundDrill, ClusterConfig]:
    """The drill with the command line's namespace and context, and how to reach its cluster."""
    drill = bound.drill
    context = flags["context"] or drill.context
    namespace = flags["namespace"] or drill.namespace
    aimed = replace(bound, drill=drill.model_copy(update={"context": context, "namespace": namespace}))
    timeout = read_timeout(flags["request_timeout"])
    config = ClusterConfig(
        kubeconfig=flags["kubeconfig"],
        context=None if context == "in-cluster" else context,
        namespace=namespace,
        as_user=flags["as_user"],
        as_groups=tuple(flags["as_groups"]),
        **({} if timeout is None else {"request_timeout": timeout}),
    )
    return aimed, config
