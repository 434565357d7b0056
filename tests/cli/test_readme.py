"""What the README shows works, and what works is in the README."""

from __future__ import annotations

import re
from pathlib import Path

import click
from click.testing import CliRunner

from chaosrunner.cli.main import cli
from tests.cli.command import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_playbook_is_a_good_one(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (shown,) = (block for block in blocks if "kind: Playbook" in block)
    (tmp_path / "p.yaml").write_text(shown)
    result = CliRunner().invoke(cli, ["validate", str(tmp_path / "p.yaml")])
    assert (result.exit_code, result.output) == (0, "1 file ok\n")


def test_its_table_has_every_command() -> None:
    table = README.partition("| command | what it does |")[2].partition("\n\n")[0]
    listed = {
        name for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)", cell)
    }
    assert listed == set(cli.commands)


def test_its_shell_lines_name_commands_and_options_that_exist() -> None:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    calls = [re.split(r"#|\|", line)[0].split() for line in lines if line.startswith("chaosrunner ")]
    assert len(calls) >= 5
    for _, name, *arguments in calls:
        command = cli.commands[name]
        while isinstance(command, click.Group):
            command = command.commands[arguments.pop(0)]
        if "--" in arguments:
            arguments = arguments[: arguments.index("--")]  # what follows are words of another program
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in arguments if re.match(r"--?[a-z]", word)} <= known, name


def test_its_folders_exist() -> None:
    table = README.partition("| folder | what lives there |")[2].partition("\n\n")[0]
    folders = re.findall(
        r"`([\w/]+/)`", "\n".join(row.partition("|")[2].partition("|")[0] for row in table.splitlines())
    )
    assert {folder for folder in folders if not (ROOT / folder).is_dir()} == set()
    rooms = {path.name for path in (ROOT / "chaosrunner").iterdir() if (path / "__init__.py").exists()}
    assert {folder.split("/")[1] for folder in folders if folder.startswith("chaosrunner/")} == rooms


def test_its_exit_codes_are_those_of_the_help() -> None:
    table = README.partition("| exit code | when |")[2].partition("\n\n")[0]
    help_text = cli.get_help(click.Context(cli))
    codes = re.findall(r"^\| (\d+) \|", table, re.MULTILINE)
    assert codes == ["0", "1", "2", "3", "4", "5", "6", "70"]
    assert all(re.search(rf"\b{code}  \w", help_text) for code in codes)
