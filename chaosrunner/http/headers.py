"""Header fields of an answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class Headers(Mapping[str, str]):
    """Values by name, in any case; repeated fields are joined by a comma (RFC 9110, section 5.3)."""

    __slots__ = ("_values", "raw")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.raw = list(raw)
        """Name and value of each field, as received."""
        values: dict[str, str] = {}
        for field, content in self.raw:
            name, value = field.lower().decode("latin-1"), content.decode("latin-1")
            values[name] = f"{values[name]}, {value}" if name in values else value
        self._values = values

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name.lower(), default)

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values
