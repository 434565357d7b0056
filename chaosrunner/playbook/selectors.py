"""Label selectors, as text (`app=chat,tier in (a,b)`) and as the API's object (matchLabels, matchExpressions).

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import msgspec

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class Requirement(msgspec.Struct, frozen=True):
    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None


class Selector(msgspec.Struct, frozen=True):
    """All requirements must hold; with none, everything matches."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


_KEY = r"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-\w.]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-\w.]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_KEY})"
    rf"|(?P<set>{_KEY})\s+(?P<operator>(?:not)?in)\s*\((?P<values>\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*)\)"
    rf"|(?P<key>{_KEY})\s*(?P<sign>={{1,2}}|!=)\s*(?P<value>{_VALUE})"
    rf"|(?P<present>{_KEY}))\s*(?:,|$)",
    re.ASCII,
)


@cache
def parse_selector(text: str) -> Selector:
    """Reads a selector as kubectl's `-l` takes it; the empty one matches everything. Raises ValueError."""
    requirements = []
    position = 0
    while position < len(text):
        match = _REQUIREMENT.match(text, position)
        if match is None or (match.end() == len(text) and text[-1] == ","):
            raise ValueError(f'"{text}" is no label selector; write it like "app=chat,tier in (web, api)"')
        position = match.end()
        if match["absent"]:
            requirements.append(Requirement(match["absent"], "DoesNotExist"))
        elif match["key"]:
            operator: Operator = "NotIn" if match["sign"] == "!=" else "In"
            requirements.append(Requirement(match["key"], operator, (match["value"],)))
        elif match["set"]:
            values = tuple(value.strip() for value in match["values"].split(","))
            requirements.append(Requirement(match["set"], "In" if match["operator"] == "in" else "NotIn", values))
        else:
            requirements.append(Requirement(match["present"], "Exists"))
    return Selector(tuple(requirements))


def selects(text: str, labels: Mapping[str, str]) -> bool:
    """Whether `labels` meet a selector given as text. Raises ValueError for one that is none."""
    return parse_selector(text).matches(labels)


def read_selector(selector: Mapping[str, Any] | None) -> Selector | None:
    """Reads a LabelSelector object; None (no selector, matches nothing) stays None. `{}` matches everything."""
    if selector is None:
        return None
    requirements = [Requirement(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    requirements += [
        Requirement(item["key"], item["operator"], tuple(item.get("values") or ()))
        for item in selector.get("matchExpressions") or ()
    ]
    return Selector(tuple(requirements))
