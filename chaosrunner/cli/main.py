"""The `chaosrunner` command."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click
from click.shell_completion import get_completion_class

from chaosrunner import __version__
from chaosrunner.cli import agent, comparing, drills, files, lab, probe, records, recovery
from chaosrunner.cli.commands import Command, Group
from chaosrunner.cli.ending import bug, fail, user_error
from chaosrunner.errors import UserError


@click.group(cls=Group)
@click.version_option(__version__, prog_name="chaosrunner", message="%(prog)s %(version)s")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    envvar="CHAOSRUNNER_LOG_LEVEL",
    show_default=True,
    help="Least level of log lines on standard error.",
)
@click.option("--log-json", is_flag=True, envvar="CHAOSRUNNER_LOG_JSON", help="Log lines as JSON.")
def cli(**_: Any) -> None:
    """Chaos and recovery drills for Kubernetes services that stream.

    \b
    See it work, no cluster needed:
      chaosrunner rehearse lab-evict-one-replica
    A drill of your own:
      chaosrunner init --service chat > drill.yaml
      chaosrunner plan drill.yaml
      chaosrunner run drill.yaml

    \b
    Exit codes:
      0  passed                      4  aborted
      1  a check failed              5  rollback failed
      2  bad usage or bad file       6  refused before anything was changed
      3  inconclusive               70  a bug in chaosrunner
    """


@click.command(
    cls=Command,
    examples="""
    chaosrunner completion bash > ~/.local/share/bash-completion/completions/chaosrunner
    chaosrunner completion zsh > "${fpath[1]}/_chaosrunner"
    chaosrunner completion fish > ~/.config/fish/completions/chaosrunner.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell."""
    made = get_completion_class(shell)
    assert made is not None  # click knows these three
    click.echo(made(cli, {}, "chaosrunner", "_CHAOSRUNNER_COMPLETE").source())


for command in (
    drills.rehearse,
    files.init,
    files.validate,
    drills.plan,
    drills.run,
    drills.job,
    probe.probe,
    records.report,
    records.timeline,
    comparing.compare,
    records.runs,
    recovery.recover,
    lab.lab,
    agent.agent,
    files.schema,
    completion,
):
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every way to end has its exit code, and no user error shows a traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was begun is ended in order
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        result: Any = cli.main(arguments, prog_name="chaosrunner", standalone_mode=False)
    except click.Abort:
        click.echo("aborted", err=True)
        return 4
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        click.echo(f"error: {error.format_message()}", err=True)
        click.echo(f"see {error.ctx.command_path if error.ctx else 'chaosrunner'} --help", err=True)
        return error.exit_code
    except UserError as error:
        return fail(error)
    except BaseExceptionGroup as group:
        found = user_error(group)
        return fail(found) if found else bug()
    except Exception:
        return bug()
    return result if isinstance(result, int) else 0
