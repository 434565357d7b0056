from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaosrunner.lab.real.api import Api
from tests.lab.test_lab import RunningLab, lab


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """An embedded lab: an API server over plain http that any client takes for a real one."""
    with lab(tmp_path_factory.mktemp("lab"), nodes=2) as found:
        yield found


@pytest.fixture
def api(running: RunningLab) -> Api:
    return Api.of_kubeconfig(Path(running.ready["kubeconfig"]))
