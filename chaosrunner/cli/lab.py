"""`lab up`: keeps a lab running, so that kubectl and people can look at it."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import click
import msgspec

from chaosrunner.cli.lab_process import Ready, lab_spec, running_lab
from chaosrunner.cli.output import output_option, print_json_line
from chaosrunner.playbook import load_drill


@click.group()
def lab() -> None:
    """A small cluster of local processes, as drills are rehearsed on."""


@lab.command()
@click.option("--drill", help="Set the lab up as this drill's `lab:` section says; a plain one where absent.")
@click.option("--state", type=click.Path(path_type=Path), help="Folder for its state and logs; temporary where absent.")
@output_option("text", "json")
def up(drill: str | None, state: Path | None, output: str) -> None:
    """Start a lab and keep it until Ctrl-C.

    Prints how to reach it: a kubeconfig for kubectl, the URL of the gateway, the address of its alert source.
    Nothing is left when it ends.

    \b
    chaosrunner lab up
    chaosrunner lab up --drill lab-drain-node -o json
    # in another terminal:
    kubectl --kubeconfig FILE get pods -A -o wide
    """
    spec = lab_spec(load_drill(drill)) if drill else {}
    anyio.run(_up, spec, state, output)


async def _up(spec: dict[str, object], state: Path | None, output: str) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with running_lab(spec, state) as (ready, folder):
            _tell(ready, folder, output)
            async for _ in signals:
                break


def _tell(ready: Ready, folder: Path, output: str) -> None:
    if output == "json":
        print_json_line(msgspec.to_builtins(ready))
        return
    click.echo(f"export KUBECONFIG={ready.kubeconfig}")
    click.echo(f"# kubectl get pods -n {ready.namespace} -o wide")
    click.echo(f"# gateway: {ready.url}")
    if ready.prometheus:
        click.echo(f"# alerts: {ready.prometheus}/api/v1/alerts")
    click.echo(f"# logs and state: {folder}")
    click.echo("# Ctrl-C ends the lab", err=True)
