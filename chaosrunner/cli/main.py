"""The `chaosrunner` command."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import click
from click.shell_completion import get_completion_class

from chaosrunner import __version__, logs
from chaosrunner.cli import drills, files, lab, records, recovery
from chaosrunner.cli.output import BUG, fail
from chaosrunner.errors import UserError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="chaosrunner")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    envvar="CHAOSRUNNER_LOG_LEVEL",
    show_default=True,
    help="Least level of log lines on standard error.",
)
@click.option("--log-json", is_flag=True, envvar="CHAOSRUNNER_LOG_JSON", help="Log lines as JSON.")
def cli(log_level: str, log_json: bool) -> None:
    """Chaos and recovery drills for Kubernetes services that stream.

    \b
    See it work, without a cluster:   chaosrunner rehearse lab-evict-one-replica
    A drill of your own:              chaosrunner init --service chat > drill.yaml
                                      chaosrunner plan drill.yaml
                                      chaosrunner run drill.yaml

    Exit codes: 0 passed, 1 a check failed, 2 bad usage or bad file, 3 inconclusive, 4 aborted, 5 rollback failed,
    6 refused before anything was changed, 70 a bug in chaosrunner.
    """
    logs.configure(level=log_level, json=log_json)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    chaosrunner completion bash > ~/.local/share/bash-completion/completions/chaosrunner
    chaosrunner completion fish > ~/.config/fish/completions/chaosrunner.fish
    """
    made = get_completion_class(shell)
    assert made is not None  # click knows these three
    click.echo(made(cli, {}, "chaosrunner", "_CHAOSRUNNER_COMPLETE").source())


for command in (
    files.validate,
    files.schema,
    files.init,
    drills.plan,
    drills.run,
    drills.rehearse,
    records.report,
    records.timeline,
    records.runs,
    recovery.recover,
    lab.lab,
):
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every way to end has its exit code, and no user error shows a traceback."""
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        result: Any = cli.main(arguments, prog_name="chaosrunner", standalone_mode=False)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort:
        click.echo("aborted", err=True)
        return 4
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except UserError as error:
        return fail(error)
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away (`| head`): nothing more to say, to nobody
        return 0
    except BaseExceptionGroup as group:
        return _group(group)
    except Exception:
        return _bug()
    return result if isinstance(result, int) else 0


def _group(group: BaseExceptionGroup[BaseException]) -> int:
    """A task group wraps what its tasks raise; an error for the user is one all the same."""
    errors, rest = group.split(UserError)
    if errors is not None and rest is None:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        assert isinstance(first, UserError)
        return fail(first)
    return _bug()


def _bug() -> int:
    traceback.print_exc()
    click.echo(
        "this is a bug in chaosrunner; what was recorded is kept, and `chaosrunner recover` undoes changes", err=True
    )
    return BUG
