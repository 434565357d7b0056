"""Secrets never reach a recording, a log or a report."""

from __future__ import annotations

import json
from collections.abc import Iterable

MASK = "[redacted]"
SHORTEST = 6
"""Shorter values are not masked: they would tear ordinary words apart and protect nothing."""


class Redactor:
    """Replaces known secret values in text and in encoded JSON."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = {s for s in secrets if len(s) >= SHORTEST}
        # Servers echo credentials in JSON bodies, of which the raw text is kept: there they are escaped already.
        found |= {form for s in found for form in _escaped(s)}
        self._texts = sorted(found, key=len, reverse=True)
        self._bytes = list(dict.fromkeys(form.encode() for s in self._texts for form in _escaped(s)))

    def text(self, value: str) -> str:
        for secret in self._texts:
            value = value.replace(secret, MASK)
        return value

    def json(self, encoded: bytes) -> bytes:
        """Masks secrets inside encoded JSON, however the encoder escaped them."""
        for secret in self._bytes:
            if secret in encoded:
                encoded = encoded.replace(secret, MASK.encode())
        return encoded


def _escaped(secret: str) -> list[str]:
    return [json.dumps(secret, ensure_ascii=ascii_)[1:-1] for ascii_ in (False, True)]
