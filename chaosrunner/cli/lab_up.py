"""Brings labs up for people to work on: an embedded one for as long as the command runs, a real one to stay."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click

from chaosrunner.cli import labs, real_lab
from chaosrunner.cli.lab_process import NODES, PLAIN, lab_spec, running_lab
from chaosrunner.cli.labs import Lab
from chaosrunner.cli.options import read_parameters
from chaosrunner.cli.output import print_json_line
from chaosrunner.errors import UserError
from chaosrunner.journal import process
from chaosrunner.playbook import load_drill

INFRA = "infra"
"""The node of a lab that carries gateway and alert source, beside the numbered ones."""


def up(
    real: bool, nodes: int | None, drill: str | None, parameters: tuple[str, ...], state: Path | None, output: str
) -> None:
    """Brings a lab up as told, with the workload of a drill or the plain one, and tells how to reach it."""
    values = read_parameters(parameters)
    if values and not drill:
        raise UserError("-p sets what a drill says: give --drill too")
    if real:
        real_lab.check_machine()
    spec = lab_spec(load_drill(drill, values)) if drill else PLAIN
    spec = spec | {"nodes": nodes or spec.get("nodes") or NODES}
    if real:
        _up_real(spec, state or real_lab.STATE, output)
    else:
        if state and labs.standing("embedded", state):
            raise UserError(f"a lab stands at {state} already; end it with: chaosrunner lab down --state {state}")
        anyio.run(_keep, spec, state, output)


# --- real -----------------------------------------------------------------------------------------------------


def _up_real(spec: dict[str, Any], state: Path, output: str) -> None:
    for lab in labs.standing("real", state):
        raise UserError(f"a real lab stands at {state} already; end it with: chaosrunner lab down{labs.option(lab)}")
    with real_lab.nameless() as written:
        written.write_text(json.dumps(spec))
        nodes = str(spec["nodes"])
        arguments = ("--nodes", nodes, "--spec", str(written), "--until-stdin-closes")
        told = real_lab.call("up", state, *arguments, tell=partial(click.echo, err=True))
    if output == "json":
        print_json_line(told)
        return
    lab = labs.real(told)
    where = labs.option(lab)
    namespace = f" -n {lab.namespace}" if lab.namespace else ""
    click.echo(f"chaosrunner lab exec{where} -- kubectl get pods{namespace} -o wide")
    click.echo(f"chaosrunner rehearse --real{where} lab-evict-one-replica")
    click.echo(f"# nodes:           {', '.join(lab.nodes)}")
    _tell_workload(lab, spec)
    click.echo(f"# logs and state:  {lab.state}")
    click.echo(f"the lab stays until: chaosrunner lab down{where}", err=True)


# --- embedded -------------------------------------------------------------------------------------------------


async def _keep(spec: dict[str, Any], state: Path | None, output: str) -> None:
    """Keeps an embedded lab until SIGINT or SIGTERM."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:

            async def serve() -> None:
                async with running_lab(spec, state, lambda doing: click.echo(doing, err=True)) as (ready, folder):
                    lab = Lab(
                        kind="embedded",
                        state=str(folder.resolve()),
                        kubeconfig=ready.kubeconfig,
                        context=ready.context,
                        nodes=[*(f"node{index}" for index in range(1, spec["nodes"] + 1)), INFRA],
                        namespace=ready.namespace,
                        url=ready.url,
                        prometheus=ready.prometheus,
                        pod_header=ready.pod_header,
                        control=ready.control,
                        process=process.current(),
                    )
                    with labs.noted(lab):
                        if output == "json":
                            print_json_line(ready)
                        else:
                            _announce(lab, spec)
                        sys.stdout.flush()
                        click.echo("Ctrl-C ends the lab", err=True)
                        await anyio.sleep_forever()

            group.start_soon(serve)
            async for _ in signals:
                click.echo("ending the lab", err=True)
                group.cancel_scope.cancel()
                break


def _announce(lab: Lab, spec: dict[str, Any]) -> None:
    click.echo(f"export KUBECONFIG={shlex.quote(lab.kubeconfig)}")
    click.echo(f"# kubectl get pods -n {lab.namespace} -o wide")
    _tell_workload(lab, spec)
    click.echo(f"# logs and state:  {lab.state}")


def _tell_workload(lab: Lab, spec: dict[str, Any]) -> None:
    inside = ", in the lab's network" if lab.network else ""
    click.echo(f"# gateway:         {lab.url}{inside}")
    click.echo(f"# Pod header:      {lab.pod_header or 'none: no response tells which Pod served it'}")
    limits = ", ".join(f"{name}: {value}" for name, value in (spec.get("pdb") or {}).items() if value is not None)
    click.echo(f"# budget:          {limits or 'none: no PodDisruptionBudget protects the replicas'}")
    if lab.prometheus:
        click.echo(f"# alerts:          {lab.prometheus}/api/v1/alerts{inside}")
