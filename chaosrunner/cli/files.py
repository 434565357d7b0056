"""Commands on files: validate, schema, init."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import anyio
import click

from chaosrunner.cli.options import cluster_options, parameters_option, read_parameters, read_timeout
from chaosrunner.cli.output import output_option, print_json
from chaosrunner.cluster import ClusterConfig, Unreachable, connect
from chaosrunner.errors import Refused, UserError
from chaosrunner.plan.propose import propose
from chaosrunner.playbook import Problem
from chaosrunner.playbook import validate as find_problems
from chaosrunner.playbook.schema import schema as json_schema
from chaosrunner.timeline.clock import Clock


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@parameters_option
@output_option("text", "json")
def validate(files: tuple[str, ...], parameters: tuple[str, ...], output: str) -> None:
    """Find every mistake in playbooks and drills, with file, line, column and how to mend it.

    FILE is a path, or the name of a shipped playbook or drill. No cluster is asked. Exit code 2 if there is an error;
    warnings alone give 0.

    \b
    chaosrunner validate drills/*.yaml playbooks/*.yaml
    chaosrunner validate drill.yaml -p concurrency=8 -o json
    """
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
            click.echo(str(problem), err=problem.severity == "error")
        if not errors:
            click.echo(f"{len(files)} file{'s' if len(files) != 1 else ''} ok")
    if errors:
        raise click.exceptions.Exit(2)


def _fields(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "message": problem.message,
        "hint": problem.hint,
    }


@click.command()
@click.argument("kind", type=click.Choice(["playbook", "drill"]))
def schema(kind: Literal["playbook", "drill"]) -> None:
    """Print the JSON Schema of playbooks or drills, for editors.

    \b
    chaosrunner schema drill > drill.schema.json
    # then, as the first line of a drill:
    # yaml-language-server: $schema=drill.schema.json
    """
    print_json(json_schema(kind))


@click.command()
@click.option("--service", required=True, help="Service in front of the workload.")
@click.option("--playbook", default="evict-one-replica", show_default=True, help="Playbook of the drill.")
@click.option("--url", help="Where the probes send their requests; the Service's own address where absent.")
@click.option(
    "-f", "--file", "target", type=click.Path(path_type=Path), help="Write to this file, which must not exist."
)
@cluster_options
def init(service: str, playbook: str, url: str | None, target: Path | None, **flags: Any) -> None:
    """Write a drill from a live Service and the workload behind it.

    Looks up the Service's selector, its Pods, their controller, ports and disruption budget; changes nothing.
    What it cannot know is marked with a comment.

    \b
    chaosrunner init --service chat -n inference > drill.yaml
    chaosrunner init --service chat --context staging --playbook drain-node -f drills/chat-drain.yaml
    """
    timeout = read_timeout(flags["request_timeout"])
    config = ClusterConfig(
        kubeconfig=flags["kubeconfig"],
        context=flags["context"],
        namespace=flags["namespace"],
        as_user=flags["as_user"],
        as_groups=tuple(flags["as_groups"]),
        **({} if timeout is None else {"request_timeout": timeout}),
    )
    if target and target.exists():
        raise UserError(f"{target} exists already; choose another name")
    text = anyio.run(_propose, config, service, playbook, url)
    if target:
        target.write_text(text, encoding="utf-8")
        click.echo(f"wrote {target}; next: chaosrunner plan {target}", err=True)
    else:
        click.echo(text, nl=False)


async def _propose(config: ClusterConfig, service: str, playbook: str, url: str | None) -> str:
    try:
        async with connect(config, Clock()) as cluster:
            return await propose(cluster, service=service, playbook=playbook, url=url)
    except Unreachable as error:
        raise Refused(f"the cluster cannot be reached: {error}") from error
