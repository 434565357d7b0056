from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says nothing on a shared machine.
settings.register_profile("chaosrunner", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chaosrunner")


# What is installed beside the interpreter (kubectl) goes before what the machine has, also without activation.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `real` or `slow` unless `-m` speaks of it. Not by `-m "not real"` in addopts: any other
    `-m` takes its place, and `-m "not lab"` would start a Kubernetes."""
    unasked = [name for name in ("real", "slow") if name not in config.option.markexpr]
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in unasked)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # Files that start labs go first: they take long, mostly waiting, and one begun last would be waited for alone.
    labs = {item.path for item in items if item.get_closest_marker("lab")}
    items.sort(key=lambda item: item.path not in labs)
