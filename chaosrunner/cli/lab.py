"""`lab up`: keeps a lab running, so that kubectl and people can look at it."""

from __future__ import annotations

from pathlib import Path

import click

from chaosrunner.cli.commands import Command, Group
from chaosrunner.cli.options import complete_drill, output_option, parameters_option


@click.group(cls=Group)
def lab() -> None:
    """Keep the lab of rehearsals running, for kubectl."""


@lab.command(
    cls=Command,
    examples="""
    chaosrunner lab up
    chaosrunner lab up --drill lab-drain-node -p lab.replicas=5
    # in another terminal:
    kubectl --kubeconfig FILE get pods -A -o wide
    """,
)
@click.option(
    "--drill",
    metavar="DRILL",
    shell_complete=complete_drill,
    help="Set the lab up as this drill's `lab:` section says; a plain one with a PodDisruptionBudget where absent.",
)
@parameters_option
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for its state and logs, which stays; temporary where absent.",
)
@output_option("text", "json")
def up(drill: str | None, parameters: tuple[str, ...], state: Path | None, output: str) -> None:
    """Start a lab and keep it until Ctrl-C.

    Prints how to reach it: a kubeconfig for kubectl, the URL of the gateway, the address of its alert source.
    Nothing is left when it ends.
    """
    from chaosrunner.cli.lab_process import keep_lab

    keep_lab(drill, parameters, state, output)
