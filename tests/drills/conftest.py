"""Which drills are rehearsed on the embedded lab whenever all tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

SELDOM = ("lab-drain-node", "lab-delete-pod", "lab-gateway-delay")
"""Held to the same plan as the others, only with `-m slow`: what they do is also done in tests of the engine and of the
rights, a whole `lab-drain-node` among them. The real lab runs all."""


@pytest.hookimpl(tryfirst=True)  # before those marked slow are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (
            item.path.parent == Path(__file__).parent
            and isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and item.callspec.params.get("drill") in SELDOM
        ):
            item.add_marker(pytest.mark.slow)
