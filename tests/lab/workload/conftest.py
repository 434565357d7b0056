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


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, Program]]:
    """Two model servers for tests that neither end them nor read their logs."""
    folder = tmp_path_factory.mktemp("replicas")
    arguments = ["--startup", "0", "--tokens-per-second", "200"]
    programs = Program("model_server", folder, arguments), Program("model_server", folder, arguments)
    yield programs
    for program in programs:
        program.kill()
