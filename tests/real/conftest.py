"""One standing lab for all tests here; see `tests.labs.real_lab`."""

from __future__ import annotations

import pytest

from tests.labs import RealLab
from tests.labs import real_lab as standing_lab

__all__ = ["standing_lab"]


@pytest.fixture(scope="session")
def real_lab(standing_lab: RealLab) -> RealLab:
    """The lab without what other tests left on its nodes: a drain would have to take that too, and is refused."""
    standing_lab.clear()
    return standing_lab
