from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says nothing on a shared machine.
settings.register_profile("chaosrunner", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chaosrunner")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
