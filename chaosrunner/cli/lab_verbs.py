"""What is done to a lab that stands, from the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import click

from chaosrunner.cli import labs, real_lab
from chaosrunner.cli.labs import Kind, Lab
from chaosrunner.cli.network import NO_PROXY
from chaosrunner.errors import Refused, UserError
from chaosrunner.journal import process

DOWN_LIMIT = 30.0
"""Longest end of an embedded lab, seconds."""

_say = partial(click.echo, err=True)


def build() -> None:
    real_lab.check_machine(root=False)
    told = real_lab.call("build", None, tell=_say)
    click.echo(told.get("folder", ""))


def image(file: Path) -> None:
    _write_image("image", file)


def agent_image(file: Path, architecture: str | None) -> None:
    _write_image("agent", file, *(["--architecture", architecture] if architecture else []))


def _write_image(verb: str, file: Path, *options: str) -> None:
    if not file.resolve().parent.is_dir():
        raise UserError(f"{file}: there is no such folder; make it first")
    if sys.platform != "linux":
        raise UserError("an image is made of Linux programs, and here are none: build one with `pip install` on Linux")
    told = real_lab.call(verb, None, str(file), *options, tell=_say)
    click.echo(told["reference"])


def execute(command: tuple[str, ...], kind: Kind | None, state: Path | None) -> None:
    """Becomes the command: its exit code, its signals and its terminal are its own."""
    lab = labs.chosen(kind, state)
    environ = os.environ | {"KUBECONFIG": lab.kubeconfig}
    words = list(command)
    if lab.kind == "real":
        words = real_lab.command("exec", Path(lab.state), "--", *command)
        environ |= NO_PROXY
    else:
        # What is installed beside the interpreter (kubectl) goes before what the machine has.
        environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
        program = shutil.which(words[0], path=environ["PATH"])
        if program is None:
            raise UserError(f"no such command: {words[0]}")
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores this signal, and what is executed would go on to.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(words[0], words, environ)
    except OSError as error:
        raise UserError(f"{words[0]}: {error.strerror}") from error


def cut(node: str, kind: Kind | None, state: Path | None, *, heal: bool = False, check: bool = False) -> None:
    """Cuts a node off, or heals it; with `check` only tells whether it is so, by the exit code too."""
    lab = labs.chosen(kind, state)
    if check:
        if node not in lab.nodes:
            raise UserError(f"no node {node!r}; there are {', '.join(lab.nodes)}")
        is_cut = node in (lab.cut if lab.kind == "real" else _control(lab, "status", method="GET")["cut"])
        click.echo(f"{node} is {'cut off' if is_cut else 'not cut off'}")
        raise click.exceptions.Exit(int(is_cut == heal))
    verb = "heal" if heal else "cut"
    if lab.kind == "real":
        real_lab.call(verb, Path(lab.state), node, tell=_say)
    else:
        _control(lab, verb, node=node)
    click.echo(f"{node} {'healed' if heal else 'cut off'}")


def component(name: str, state: Path | None, *, start: bool = False) -> None:
    lab = labs.chosen("real", state)
    real_lab.call("start" if start else "kill", Path(lab.state), name, tell=_say)
    click.echo(f"{name} {'started' if start else 'killed'}")


def down(kind: Kind | None, state: Path | None) -> None:
    """Ends a lab. Where no real one stands, what is left of one that was killed is cleared."""
    if labs.standing(kind, state):
        lab = labs.chosen(kind, state)
        if lab.kind == "real":
            real_lab.call("down", Path(lab.state), tell=_say)
        else:
            _end(lab)
        click.echo(f"the lab at {lab.state} has ended")
    elif kind != "embedded" and real_lab.is_possible() and (state or real_lab.STATE).exists():
        folder = state or real_lab.STATE
        cleared = real_lab.call("down", folder, tell=_say).get("ended")
        click.echo(f"no lab stands; what one left at {folder} is cleared" if cleared else "no lab stands")
    else:
        click.echo("no lab stands")


def _end(lab: Lab) -> None:
    """Ends an embedded lab as Ctrl-C does."""
    keeper = lab.process
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_LIMIT
    while process.liveness(keeper) == "alive":
        if time.monotonic() > deadline:
            raise Refused(f"the lab at {lab.state} has not ended in {DOWN_LIMIT:.0f} s; process {keeper.pid} keeps it")
        time.sleep(0.05)


def _control(lab: Lab, verb: str, *, method: str = "POST", **query: str) -> dict[str, Any]:
    """Asks the embedded lab for what no Kubernetes API offers. Raises UserError with its reason to refuse."""
    address = urlsplit(lab.control or "")
    connection = HTTPConnection(address.hostname or "", address.port, timeout=10)
    try:
        connection.request(method, f"/{verb}?{urlencode(query)}" if query else f"/{verb}")
        answer = connection.getresponse()
        said: dict[str, Any] = json.loads(answer.read())
    except OSError as error:
        raise Refused(f"the lab at {lab.state} does not answer: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise UserError(said["error"])
    return said
