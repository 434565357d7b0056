"""Commands on drills: plan, run, rehearse. What they do is in `running`, which brings all that a run needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from chaosrunner.cli.commands import Command
from chaosrunner.cli.options import (
    cluster_options,
    complete_drill,
    junit_option,
    metrics_option,
    output_option,
    parameters_option,
    timelines_option,
)
from chaosrunner.errors import UserError


@click.command(
    cls=Command,
    examples="""
    chaosrunner plan drills/chat.yaml
    chaosrunner plan drills/chat.yaml -p concurrency=8 -o json | jq .problems
    chaosrunner plan drills/chat.yaml --rbac | kubectl apply -f -
    chaosrunner plan drills/chat.yaml --rbac --subject group:game-days
    """,
)
@click.argument("drill", shell_complete=complete_drill)
@parameters_option
@cluster_options(drill=True)
@click.option(
    "--rbac",
    is_flag=True,
    help="Print instead the Roles and bindings with exactly the rights that the drill needs, as YAML for kubectl. "
    "Asks no cluster; the drill or -n names the namespace.",
)
@click.option(
    "--subject",
    metavar="WHO",
    help="With --rbac: a ServiceAccount ([NAMESPACE/]NAME), user:NAME or group:NAME.  [default: chaosrunner]",
)
@output_option("text", "json")
def plan(rbac: bool, subject: str | None, **given: Any) -> None:
    """Tell what a drill would do; change nothing.

    Shows what would be touched, in which order, what each eviction would answer, and what is missing. Sends reads,
    access reviews and evictions with dryRun=All, nothing else. Exit code 6 if `run` would refuse.
    """
    if rbac:
        from chaosrunner.cli.manifests import print_rights

        print_rights(given["drill"], given["parameters"], given["namespace"], subject, given["output"])
        return
    if subject is not None:
        raise UserError("--subject says who gets the rights of --rbac: give that too")
    from chaosrunner.cli.running import plan

    raise click.exceptions.Exit(plan(**given))


@click.command(
    cls=Command,
    examples="""
    chaosrunner job drills/chat.yaml --image registry.example.com/chaosrunner:1 > job.yaml
    kubectl apply -f job.yaml && kubectl -n inference logs -f job/chaosrunner-chat
    chaosrunner job drills/chat.yaml --image IMAGE --env-from chat-api-key --volume claim:recordings
    """,
)
@click.argument("drill", shell_complete=complete_drill)
@click.option("--image", required=True, help="Image whose entry point is chaosrunner.")
@click.option("--name", metavar="NAME", help="Name of the Job.  [default: chaosrunner-DRILL]")
@click.option(
    "-n", "--namespace", metavar="NAME", help="Namespace of the workload and the Job, instead of the drill's."
)
@click.option(
    "--service-account", default="chaosrunner", show_default=True, metavar="NAME", help="ServiceAccount of the Job."
)
@click.option(
    "--volume",
    default="claim",
    show_default=True,
    metavar="KIND",
    help="Where recordings go: `claim` (makes a PersistentVolumeClaim of 1Gi), `claim:NAME` (one that is there), "
    "`empty` (an emptyDir, gone with the Pod), or `host:/PATH` (a folder of the node, writable for user 65532).",
)
@click.option(
    "--env-from", "secrets", multiple=True, metavar="SECRET", help="Environment from this Secret, for credentials."
)
@click.option(
    "--node-selector", "selectors", multiple=True, metavar="LABEL=VALUE", help="Only on nodes with this label."
)
@click.option("--tolerate", "tolerations", multiple=True, metavar="KEY", help="Also on nodes with a taint of this key.")
@click.option(
    "--cluster", metavar="NAME", help="Let a drill marked `production: true` run; the name of a Pod's own: in-cluster."
)
@parameters_option
def job(**given: Any) -> None:
    """Print what runs a drill inside the cluster.

    As YAML for kubectl: a ServiceAccount with the Roles of `plan --rbac`, a ConfigMap with the drill and its playbook,
    a place for the recordings, and a Job without privileges. Asks no cluster. The Job keeps away from the workload's
    nodes where it can, and refuses a drill that may take its own Pod or node. Deleting it aborts the drill: what was
    changed is put back, and the report is still made.
    """
    from chaosrunner.cli.manifests import print_job

    print_job(**given)


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options: tuple[Callable[..., Any], ...] = (
        output_option("text", "json"),
        metrics_option,
        click.option("--stop-file", type=click.Path(path_type=Path), help="Abort when this file appears."),
        junit_option,
        click.option(
            "--expect",
            multiple=True,
            metavar="VERDICT",
            help="Exit with 0 if this is the verdict and with 1 if another is. `failed:NAME,NAME` also wants these "
            "checks (by name, or by a metric in them) among those that failed. Give it once for all drills, or once "
            "for each, in their order.",
        ),
        click.option("-x", "--exitfirst", is_flag=True, help="Stop after the first drill that is not as wanted."),
        click.option("-m", "by_tag", metavar="TAGS", help="Only drills with these tags: `smoke and not slow`."),
        click.option("-k", "by_name", metavar="NAMES", help="Only drills whose names match: `evict or drain`."),
        timelines_option,
        parameters_option,
    )
    for option in options:
        command = option(command)
    return command


@click.command(
    cls=Command,
    examples="""
    chaosrunner run drills/chat.yaml
    chaosrunner run drills/chat.yaml -p concurrency=8 --context staging -n inference
    chaosrunner run drills/ -m smoke -x --yes --junit out.xml
    """,
)
@click.argument("drills", nargs=-1, required=True, metavar="DRILL...", shell_complete=complete_drill)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before the first change.")
@click.option(
    "--cluster",
    metavar="NAME",
    help="The cluster's name in the kubeconfig (in a Pod: in-cluster), without which a drill marked `production: true` "
    "asks for it.",
)
@cluster_options(drill=True)
@_run_options
def run(**given: Any) -> None:
    """Run drills on the cluster that each one names.

    Plans first, asks, and then runs: baseline, faults, recovery, undo, report. DRILL is a file, a shipped drill's
    name, or a folder of drills. SIGINT or SIGTERM aborts: what was changed is put back, requests in flight end, and
    the report is still made; a second one does not wait for the requests. Where an earlier run died and left something
    changed, that is to be put back first: on a terminal this is offered, else the drill is refused.

    The exit code is the verdict's; of several drills the worst, in the order 5, 4, 6, 2, 3, 1, 0.
    """
    from chaosrunner.cli.running import run

    raise click.exceptions.Exit(run(**given))


@click.command(
    cls=Command,
    examples="""
    chaosrunner rehearse lab-evict-one-replica
    chaosrunner rehearse lab-drain-node -p concurrency=8 -p lab.startup=2s
    chaosrunner rehearse drills/ -m lab -k 'evict or delete' --junit out.xml
    chaosrunner rehearse --real lab-evict-one-replica
    """,
)
@click.argument("drills", nargs=-1, required=True, metavar="DRILL...", shell_complete=complete_drill)
@click.option(
    "--real", is_flag=True, help="On a real Kubernetes: the one that `lab up --real` left, else one of its own."
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --real: the lab with this state folder.  [default: /var/lib/chaosrunner-lab]",
)
@_run_options
def rehearse(**given: Any) -> None:
    """Run drills on a lab.

    On the embedded lab, a small cluster of local processes, as each drill's `lab:` section describes it: an API
    server, controllers, a node agent, model servers and a gateway, on loopback. No cluster, no root. With --real the
    same workload runs on a real Kubernetes on this machine; that needs root. All else is as with `run`, but nothing
    is asked.
    """
    from chaosrunner.cli.running import rehearse

    raise click.exceptions.Exit(rehearse(**given))
