from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.workload.harness import Program

Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program of the workload; all of them end with the test."""
    programs: list[Program] = []

    def run(name: str, *arguments: str) -> Program:
        programs.append(Program(name, tmp_path, list(arguments)))
        return programs[-1]

    yield run
    for program in programs:
        program.kill()


@pytest.fixture
def serve(start: Start) -> Start:
    """Starts a model server that is ready at once, by default."""

    def run(*arguments: str) -> Program:
        return start("model_server", "--startup", "0", "--tokens-per-second", "200", *arguments)

    return run
