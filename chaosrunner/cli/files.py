"""Commands on files: validate, schema, init."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from chaosrunner.cli.commands import Command
from chaosrunner.cli.options import (
    check_target,
    cluster_config,
    cluster_options,
    complete_drill,
    complete_playbook,
    output_option,
    parameters_option,
    read_parameters,
    write_target,
)
from chaosrunner.errors import Refused, UserError


@click.command(
    cls=Command,
    examples="""
    chaosrunner validate drills/*.yaml playbooks/*.yaml
    chaosrunner validate drill.yaml -p concurrency=8 -o json
    """,
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_drill)
@parameters_option
@output_option("text", "json")
def validate(files: tuple[str, ...], parameters: tuple[str, ...], output: str) -> None:
    """Find every mistake in playbooks and drills.

    Each with file, line, column and how to mend it. FILE is a path, or the name of a shipped playbook or drill. No
    cluster is asked. Exit code 2 if there is an error; warnings alone give 0.
    """
    from chaosrunner.cli.output import print_json
    from chaosrunner.playbook import Problem
    from chaosrunner.playbook import validate as find_problems
    from chaosrunner.reports.format import plural

    values = read_parameters(parameters)
    found: list[Problem] = []
    for name in files:
        try:
            found += [problem for problem in find_problems(name, values) if problem not in found]
        except UserError as error:
            found.append(Problem(name, 0, 0, str(error)))
    errors = sum(problem.severity == "error" for problem in found)
    if output == "json":
        print_json([{"severity": p.severity, **_fields(p)} for p in found])
    else:
        for problem in found:
            whole = problem.line or problem.file not in problem.message
            click.echo(str(problem) if whole else problem.message, err=problem.severity == "error")
        if errors:
            click.echo(f"{plural(errors, 'error')} in {plural(len(files), 'file')}", err=True)
        else:
            click.echo(f"{plural(len(files), 'file')} ok")
    if errors:
        raise click.exceptions.Exit(UserError.exit_code)


def _fields(problem: Any) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in ("file", "line", "column", "message", "hint")}


@click.command(
    cls=Command,
    examples="""
    chaosrunner schema drill > drill.schema.json
    # then, as the first line of a drill:
    # yaml-language-server: $schema=drill.schema.json
    """,
)
@click.argument("kind", type=click.Choice(["playbook", "drill"]))
def schema(kind: Literal["playbook", "drill"]) -> None:
    """Print the JSON Schema of playbooks or drills, for editors."""
    from chaosrunner.cli.output import print_json
    from chaosrunner.playbook.schema import schema as json_schema

    print_json(json_schema(kind))


@click.command(
    cls=Command,
    examples="""
    chaosrunner init --service chat -n inference > drill.yaml
    chaosrunner init --service chat --context staging --playbook drain-node -f drills/chat-drain.yaml
    """,
)
@click.option("--service", required=True, metavar="NAME", help="Service in front of the workload.")
@click.option(
    "--playbook",
    default="evict-one-replica",
    show_default=True,
    metavar="NAME",
    shell_complete=complete_playbook,
    help="Playbook of the drill.",
)
@click.option("--url", help="Where the probes send their requests; the Service's own address where absent.")
@click.option("--pod-header", metavar="NAME", help="Response header that names the serving Pod, such as target-pod.")
@click.option(
    "-f",
    "--file",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to this file, which must not exist.",
)
@cluster_options(drill=False)
def init(
    service: str, playbook: str, url: str | None, pod_header: str | None, target: Path | None, **flags: Any
) -> None:
    """Write a drill from a live Service and the workload behind it.

    Looks up the Service's selector, its Pods, their controller, ports and disruption budget; changes nothing.
    What it cannot know is marked with a comment.
    """
    import anyio

    from chaosrunner.cluster import Unreachable, connect
    from chaosrunner.plan.propose import propose
    from chaosrunner.timeline.clock import Clock

    async def ask() -> str:
        try:
            async with connect(cluster_config(flags), Clock()) as cluster:
                return await propose(cluster, service=service, playbook=playbook, url=url, pod_header=pod_header)
        except Unreachable as error:
            raise Refused(f"the cluster cannot be reached: {error}") from error

    if target and target.exists():
        raise UserError(f"{target} exists already; choose another name")
    check_target("-f", target)
    text = anyio.run(ask)
    if target:
        write_target("-f", target, text)
        click.echo(f"wrote {target}; next: chaosrunner plan {target}", err=True)
    else:
        click.echo(text, nl=False)
