"""Label selectors, as text (`app=chat,tier in (a,b)`) and as the API's object (matchLabels, matchExpressions).

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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


_PART = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<no>[\w./-]+)"
    r"|(?P<key>[\w./-]+)\s*(?:(?P<sign>==|=|!=)\s*(?P<value>[\w.-]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<values>[^)]*)\))?)\s*(?:,|$)"
)


def parse_selector(text: str) -> Selector:
    """Reads a selector as kubectl takes it. Raises ValueError."""
    requirements = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise ValueError(f"not a label selector: {text!r}")
        position = match.end()
        if match["absent"]:
            requirements.append(Requirement(match["no"], "DoesNotExist"))
        elif match["sign"]:
            operator: Operator = "NotIn" if match["sign"] == "!=" else "In"
            requirements.append(Requirement(match["key"], operator, (match["value"],)))
        elif match["set"]:
            values = tuple(value.strip() for value in match["values"].split(","))
            requirements.append(Requirement(match["key"], "In" if match["set"] == "in" else "NotIn", values))
        else:
            requirements.append(Requirement(match["key"], "Exists"))
    return Selector(tuple(requirements))


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
