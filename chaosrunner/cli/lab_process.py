"""Starts the lab, which is a program of its own, and turns a drill towards it."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from chaosrunner.cli.options import read_parameters
from chaosrunner.cli.output import print_json_line
from chaosrunner.cluster import ClusterConfig
from chaosrunner.errors import Refused, UserError
from chaosrunner.playbook import BoundDrill, load_drill

START_LIMIT = 120.0
"""Longest start of a lab, seconds, beyond the start-up time of its replicas."""

STOP_LIMIT = 20.0
"""Longest orderly stop of a lab, seconds; then it is killed, and its children die with it."""

INSTANTS = "instants.jsonl"
"""Name of the lab's log of instants in its state folder."""

SYSTEM = "lab-system"
"""Namespace of the lab's gateway and alert source."""

PLAIN: dict[str, Any] = {"pdb": {"max_unavailable": 1}, "gateway": {"pod_header": "x-served-by"}}
"""The lab without a drill: what the shipped playbooks expect of a service, and the lab's defaults."""

LOG = "lab.jsonl"
"""Name of the lab's log of instants in a recording."""


class Ready(msgspec.Struct):
    """The line with which the lab says that it is ready."""

    kubeconfig: str
    context: str
    namespace: str
    url: str
    log: str
    pid: int
    prometheus: str | None = None
    control: str | None = None
    pod_header: str | None = None


@asynccontextmanager
async def running_lab(
    spec: dict[str, Any], state: Path | None = None, progress: Callable[[str], None] = lambda doing: None
) -> AsyncIterator[tuple[Ready, Path]]:
    """A lab for the length of the block. Yields what it said and its state folder; `progress` hears how it starts.

    Without `state` the folder is a temporary one and goes with the lab. The lab also ends by itself when this process
    dies, since its standard input is then closed. Raises Refused where it does not start.
    """
    made = state or Path(tempfile.mkdtemp(prefix="chaosrunner-lab-"))
    made.mkdir(parents=True, exist_ok=True)
    (made / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "chaosrunner.lab", "--spec", str(made / "spec.json"), "--state", str(made)]
    try:
        with (made / "lab.stderr").open("wb") as errors:
            process = await anyio.open_process(
                [*command, "--until-stdin-closes"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the run, which still needs the lab to end its requests
            )
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_tell, made, spec, progress)
                ready = await _ready(process, made, spec)
                group.cancel_scope.cancel()
            yield ready, made
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process)
    finally:
        if state is None:
            shutil.rmtree(made, ignore_errors=True)


async def _tell(state: Path, spec: dict[str, Any], progress: Callable[[str], None]) -> None:
    """Tells how many replicas are ready so far, by the lab's own log."""
    path, of = state / INSTANTS, spec.get("replicas")
    told = -1
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        ready = sum('"what": "ready"' in line and SYSTEM not in line for line in lines)
        if ready != told:
            progress(f"starting the lab: {ready}{f' of {of}' if of else ''} replicas ready")
            told = ready
        await anyio.sleep(0.3)


async def _ready(process: anyio.abc.Process, state: Path, spec: dict[str, Any]) -> Ready:
    assert process.stdout is not None
    lines = BufferedByteReceiveStream(process.stdout)
    try:
        with anyio.fail_after(START_LIMIT + float(spec.get("startup") or 0)):
            return msgspec.json.decode(await lines.receive_until(b"\n", 1 << 16), type=Ready)
    except (TimeoutError, anyio.IncompleteRead, anyio.EndOfStream, msgspec.MsgspecError) as error:
        said = (state / "lab.stderr").read_text(errors="replace").strip().splitlines()
        last = said[-1] if said else "it said nothing"
        why = "not ready in time" if isinstance(error, TimeoutError) else "it ended"
        raise Refused(f"the lab did not start ({why}): {last}") from None


async def _stop(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(STOP_LIMIT):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    await process.aclose()


def towards(bound: BoundDrill, ready: Ready) -> tuple[BoundDrill, ClusterConfig]:
    """The drill with the lab's addresses in place of its own, and how to reach the lab's cluster."""
    drill = bound.drill
    endpoint = drill.endpoint.model_copy(
        update={
            "url": ready.url,
            "api_key": None,
            "headers": {},
            "ca": None,
            "insecure": False,
            "pod_header": ready.pod_header or drill.endpoint.pod_header,
        }
    )
    prometheus = drill.prometheus
    if prometheus is not None:
        update: dict[str, Any] = {"url": ready.prometheus, "headers": {}, "ca": None, "insecure": False}
        prometheus = prometheus.model_copy(update=update) if ready.prometheus else None
    turned = drill.model_copy(
        update={
            "context": ready.context,
            "namespace": ready.namespace,
            "endpoint": endpoint,
            "prometheus": prometheus,
        }
    )
    config = ClusterConfig(kubeconfig=ready.kubeconfig, context=ready.context, namespace=ready.namespace)
    return replace(bound, drill=turned), config


def keep_log(ready: Ready, folder: Path) -> None:
    """Keeps the lab's own log of instants beside the recording, to hold the analysis against."""
    shutil.copyfile(ready.log, folder / LOG)


def lab_spec(bound: BoundDrill) -> dict[str, Any]:
    """The drill's `lab:` section. Raises UserError where it has none."""
    if bound.drill.lab is None:
        raise UserError(f"{bound.drill.metadata.name}: the drill has no lab: section, so it cannot be rehearsed")
    return bound.drill.lab.spec()


def keep_lab(drill: str | None, parameters: tuple[str, ...], state: Path | None, output: str) -> None:
    """Runs a lab until SIGINT or SIGTERM, and tells how to reach it."""
    values = read_parameters(parameters)
    if values and not drill:
        raise UserError("-p sets what a drill says: give --drill too")
    spec = lab_spec(load_drill(drill, values)) if drill else PLAIN
    anyio.run(_keep, spec, state, output)


async def _keep(spec: dict[str, Any], state: Path | None, output: str) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:

            async def serve() -> None:
                async with running_lab(spec, state, lambda doing: click.echo(doing, err=True)) as (ready, folder):
                    _announce(ready, folder, spec.get("pdb"), output)
                    await anyio.sleep_forever()

            group.start_soon(serve)
            async for _ in signals:
                click.echo("ending the lab", err=True)
                group.cancel_scope.cancel()
                break


def _announce(ready: Ready, folder: Path, budget: dict[str, Any] | None, output: str) -> None:
    if output == "json":
        print_json_line(ready)
    else:
        click.echo(f"export KUBECONFIG={shlex.quote(ready.kubeconfig)}")
        click.echo(f"# kubectl get pods -n {ready.namespace} -o wide")
        click.echo(f"# gateway:         {ready.url}")
        click.echo(f"# Pod header:      {ready.pod_header or 'none: no response tells which Pod served it'}")
        limits = ", ".join(f"{name}: {value}" for name, value in (budget or {}).items() if value is not None)
        click.echo(f"# budget:          {limits or 'none: no PodDisruptionBudget protects the replicas'}")
        if ready.prometheus:
            click.echo(f"# alerts:          {ready.prometheus}/api/v1/alerts")
        click.echo(f"# logs and state:  {folder}")
    sys.stdout.flush()
    click.echo("Ctrl-C ends the lab", err=True)
