"""`python -m chaosrunner.lab.real VERB`: the program of the real lab; `--help` lists the verbs.

What a verb has to tell is one JSON object on one line of standard output; progress and errors go to standard error.
Exit codes: 0 done, 1 the lab or its workload did not come up, 2 the user has something to mend.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from chaosrunner.errors import UserError
from chaosrunner.lab import spec as specs
from chaosrunner.lab.real import binaries, images, outside, owners, requirements, serve, syscalls
from chaosrunner.lab.real.state import DEFAULT, State


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if sys.platform != "linux":
        return _fail("a real lab needs Linux; the embedded lab runs here too", 2)
    # For all that is called from here, the keeper and what it calls included.
    os.environ["PATH"] = requirements.search_path()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was begun is undone
    try:
        return int(options.run(options) or 0)
    except (UserError, OSError) as error:
        return _fail(str(error), 2)
    except outside.NotUp as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _fail(text: str, code: int) -> int:
    sys.stderr.write("".join(f"error: {line}\n" for line in text.splitlines()))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaosrunner.lab.real", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(name: str, run: Any, help: str, *, state: bool = True) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=help)
        made.set_defaults(run=run)
        if state:
            made.add_argument("--state", type=Path, default=DEFAULT, help="folder of the lab (%(default)s)")
        return made

    verb("build", _build, "build the lab's programs, unless they are there", state=False)
    image = verb("image", _image, "write the runner's image as an archive", state=False)
    image.add_argument("file", type=Path)
    image = verb("agent", _agent, "write the image of the agent that makes faults in Pods", state=False)
    image.add_argument("file", type=Path)
    image.add_argument("--architecture", choices=binaries.ARCHITECTURES, default="")
    up = verb("up", _up, "bring up a lab that stays")
    up.add_argument("--nodes", type=int, help="besides node infra; 3, or as many as the spec says")
    up.add_argument("--spec", type=Path, help="JSON file: a drill's `lab:` section, to be deployed")
    up.add_argument("--until-stdin-closes", action="store_true", help="end if stdin closes before the lab is up")
    on = verb("serve", _serve, "serve a drill's workload until told to end, on the lab that stands or one of its own")
    on.add_argument("--spec", type=Path, required=True)
    on.add_argument("--until-stdin-closes", action="store_true")
    verb("down", _down, "end the lab and clear all that is left of it")
    verb("status", _status, "tell what runs")
    inside = verb("exec", _exec, "run a command in the lab's network, with KUBECONFIG set")
    inside.add_argument("command", nargs=argparse.REMAINDER)
    for name, help in (("cut", "pull a node's cable"), ("heal", "plug it in again")):
        verb(name, _ask(name, "node"), help).add_argument("node")
    kill = verb(
        "kill", _ask("kill", "component", "signal"), "kill a component, such as kube-apiserver or kubelet@node1"
    )
    kill.add_argument("component")
    kill.add_argument("--signal", type=_signal, default=signal.SIGKILL)
    verb("start", _ask("start", "component"), "start it again").add_argument("component")
    hit = verb(
        "signal", _ask("signal", "namespace", "pod", "container", "signal"), "signal a container's first process"
    )
    hit.add_argument("--namespace", default="default")
    hit.add_argument("--container", help="the Pod's only one where absent")
    hit.add_argument("--signal", type=_signal, default=signal.SIGKILL)
    hit.add_argument("pod")
    load = verb("import", _ask("import", "image", "nodes"), "give nodes an image")
    load.add_argument("--node", dest="nodes", action="append", default=[], help="all where absent")
    load.add_argument("image", type=Path, help="archive")
    return parser


def _signal(text: str) -> signal.Signals:
    try:
        return signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except KeyError:
        raise argparse.ArgumentTypeError(f"no signal {text!r}") from None


def _tell(doing: str) -> None:
    sys.stderr.write(f"{doing}\n")
    sys.stderr.flush()


def _answer(found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def _state(options: argparse.Namespace) -> State:
    return State(options.state.resolve())


def _build(options: argparse.Namespace) -> None:
    folder = binaries.build(_tell).folder
    binaries.agent(_tell)
    _answer({"folder": str(folder)})


def _image(options: argparse.Namespace) -> None:
    _write(images.runner(), options.file)


def _agent(options: argparse.Namespace) -> None:
    _write(images.agent(_tell, options.architecture), options.file)


def _write(made: images.Image, file: Path) -> None:
    shutil.copyfile(made.tar, file)
    _answer({"reference": made.reference, "file": str(file.resolve())})


def _up(options: argparse.Namespace) -> None:
    spec = specs.read(options.spec.read_bytes()) if options.spec else None
    nodes = options.nodes if options.nodes is not None else (spec or specs.LabSpec()).nodes
    _answer(serve.up(_state(options), nodes, spec, _tell, until_stdin_closes=options.until_stdin_closes))


def _serve(options: argparse.Namespace) -> None:
    spec = specs.read(options.spec.read_bytes())
    serve.serve(_state(options), spec, _tell, _answer, until_stdin_closes=options.until_stdin_closes)


def _down(options: argparse.Namespace) -> None:
    _answer({"ended": outside.down(_state(options))})


def _status(options: argparse.Namespace) -> None:
    state = _state(options)
    _answer(outside.standing(state) | outside.ask(state, do="status") | {"abandoned": owners.abandoned(state.owners)})


def _exec(options: argparse.Namespace) -> None:
    state = _state(options)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UserError("exec: give a command, such as: exec -- kubectl get nodes")
    told = outside.standing(state)
    environment = outside.environment(state)
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        raise UserError(f"exec: {command[0]}: no such program")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is executed would go on to
    syscalls.enter_network(Path(told["network"]))
    os.execve(program, command, environment)


def _ask(do: str, *names: str) -> Any:
    """A verb that the keeper carries out."""

    def run(options: argparse.Namespace) -> None:
        values = {name: getattr(options, name) for name in names}
        outside.ask(
            _state(options), do=do, **{n: str(v.resolve()) if isinstance(v, Path) else v for n, v in values.items()}
        )
        _answer({})

    return run


if __name__ == "__main__":
    sys.exit(main())
