"""Prints manifests for the command line: the rights of a drill, and the Job that runs it inside the cluster."""

from __future__ import annotations

import click

from chaosrunner.cli.options import read_parameters
from chaosrunner.cli.output import print_json
from chaosrunner.engine.run import UNDO_LIMIT
from chaosrunner.errors import UserError
from chaosrunner.plan import job
from chaosrunner.plan.rbac import grant, read_subject
from chaosrunner.playbook import BoundDrill, load_drill

ACCOUNT = "chaosrunner"


def print_rights(
    drill: str, parameters: tuple[str, ...], namespace: str | None, subject: str | None, output: str
) -> None:
    bound = _loaded(drill, parameters)
    place = _namespace(bound, namespace)
    made = grant(bound, place, read_subject(subject or ACCOUNT, place))
    if output == "json":
        print_json({"apiVersion": "v1", "kind": "List", "items": made.manifests()})
    else:
        click.echo(made.text(), nl=False)


def print_job(
    drill: str,
    image: str,
    name: str | None,
    namespace: str | None,
    service_account: str,
    volume: str,
    secrets: tuple[str, ...],
    selectors: tuple[str, ...],
    tolerations: tuple[str, ...],
    parameters: tuple[str, ...],
    cluster: str | None,
) -> None:
    bound = _loaded(drill, parameters)
    bound.check_environment("in-cluster")
    if bound.drill.production and cluster is None:
        raise UserError("this is a production drill: give --cluster in-cluster, the name of a Pod's own cluster")
    options = job.Options(
        image=image,
        name=name or job.name_of(bound.drill.metadata.name),
        namespace=_namespace(bound, namespace),
        service_account=service_account,
        volume=job.read_volume(volume),
        secrets=secrets,
        node_selector=dict(_label(text) for text in selectors),
        tolerations=tolerations,
        parameters=parameters,
        cluster=cluster,
        rollback=UNDO_LIMIT,
    )
    for remark in job.remarks(bound, options):
        click.echo(f"warning: {remark}", err=True)
    click.echo(job.text(bound, options), nl=False)


def _loaded(drill: str, parameters: tuple[str, ...]) -> BoundDrill:
    bound = load_drill(drill, read_parameters(parameters))
    for problem in bound.warnings:
        click.echo(str(problem), err=True)
    return bound


def _namespace(bound: BoundDrill, given: str | None) -> str:
    """Without a cluster no kubeconfig tells it. Raises UserError."""
    namespace = given or bound.drill.namespace
    if namespace is None:
        raise UserError(f"drill {bound.drill.metadata.name} names no namespace: give -n NAMESPACE")
    return namespace


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise UserError(f"--node-selector {text}: write LABEL=VALUE")
    return key, value
