"""One standing lab for all tests here; see `tests.labs.real_lab`."""

from __future__ import annotations

from tests.labs import real_lab

__all__ = ["real_lab"]
