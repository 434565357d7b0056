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
        found = sorted({s for s in secrets if len(s) >= SHORTEST}, key=len, reverse=True)
        self._texts = found
        self._bytes = list(dict.fromkeys(form for s in found for form in _encoded(s)))

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


def _encoded(secret: str) -> list[bytes]:
    return [json.dumps(secret, ensure_ascii=ascii_)[1:-1].encode() for ascii_ in (False, True)]
