"""Secrets never reach a recording, a log or a report: what counts as one, and how it is masked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

MASK = "[redacted]"
SHORTEST = 6
"""Shorter values are not masked: they would tear ordinary words apart and protect nothing."""

_SENSITIVE = re.compile(r"authorization|cookie|key|token|secret|password|credential", re.IGNORECASE)
_SCHEME = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+")


def is_sensitive(header: str) -> bool:
    """Whether a header of this name carries a credential by custom, so that a plain value of it is redacted."""
    return _SENSITIVE.search(header) is not None


def sensitive_values(headers: Mapping[str, str]) -> set[str]:
    """The values of the headers that carry credentials, each also without the scheme before it (`Bearer x`: x)."""
    values = {value.strip() for name, value in headers.items() if is_sensitive(name)} - {""}
    return values | {value.split(maxsplit=1)[-1] for value in values}


def mask_schemes(text: str) -> str:
    """Masks whatever follows `Bearer` or `Basic`: a proxy may echo a credential of its own, which we do not know."""
    return _SCHEME.sub(rf"\1 {MASK}", text)


class Redactor:
    """Replaces known secret values in text and in encoded JSON."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = {s for s in secrets if len(s) >= SHORTEST}
        # Servers echo credentials in JSON bodies, of which the raw text is kept: there they are escaped already.
        found |= {form for s in found for form in _escaped(s)}
        self._texts = sorted(found, key=len, reverse=True)
        self._bytes = list(dict.fromkeys(form.encode() for s in self._texts for form in _escaped(s)))

    @property
    def masks(self) -> bool:
        """Whether there is anything to mask."""
        return bool(self._bytes)

    def text(self, value: str) -> str:
        for secret in self._texts:
            value = value.replace(secret, MASK)
        return value

    def json(self, encoded: bytes) -> bytes:
        """Masks secrets in the texts of encoded JSON, however the encoder escaped them.

        Keys, numbers and the tag `kind` stay: a credential of digits must not tear a time apart.
        """
        for secret in self._bytes:
            if secret in encoded:
                return msgspec.json.encode(self._walk(msgspec.json.decode(encoded)))
        return encoded

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._walk(item) for item in value]
        if isinstance(value, dict):
            return {key: item if key == "kind" else self._walk(item) for key, item in value.items()}
        return value


def _escaped(secret: str) -> list[str]:
    return [json.dumps(secret, ensure_ascii=ascii_)[1:-1] for ascii_ in (False, True)]
