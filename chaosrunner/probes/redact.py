"""Secrets of a probe stay out of whatever it records: servers and proxies like to echo headers in error bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping

STARS = "***"
SECRET_HEADER = re.compile(r"authorization|api-?key|token|secret|cookie|password", re.IGNORECASE)
CREDENTIAL = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+")


class Redactor:
    """Replaces the API key, the values of headers that carry secrets, and anything after `Bearer` or `Basic`."""

    def __init__(self, api_key: str | None, headers: Mapping[str, str]) -> None:
        values = {value.strip() for name, value in headers.items() if SECRET_HEADER.search(name)}
        # A scheme before the secret (`Bearer x`) is none itself.
        values |= {value.split(maxsplit=1)[-1] for value in values if value}
        if api_key:
            values.add(api_key)
        self._secrets = sorted(filter(None, values), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, STARS)
        return CREDENTIAL.sub(rf"\1 {STARS}", text)
