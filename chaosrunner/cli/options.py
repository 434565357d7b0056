"""Options that several commands share: where recordings are, and kubectl's own for reaching a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from chaosrunner.errors import UserError
from chaosrunner.playbook.durations import parse_duration

Command = Callable[..., Any]

timelines_option = click.option(
    "--timelines",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("timelines"),
    envvar="CHAOSRUNNER_TIMELINES",
    show_default=True,
    help="Folder of the recordings.",
)

parameters_option = click.option(
    "-p", "--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="Value of a parameter; repeatable."
)


def read_parameters(given: tuple[str, ...]) -> dict[str, str]:
    """`-p name=value` as a mapping. Raises UserError where one has no equals sign."""
    pairs: dict[str, str] = {}
    for item in given:
        name, sign, value = item.partition("=")
        if not sign or not name:
            raise UserError(f"-p {item}: write -p name=value")
        pairs[name.strip()] = value
    return pairs


def cluster_options(command: Command) -> Command:
    """`--kubeconfig`, `--context`, `--namespace`, `--as`, `--as-group`, `--request-timeout`, as kubectl has them."""
    for option in (
        click.option("--request-timeout", help="Longest wait for one answer of the API server, like 30s."),
        click.option("--as-group", "as_groups", multiple=True, help="Group to impersonate; repeatable."),
        click.option("--as", "as_user", help="User to impersonate."),
        click.option("-n", "--namespace", help="Namespace, instead of the drill's."),
        click.option("--context", help="Context of the kubeconfig, instead of the drill's."),
        click.option("--kubeconfig", type=click.Path(), help="Kubeconfig, instead of KUBECONFIG or ~/.kube/config."),
    ):
        command = option(command)
    return command


def read_timeout(text: str | None) -> float | None:
    """`--request-timeout` in seconds; kubectl's 0 means none."""
    if text is None or text == "0":
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UserError(f"--request-timeout: {error}") from None
