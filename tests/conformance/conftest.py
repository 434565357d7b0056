from __future__ import annotations

import pytest

from tests.labs import Lab, Namespace, embedded_lab, real_lab

__all__ = ["embedded_lab", "real_lab"]

LABS = [
    pytest.param("embedded", marks=pytest.mark.lab),
    pytest.param("real", marks=pytest.mark.real),
]


@pytest.fixture(scope="session", params=LABS)
def lab(request: pytest.FixtureRequest) -> Lab:
    """Each test runs on both labs; the real one only with `pytest -m real`."""
    found: Lab = request.getfixturevalue(f"{request.param}_lab")
    return found


@pytest.fixture
def ns(lab: Lab) -> Namespace:
    """A fresh namespace."""
    return lab.namespace()
