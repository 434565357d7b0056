"""Options that several commands share, and what the shell may offer for them. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from chaosrunner.cli.commands import Duration
from chaosrunner.errors import UserError

if TYPE_CHECKING:
    from chaosrunner.cluster import ClusterConfig

Decorated = Callable[..., Any]

TIMELINES = Path("timelines")

timelines_option = click.option(
    "--timelines",
    type=click.Path(path_type=Path, file_okay=False),
    default=TIMELINES,
    envvar="CHAOSRUNNER_TIMELINES",
    show_default=True,
    help="Folder of the recordings.",
)

parameters_option = click.option(
    "-p", "--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="Value of a parameter; repeatable."
)


def output_option(*formats: str) -> Callable[[Decorated], Decorated]:
    """`-o`, as kubectl has it; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        "output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Format of standard output.",
    )


junit_option = click.option(
    "--junit",
    "junit_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write JUnit XML to this file.",
)

metrics_option = click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve live metrics for Prometheus at /metrics, on loopback unless HOST says otherwise.",
)


def cluster_options(drill: bool) -> Callable[[Decorated], Decorated]:
    """kubectl's own options for reaching a cluster; `drill` tells whether a drill names context and namespace."""
    instead = ", instead of the drill's" if drill else ""

    def decorate(command: Decorated) -> Decorated:
        for option in (
            click.option(
                "--request-timeout",
                type=Duration(),
                help="Longest wait for an answer of the API server, the connection included; 0 for no limit.",
            ),
            click.option("--as-group", "as_groups", multiple=True, metavar="GROUP", help="Impersonate this group too."),
            click.option("--as", "as_user", metavar="USER", help="Impersonate this user."),
            click.option("-n", "--namespace", metavar="NAME", help=f"Namespace{instead}."),
            click.option("--context", metavar="NAME", help=f"Context of the kubeconfig{instead}."),
            click.option(
                "--kubeconfig",
                type=click.Path(dir_okay=False),
                help="Kubeconfig, instead of $KUBECONFIG or ~/.kube/config.",
            ),
        ):
            command = option(command)
        return command

    return decorate


CLUSTER = ("kubeconfig", "context", "namespace", "as_user", "as_groups", "request_timeout")
"""Names of the values of `cluster_options`."""


def cluster_config(flags: dict[str, Any], *, context: str | None = None, namespace: str | None = None) -> ClusterConfig:
    """How to reach the cluster: as the command line says, else by this context and namespace."""
    from chaosrunner.cluster import ClusterConfig
    from chaosrunner.cluster.config import LONGEST_CONNECT

    timeout = flags["request_timeout"]
    limits: dict[str, float] = {}
    if timeout is not None:
        limits = {"request_timeout": timeout, "connect_timeout": min(timeout or LONGEST_CONNECT, LONGEST_CONNECT)}
    chosen = flags["context"] or context
    return ClusterConfig(
        kubeconfig=flags["kubeconfig"],
        context=None if chosen == "in-cluster" else chosen,
        namespace=flags["namespace"] or namespace,
        as_user=flags["as_user"],
        as_groups=tuple(flags["as_groups"]),
        **limits,
    )


def read_parameters(given: tuple[str, ...]) -> dict[str, str]:
    """`-p name=value` as a mapping. Raises UserError where one has no equals sign, or a name comes twice."""
    pairs: dict[str, str] = {}
    for item in given:
        name, sign, value = item.partition("=")
        name = name.strip()
        if not sign or not name:
            raise UserError(f"-p {item}: write -p NAME=VALUE")
        if name in pairs:
            raise UserError(f"-p {item}: {name} is given twice")
        pairs[name] = value
    return pairs


def check_folder(option: str, path: Path | None) -> None:
    """Raises UserError where there is no folder for the file."""
    if path is not None and not path.resolve().parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.resolve().parent}")


def check_target(option: str, path: Path | None) -> None:
    """Refuses early what could only fail late. Raises UserError where the file cannot be written."""
    check_folder(option, path)
    if path is None:
        return
    there = path.exists()
    if there and not path.is_file():
        return  # a pipe or a device: to open it may wait, or tell its reader that all has been written
    try:
        path.open("a").close()
    except OSError as error:
        raise UserError(f"{option} {path}: {error.strerror}") from error
    if not there:
        path.resolve().unlink()  # a link that led nowhere stays


def write_target(option: str, path: Path, text: str) -> None:
    """Writes the whole file. Raises UserError where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{option} {path}: {error.strerror}") from error


# --- what the shell may offer -------------------------------------------------------------------------------


def _files(incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _names(kind: str, incomplete: str) -> list[CompletionItem]:
    """Names of shipped files. Folders are read here directly: the playbook room would bring pydantic with it."""
    package = Path(__file__).parent.parent
    folders = (Path(kind), package / "shipped" / kind, package.parent / kind)
    names = {path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.y*ml")}
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def complete_drill(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return (
        _names("drills", incomplete) if "/" not in incomplete and _names("drills", incomplete) else _files(incomplete)
    )


def complete_playbook(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _names("playbooks", incomplete) or _files(incomplete)


def complete_dialect(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from chaosrunner.probes.spec import PATHS

    return [CompletionItem(name) for name in PATHS if name.startswith(incomplete)]


def complete_recording(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`latest`, drills that have recordings, and run ids, newest first."""
    root = context.params.get("timelines") or TIMELINES
    runs = sorted(Path(root).glob("*/*/manifest.json"), key=lambda path: path.parent.name, reverse=True)
    names = ["latest", *sorted({path.parent.parent.name for path in runs}), *(path.parent.name for path in runs)]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="dir")]
