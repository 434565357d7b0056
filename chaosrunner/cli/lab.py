"""Commands on the labs. What they do is in `lab_up`, `lab_verbs` and `lab_status`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from chaosrunner.cli.commands import Command, Group
from chaosrunner.cli.labs import Kind, complete_component, complete_node
from chaosrunner.cli.options import complete_drill, output_option, parameters_option


@click.group(cls=Group)
def lab() -> None:
    """Keep a lab running, for kubectl and for rehearsals.

    There are two. The embedded lab is a small cluster of local processes, for everybody; it ends with the command
    that keeps it. The real one is a real Kubernetes in namespaces of its own, for root on Linux; it stays until
    `lab down`, and its addresses are reached with `lab exec`.
    """


state_option = click.option(
    "--state", type=click.Path(path_type=Path, file_okay=False), help="The lab with this state folder."
)


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that tell which of the labs that stand is meant."""
    for option in (
        state_option,
        click.option(
            "--real", "kind", flag_value="real", type=str, help="The real lab, if an embedded one stands too."
        ),
        click.option("--embedded", "kind", flag_value="embedded", type=str, help="The embedded lab, likewise."),
    ):
        command = option(command)
    return command


_check = click.option("--check", is_flag=True, help="Change nothing; exit 0 if it is so, 1 if not.")


@lab.command(
    cls=Command,
    examples="""
    chaosrunner lab build
    chaosrunner lab build && chaosrunner lab up --real
    """,
)
def build() -> None:
    """Build the programs of the real lab, once.

    Kubernetes, etcd, containerd and what goes with them, in fixed versions, from their sources: about 10 minutes on
    2 cores. They are kept in the user's cache folder, which is printed. Instant when they are there.
    """
    from chaosrunner.cli.lab_verbs import build

    build()


@lab.command(
    cls=Command,
    examples="""
    chaosrunner lab image chaosrunner.tar
    docker load -i chaosrunner.tar
    ctr -n k8s.io images import chaosrunner.tar
    """,
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def image(file: Path) -> None:
    """Write an image of chaosrunner, for `chaosrunner job`.

    It is made of this installation and this machine's Python, without a registry. Prints the name that it has when
    it is loaded.
    """
    from chaosrunner.cli.lab_verbs import image

    image(file)


@lab.command(
    cls=Command,
    examples="""
    chaosrunner lab up
    chaosrunner lab up --drill lab-drain-node -p lab.replicas=5
    chaosrunner lab up --real --nodes 3
    # in another terminal:
    chaosrunner lab exec -- kubectl get pods -A -o wide
    """,
)
@click.option("--real", is_flag=True, help="A real Kubernetes. Needs root; builds first what is missing.")
@click.option("--nodes", type=click.IntRange(1, 50), help="Nodes beside `infra`.  [default: the drill's, else 3]")
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
    help="Folder for its state and logs. The embedded lab's is temporary where absent, the real one's "
    "/var/lib/chaosrunner-lab.",
)
@output_option("text", "json")
def up(**given: Any) -> None:
    """Bring a lab up with a workload, and tell how to reach it.

    The embedded lab runs until Ctrl-C or `lab down`, and leaves nothing. The real lab stays when this command
    returns: end it with `lab down`, which also clears what is left of one that was killed.
    """
    from chaosrunner.cli.lab_up import up

    up(**given)


@lab.command(
    "exec",
    cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    examples="""
    chaosrunner lab exec -- kubectl get pods -A -o wide
    chaosrunner lab exec -- kubectl exec -it -n lab deploy/model -- sh
    chaosrunner lab exec -- chaosrunner init --service model -n lab
    chaosrunner lab exec bash
    """,
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@_which
def execute(**given: Any) -> None:
    """Run a command in a lab.

    With KUBECONFIG set, and in the real lab's network, so that API server, Pods and Services answer. The command
    takes this one's place: terminal, signals and exit code are its own.
    """
    from chaosrunner.cli.lab_verbs import execute

    execute(**given)


@lab.command(
    cls=Command,
    examples="""
    chaosrunner lab status
    chaosrunner lab status -o json | jq '.[].node_states'
    """,
)
@_which
@output_option("text", "json")
def status(**given: Any) -> None:
    """Tell which labs stand, and how they are.

    As JSON a list, which is empty where no lab stands.
    """
    from chaosrunner.cli.lab_status import status

    status(**given)


@lab.command(
    cls=Command,
    examples="""
    chaosrunner lab down
    chaosrunner lab down --real
    """,
)
@_which
def down(**given: Any) -> None:
    """End a lab.

    Where no real lab stands, what is left of one that was killed is cleared. Doing it twice changes nothing.
    """
    from chaosrunner.cli.lab_verbs import down

    down(**given)


@lab.command(
    cls=Command,
    examples="""
    chaosrunner lab cut-node node2
    chaosrunner lab cut-node node2 --check && echo it is
    chaosrunner lab heal-node node2
    """,
)
@click.argument("node", shell_complete=complete_node)
@_check
@_which
def cut_node(node: str, check: bool, kind: Kind | None, state: Path | None) -> None:
    """Cut a node off from its cluster.

    Its Pods run on, and are not Ready when the control plane has missed its heartbeats for some seconds. The real
    lab takes the node off the network; in the embedded one its Pods can still be reached. Doing it twice changes
    nothing. The `command` steps of a drill's rehearsal find its lab by themselves.
    """
    from chaosrunner.cli.lab_verbs import cut

    cut(node, kind, state, check=check)


@lab.command(
    cls=Command,
    examples="""
    chaosrunner lab heal-node node2
    """,
)
@click.argument("node", shell_complete=complete_node)
@_check
@_which
def heal_node(node: str, check: bool, kind: Kind | None, state: Path | None) -> None:
    """Undo cut-node. Doing it twice changes nothing."""
    from chaosrunner.cli.lab_verbs import cut

    cut(node, kind, state, heal=True, check=check)


@lab.command(
    cls=Command,
    examples="""
    chaosrunner lab kill-component kube-apiserver
    chaosrunner lab kill-component kubelet@node1
    """,
)
@click.argument("component", shell_complete=complete_component)
@state_option
def kill_component(component: str, state: Path | None) -> None:
    """Kill a component of the real lab (SIGKILL).

    etcd, kube-apiserver, kube-controller-manager, kube-scheduler, or on a node kubelet@NODE, kube-proxy@NODE,
    containerd@NODE. Nothing starts it again but start-component.
    """
    from chaosrunner.cli.lab_verbs import component as change

    change(component, state)


@lab.command(
    cls=Command,
    examples="""
    chaosrunner lab start-component kube-apiserver
    """,
)
@click.argument("component", shell_complete=complete_component)
@state_option
def start_component(component: str, state: Path | None) -> None:
    """Start a killed component of the real lab again."""
    from chaosrunner.cli.lab_verbs import component as change

    change(component, state, start=True)
