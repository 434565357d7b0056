"""The agent, built as users build it, and networks of the tests' own to try it in."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaosrunner.errors import UserError
from chaosrunner.lab.real import binaries
from tests.agent.places import Network


@pytest.fixture(scope="session")
def agent() -> Path:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("namespaces of the test's own need root on Linux")
    for tool in ("ip", "nft", "tc", "nsenter", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    try:
        return binaries.agent(print)
    except UserError as error:
        pytest.skip(f"the agent cannot be built: {error}")


@pytest.fixture
def network(agent: Path) -> Iterator[Network]:
    made = Network(agent)
    try:
        yield made
    finally:
        made.close()
