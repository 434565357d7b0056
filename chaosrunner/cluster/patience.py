"""How to ask again: with pauses that grow, and not all askers at once."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Pauses in seconds that double from `first` to `longest`, each spread by a fifth."""

    first: float = 0.1
    longest: float = 2.0
    failures: int = 0

    def next(self, at_least: float | None = None) -> float:
        """The next pause; not shorter than the server asked for."""
        pause: float = min(self.first * 2.0**self.failures, self.longest)
        if pause < self.longest:
            self.failures += 1
        return max(pause * random.uniform(0.8, 1.2), at_least or 0.0)
