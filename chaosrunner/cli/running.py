"""Plans and runs drills for the command line, one after the other, and reports them."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import click
import msgspec

from chaosrunner.analysis.facts import Facts
from chaosrunner.cli import expect as expectations
from chaosrunner.cli import lab_process, real_lab, recovering
from chaosrunner.cli.display import Display
from chaosrunner.cli.ending import fail, user_error
from chaosrunner.cli.expect import Expected
from chaosrunner.cli.leftovers import crashed, left_changed, tell
from chaosrunner.cli.metrics import serving
from chaosrunner.cli.network import within
from chaosrunner.cli.options import CLUSTER, check_folder, check_target, cluster_config, read_parameters, write_target
from chaosrunner.cli.output import err, out, print_json
from chaosrunner.cli.select import chosen
from chaosrunner.cluster import ClusterConfig, Unreachable, connect
from chaosrunner.engine import Finished, Options, run_drill
from chaosrunner.errors import Locked, Refused, UserError
from chaosrunner.journal.journal import Connection
from chaosrunner.journal.recover import recover_annotated
from chaosrunner.plan.plan import Plan, make_plan
from chaosrunner.playbook import BoundDrill, load_drill
from chaosrunner.reports.compare import in_words, side_by_side
from chaosrunner.reports.document import STYLES, Cell, Section
from chaosrunner.reports.junit import junit
from chaosrunner.reports.plan import plan_headline, plan_sections
from chaosrunner.reports.sections import headline, sections
from chaosrunner.reports.terminal import render
from chaosrunner.timeline.clock import Clock

ABORTED = 4

INTERRUPTED = "interrupted; see `chaosrunner report latest` and `chaosrunner recover`"
"""Said of a run that had begun."""

PRECEDENCE = (5, ABORTED, Refused.exit_code, UserError.exit_code, 3, 1)
"""Which exit code wins over several drills; 0 if there is none of these."""


def plan(drill: str, parameters: tuple[str, ...], output: str, **flags: Any) -> int:
    bound = load_drill(drill, read_parameters(parameters))
    bound.check_environment(flags["context"])
    _warn(bound)
    bound, config = _aimed(bound, flags)
    made = anyio.run(_plan, bound, config)
    if output == "json":
        print_json(made)
    else:
        render(out(), plan_headline(made), plan_sections(made))
    return Refused.exit_code if made.refused else 0


async def _plan(bound: BoundDrill, config: ClusterConfig) -> Plan:
    try:
        async with connect(config, Clock()) as cluster:
            return await make_plan(bound, cluster)
    except Unreachable as error:
        raise Refused(f"the cluster cannot be reached: {error}") from error


def run(drills: tuple[str, ...], yes: bool, **given: Any) -> int:
    flags = {name: given.pop(name) for name in CLUSTER}
    metrics, named = given.pop("metrics"), given.pop("cluster")
    wanted = _wanted(drills, **given)
    for bound in wanted.bounds:
        bound.check_environment(flags["context"])

    async def one(bound: BoundDrill, display: Display) -> Finished:
        await _leftovers(display, wanted.timelines, flags["request_timeout"], ask=not yes)
        display.say("planning")
        aimed, config = _aimed(bound, flags)
        options = Options(
            timelines=wanted.timelines,
            stop_file=wanted.stop_file,
            confirm=None if yes else partial(_confirm, display),
            name_cluster=partial(_name_cluster, display, named),
            follow=display.follow,
            measure=measured.follow if measured else None,
        )
        try:
            return await run_drill(aimed, config, options)
        except Locked as error:
            raise _unlockable(error, wanted.timelines, flags["kubeconfig"]) from error

    with serving(metrics) as measured:
        return _all(wanted, one)


async def _leftovers(display: Display, timelines: Path, request_timeout: float | None, *, ask: bool) -> None:
    """Sees to it that nothing is left changed by runs that died: asks to put it back where somebody is there to
    answer. Raises Refused while something is left."""
    entries = left_changed(timelines)
    if not entries:
        return
    refused = Refused(f"{tell(entries)}; put it back with: {recovering.command(timelines)}")
    if not (ask and sys.stdin.isatty()):
        raise refused
    with display.paused():
        click.echo(tell(entries), err=True)
        if not recovering.agreed("Put it back now?"):
            raise refused
        # Each journal knows its own cluster; that of the drill to be run may be another.
        flags = dict.fromkeys(CLUSTER) | {"as_groups": (), "request_timeout": request_timeout}
        recovering.show(err(), await recovering.recover_below(timelines, flags))
    if left := left_changed(timelines):
        raise Refused(f"not all could be put back: {tell(left)}")


def _unlockable(error: Locked, timelines: Path, kubeconfig: str | None) -> Refused:
    """The refusal, with the way out where the run that holds the target is known to be dead."""
    for _, manifest in crashed(timelines):
        if manifest.run == error.holder:
            died = f"run {manifest.run} of drill {manifest.drill} died and still holds the lock on this target"
            return Refused(f"{died}; free it with: {recovering.command(timelines, kubeconfig)}")
    return error


async def _confirm(display: Display, made: Plan) -> None:
    """Shows the plan and asks. Raises Refused where the answer is no, or nobody is there to answer."""
    if made.refused:
        return  # the engine refuses, with the reasons
    with display.paused():
        render(err(), plan_headline(made), plan_sections(made))
        if not sys.stdin.isatty():
            raise Refused("nobody is there to say yes: give --yes")
        if not recovering.agreed("\nRun this drill?"):
            raise Refused("not confirmed; nothing was changed")


async def _name_cluster(display: Display, named: str | None, made: Plan) -> str:
    """The cluster's name, as given or as typed. Raises Refused where nobody is there to type it."""
    if named is not None:
        return named
    if not sys.stdin.isatty():
        raise Refused("this is a production drill, and nobody is there to name its cluster: give --cluster NAME")
    with display.paused():
        return recovering.asked(f"This is a production drill on {made.server}. Name its cluster to run it")


def rehearse(drills: tuple[str, ...], real: bool, state: Path | None, **given: Any) -> int:
    if real:
        real_lab.check_machine()
    elif state is not None:
        raise UserError("--state is about the real lab: give --real too")
    metrics = given.pop("metrics")
    wanted = _wanted(drills, **given)
    for bound in wanted.bounds:
        bound.check_lab()

    async def one(bound: BoundDrill, display: Display) -> Finished:
        display.say("starting the lab")
        spec = lab_process.lab_spec(bound)
        lab = (
            lab_process.on_real_lab(spec, state or real_lab.STATE, display.say)
            if real
            else lab_process.on_embedded_lab(spec, display.say)
        )
        # No thread is there yet that uses the network: this loop has looked up no name and opened no connection.
        async with lab as ready:
            with within(ready.network):
                aimed, config = lab_process.towards(bound, ready)
                await _put_back(display, config)
                display.say("planning")
                options = Options(
                    timelines=wanted.timelines,
                    lab="real" if real else "embedded",
                    stop_file=wanted.stop_file,
                    follow=display.follow,
                    measure=measured.follow if measured else None,
                    finish=lambda folder: lab_process.keep_log(ready, folder),
                )
                finished = await run_drill(aimed, config, options)
            display.say("ending the lab")
            return finished

    with serving(metrics) as measured:
        return _all(wanted, one)


async def _put_back(display: Display, config: ClusterConfig) -> None:
    """Puts back what a rehearsal that was killed left changed on a lab that outlived it, as the lab's nodes tell.

    Raises Refused where it cannot be.
    """
    here = Connection(kubeconfig=config.kubeconfig, context=config.context, namespace=config.namespace)
    try:
        async with connect(config, Clock()) as cluster:
            results = await recover_annotated(cluster, here)
    except Unreachable as error:
        raise Refused(f"the lab's cluster cannot be reached: {error}") from error
    for result in results:
        if result.state == "undo_failed":
            raise Refused(f"run {result.run} died and left {result.target.name} changed on this lab: {result.detail}")
        display.say(f"{result.target.name} of run {result.run}: {result.state.replace('_', ' ')}")


@dataclass(frozen=True)
class _Wanted:
    """What the options of `run` and `rehearse` come to."""

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
    check_target("--junit", junit_file)
    check_folder("--stop-file", stop_file)
    if stop_file is not None and stop_file.exists():
        raise UserError(f"--stop-file {stop_file}: it is there already; remove it first")
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
        names = ", ".join(bound.drill.metadata.name for bound in loaded)
        raise UserError(f"-k and -m leave no drill of these: {names}")
    expected = expectations.read(expect, [bound.playbook for bound in bounds])
    for bound in bounds:
        _warn(bound)
    return _Wanted(bounds, expected, timelines, exitfirst, junit_file, stop_file, output)


def _warn(bound: BoundDrill) -> None:
    for problem in bound.warnings:
        click.echo(str(problem), err=True)


def _files(given: tuple[str, ...]) -> list[str]:
    """Drills by path or name; a folder stands for the drills in it. The same file twice is run once."""
    files: dict[str, None] = {}
    for name in given:
        folder = Path(name)
        if folder.is_dir():
            inside = sorted(str(path) for path in (*folder.glob("*.yaml"), *folder.glob("*.yml")))
            if not inside:
                raise UserError(f"{name}: no *.yaml in this folder")
            files |= dict.fromkeys(inside)
        else:
            files[name] = None
    return list(files)


class NotRun(msgspec.Struct, kw_only=True):
    """A drill without facts, in the place of its report."""

    drill: str
    verdict: Literal["refused", "aborted", "error"]
    """refused: nothing was changed because the plan, the lock or the cluster said no. aborted: interrupted;
    the reason tells whether it had begun. error: something that the user gave was wrong."""
    reason: str
    exit_code: int


@dataclass
class Results:
    """What the drills came to so far."""

    codes: list[int] = field(default_factory=list)
    done: list[Facts] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    remarks: list[Cell] = field(default_factory=list)
    """How each one stands against what was expected of it."""

    documents: list[Facts | NotRun] = field(default_factory=list)
    """All of them, in the order of the drills."""

    unwritten: UserError | None = None
    """Why the JUnit file does not hold all of them."""

    def refuse(self, name: str, verdict: Literal["refused", "aborted", "error"], reason: str, code: int) -> None:
        """Notes a drill that did not run."""
        self.codes.append(code)
        self.not_run.append(NotRun(drill=name, verdict=verdict, reason=reason, exit_code=code))
        self.documents.append(self.not_run[-1])

    @property
    def code(self) -> int:
        codes = [*self.codes, self.unwritten.exit_code] if self.unwritten else self.codes
        return next((code for code in PRECEDENCE if code in codes), 0)


_One = Callable[[BoundDrill, Display], Awaitable[Finished]]


def _all(wanted: _Wanted, one: _One) -> int:
    """Runs the drills, one after the other; reports them; returns the exit code for all."""
    results = Results()
    several = len(wanted.bounds) > 1
    for bound, expected in zip(wanted.bounds, wanted.expected, strict=True):
        name = bound.drill.metadata.name
        display = Display(err(), bound)
        try:
            finished = _run(bound, one, display)
        except KeyboardInterrupt:
            reason = INTERRUPTED if display.followed else "interrupted before it began; nothing was changed"
            results.refuse(name, "aborted", reason, ABORTED)
            click.echo(f"{name}: {reason}", err=True)
            break
        except UserError as error:
            verdict: Literal["refused", "error"] = "refused" if isinstance(error, Refused) else "error"
            results.refuse(name, verdict, str(error), error.exit_code)
            click.echo(f"error: {name}: {error}" if several else f"error: {error}", err=True)
        else:
            facts = finished.facts
            results.done.append(facts)
            results.documents.append(facts)
            missed = expected.missed(facts) if expected else None
            results.codes.append(int(missed is not None) if expected else facts.exit_code)
            if expected:
                results.remarks.append(_remark(facts, missed))
            if wanted.output == "text":
                _show(finished, several)
            if facts.verdict == "aborted":
                break
        finally:
            if wanted.junit_file:  # after each drill: what comes later cannot take it away
                results.unwritten = _write_junit(wanted.junit_file, results)
        if results.codes[-1] and wanted.exitfirst:
            break
    _report(wanted, results, several)
    if results.unwritten:
        fail(results.unwritten)
    return results.code


def _write_junit(path: Path, results: Results) -> UserError | None:
    """What kept the file from being written. The drill, its report and the other drills do not depend on it."""
    try:
        write_target("--junit", path, junit(results.done, {one.drill: one.reason for one in results.not_run}))
    except UserError as error:
        return error
    return None


def _run(bound: BoundDrill, one: _One, display: Display) -> Finished:
    try:
        with display.shown():
            return anyio.run(one, bound, display)
    except BaseExceptionGroup as group:
        if found := user_error(group):
            raise found from group
        raise


def _remark(facts: Facts, missed: str | None) -> Cell:
    if missed:
        return Cell(f"{facts.run.drill} is not as expected: {missed}", "bad")
    return Cell(f"{facts.run.drill} {facts.verdict.replace('_', ' ')}, as expected: {in_words(facts)}", "good")


def _show(finished: Finished, several: bool) -> None:
    """The whole report of a single drill; of several, each one's verdict: they come side by side at the end."""
    facts, console = finished.facts, out()
    if several:
        section = Section(f"{facts.run.drill}: {facts.verdict.replace('_', ' ')}")
        section.line(f"recording: {finished.folder}")
        render(console, None, [section])
        return
    render(console, headline(facts), sections(facts))
    console.print(f"\nrecording: {finished.folder}", soft_wrap=True)


def _report(wanted: _Wanted, results: Results, several: bool) -> None:
    if wanted.output == "json":
        print_json(results.documents if several else results.documents[0])
        for remark in results.remarks:
            click.echo(remark.text, err=True)
        return
    made: list[Section] = side_by_side(results.done) if several and results.done else []
    if results.remarks or (several and results.done):
        made.append(_outcome(results))
    if made:
        console = out()
        console.print()
        render(console, None, made)


def _outcome(results: Results) -> Section:
    """The last lines: what each drill came to, in plain words."""
    section = Section("Result")
    section.parts += results.remarks or [
        Cell(f"{facts.run.drill} {facts.verdict.replace('_', ' ')}: {in_words(facts)}", STYLES[facts.verdict])
        for facts in results.done
    ]
    for one in results.not_run:
        section.line(f"{one.drill} {one.verdict}: {one.reason.splitlines()[0]}", "bad")
    return section


def _aimed(bound: BoundDrill, flags: dict[str, Any]) -> tuple[BoundDrill, ClusterConfig]:
    """The drill with the command line's namespace and context, and how to reach its cluster."""
    drill = bound.drill
    config = cluster_config(flags, context=drill.context, namespace=drill.namespace)
    update = {"context": flags["context"] or drill.context, "namespace": config.namespace}
    return replace(bound, drill=drill.model_copy(update=update)), config
