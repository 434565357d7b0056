"""Starts a lab for a rehearsal, which is a program of its own, and turns a drill towards it."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from chaosrunner.cli import labs, real_lab
from chaosrunner.cluster import ClusterConfig
from chaosrunner.errors import Refused, UserError
from chaosrunner.playbook import BoundDrill
from chaosrunner.playbook.endpoint import Replicas
from chaosrunner.playbook.workload import Gateway

START_LIMIT = 120.0
"""Longest start of an embedded lab, seconds, beyond the start-up time of its replicas. A real one, which may have to
be built first, knows by itself when to give up."""

STOP_LIMIT = 20.0
"""Longest orderly stop of a lab, seconds; then it is killed, and its children die with it."""

REAL_STOP_LIMIT = 120.0
"""The same of a real one, which lets its Pods end in order. Killed, it leaves what `lab down` clears."""

INSTANTS = "instants.jsonl"
"""Name of the lab's log of instants in its state folder."""

SYSTEM = "lab-system"
"""Namespace of the lab's gateway and alert source."""

NODES = 3
"""Nodes of a lab where nobody says how many."""

PLAIN: dict[str, Any] = {"pdb": {"max_unavailable": 1}, "gateway": {"pod_header": "x-served-by"}}
"""The lab without a drill: what the shipped playbooks expect of a service, and the lab's defaults."""

LOG = "lab.jsonl"
"""Name of the lab's log of instants in a recording."""

Tell = Callable[[str], None]
"""Hears what goes on while a lab starts."""


class Ready(msgspec.Struct):
    """The line with which a lab says that it serves."""

    kubeconfig: str
    context: str
    namespace: str
    url: str
    log: str
    pid: int
    state: str
    """Its state folder, absolute."""
    prometheus: str | None = None
    control: str | None = None
    pod_header: str | None = None
    service: str | None = None
    """URL of the model's own Service, past the gateway; a real lab has one."""
    toxiproxy: str | None = None
    """Base URL of Toxiproxy's API, for the links between the gateway and the replicas."""
    gateway: dict[str, str] | None = None
    """selector and namespace of the gateway's Pods."""
    network: str | None = None
    """Network namespace in which all its addresses are; None where they are the machine's own."""


@asynccontextmanager
async def running_lab(
    spec: dict[str, Any], state: Path | None = None, progress: Tell = lambda doing: None
) -> AsyncIterator[tuple[Ready, Path]]:
    """An embedded lab for the length of the block. Yields what it said and its state folder.

    Without `state` the folder is a temporary one and goes with the lab. The lab also ends by itself when this process
    dies, since its standard input is then closed. Raises Refused where it does not start.
    """
    made = state or Path(tempfile.mkdtemp(prefix="chaosrunner-lab-"))
    made.mkdir(parents=True, exist_ok=True)
    told = real_lab.Said(made / "lab.stderr", lambda line: None)  # its log lines are for a person who looks for them
    (made / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "chaosrunner.lab", "--spec", str(made / "spec.json"), "--state", str(made)]
    patience = START_LIMIT + float(spec.get("startup") or 0)
    try:
        async with _serving(command, told, patience, STOP_LIMIT, partial(_count, made, spec, progress)) as ready:
            yield ready, made
    finally:
        if state is None:
            shutil.rmtree(made, ignore_errors=True)


@asynccontextmanager
async def on_embedded_lab(spec: dict[str, Any], progress: Tell) -> AsyncIterator[Ready]:
    """The workload on an embedded lab that goes with the block; see `running_lab`."""
    async with running_lab(spec, progress=progress) as (ready, _):
        yield ready


@asynccontextmanager
async def on_real_lab(spec: dict[str, Any], state: Path, progress: Tell) -> AsyncIterator[Ready]:
    """The workload on the real lab at `state`, or on one of its own where none stands, for the length of the block.

    It ends by itself when this process dies, as an embedded lab does. Raises Refused where it does not start,
    UserError where its user can mend that.
    """
    with real_lab.nameless() as errors, real_lab.nameless() as written:
        told = real_lab.Said(errors, progress)
        written.write_text(json.dumps(spec))
        command = real_lab.command("serve", state, "--spec", str(written))
        async with _serving(command, told, math.inf, REAL_STOP_LIMIT, partial(_pass_on, told)) as ready:
            yield ready


@asynccontextmanager
async def _serving(
    command: list[str],
    said: real_lab.Said,
    patience: float,
    stop_limit: float,
    follow: Callable[[], Coroutine[Any, Any, None]],
) -> AsyncIterator[Ready]:
    """Runs a lab's program for the length of the block; `follow` runs until it serves, `patience` seconds at most."""
    with said.path.open("wb") as errors:
        process = await anyio.open_process(
            [*command, "--until-stdin-closes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for the run, which still needs the lab to end its requests
        )
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            ready = await _ready(process, said, patience)
            group.cancel_scope.cancel()
        with labs.of_rehearsal(ready.state):
            yield ready
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(process, stop_limit)


async def _pass_on(said: real_lab.Said) -> None:
    while True:
        said.look()
        await anyio.sleep(real_lab.LOOK)


async def _count(state: Path, spec: dict[str, Any], progress: Tell) -> None:
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


async def _ready(process: anyio.abc.Process, said: real_lab.Said, patience: float) -> Ready:
    assert process.stdout is not None
    lines = BufferedByteReceiveStream(process.stdout)
    try:
        with anyio.fail_after(patience):
            return msgspec.json.decode(await lines.receive_until(b"\n", 1 << 16), type=Ready)
    except TimeoutError:
        raise Refused(f"the lab did not start in {patience:.0f} s; its last words: {said.last}") from None
    except (anyio.IncompleteRead, anyio.EndOfStream, msgspec.MsgspecError):
        with anyio.move_on_after(1.0):  # it has closed its output: that is its end
            await process.wait()
        raise said.error(process.returncode) from None


async def _stop(process: anyio.abc.Process, limit: float) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(limit):
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
            "http2": False,
            "proxy": None,
            "replicas": Replicas(),
            "pod_header": ready.pod_header or drill.endpoint.pod_header,
        }
    )
    prometheus = drill.prometheus
    if prometheus is not None:
        update: dict[str, Any] = {"url": ready.prometheus, "headers": {}, "ca": None, "insecure": False}
        prometheus = prometheus.model_copy(update=update) if ready.prometheus else None
    toxiproxy = drill.drivers.toxiproxy.model_copy(update={"url": ready.toxiproxy, "proxy": "{{ pod }}"})
    gateway = Gateway(**ready.gateway) if ready.gateway else None
    turned = drill.model_copy(
        update={
            "workload": drill.workload.model_copy(update={"gateway": gateway}),
            "drivers": drill.drivers.model_copy(update={"toxiproxy": toxiproxy}),
            "context": ready.context,
            "production": False,
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
