"""Label selectors as text, as `kubectl -l` takes them, applied to labels at hand."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SET = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^)]*)\)")
_EQUALITY = re.compile(r"(?P<key>[^=!\s]+)\s*(?P<operator>==|=|!=)\s*(?P<value>\S*)")
_COMMA = re.compile(r",(?![^(]*\))")


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether `labels` meet every requirement of a selector that the playbook room has accepted.

    `!=` and `notin` also hold where the label is absent
    (https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors).
    """
    return all(_meets(requirement.strip(), labels) for requirement in _COMMA.split(selector))


def _meets(requirement: str, labels: Mapping[str, str]) -> bool:
    if found := _SET.fullmatch(requirement):
        values = {value.strip() for value in found["values"].split(",")}
        value = labels.get(found["key"])
        return value in values if found["operator"] == "in" else value not in values
    if found := _EQUALITY.fullmatch(requirement):
        return (labels.get(found["key"]) == found["value"]) == (found["operator"] != "!=")
    if requirement.startswith("!"):
        return requirement[1:].strip() not in labels
    return requirement in labels
