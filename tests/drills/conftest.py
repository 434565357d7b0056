"""Which drills are rehearsed on the embedded lab whenever all tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

SELDOM = (
    "lab-evict-one-replica-graceful",
    "lab-drain-node",
    "lab-delete-pod",
    "lab-cordon-and-rollback",
    "lab-gateway-delay",
)
"""Held to the same plan as the others, only with `-m slow`: `make drill` rehearses the graceful twin, and what the
others do is also done in tests of the engine and of the rights, a whole `lab-drain-node` among them. The real lab runs
all."""

OF_SELDOM = (
    "test_the_graceful_twin_loses_nothing_and_was_exposed",
    "test_the_gateway_was_late_by_its_delay",
    "test_what_replicas_were_asked_directly_is_none_of_the_services",
)
"""What looks at one of those alone."""


@pytest.hookimpl(tryfirst=True)  # before those marked slow are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and isinstance(item, pytest.Function):
            callspec = getattr(item, "callspec", None)
            drill = callspec.params.get("drill") if callspec else None
            if drill in SELDOM or item.originalname in OF_SELDOM:
                item.add_marker(pytest.mark.slow)
