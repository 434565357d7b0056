from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says nothing on a shared machine.
settings.register_profile("chaosrunner", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chaosrunner")


# What is installed beside the interpreter (kubectl) goes before what the machine has, also without activation.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
