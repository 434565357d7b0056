"""Alert rules as Prometheus has them: inactive, pending while the condition has not held for long enough, firing."""

from __future__ import annotations

import json
import operator
import re
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaosrunner.lab.workload.flags import duration

Labels = dict[str, str]
Sample = tuple[Labels, float]
"""A series' labels and its value now."""
Read = Callable[[str, float], list[Sample]]
"""Reads a figure by name over a trailing window in seconds; no sample means that nothing is known."""

DEFAULT_WINDOW = 30.0
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_EXPRESSION = re.compile(
    r"""\s*(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)\s*
    (?:\{(?P<matchers>[^{}]*)\})?\s*
    (?:\[(?P<window>[^\[\]]+)\])?\s*
    (?:(?P<comparison>==|!=|>=|<=|>|<)\s*(?P<number>[-+]?[0-9.]+(?:[eE][-+]?\d+)?)\s*(?P<percent>%)?\s*)?$""",
    re.VERBOSE,
)
_MATCHER = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*(=|!=)\s*"([^"]*)"\s*')
_TEMPLATE = re.compile(r"\{\{\s*(\$value|\$labels\.([A-Za-z_][A-Za-z0-9_]*))\s*\}\}")


class BadRule(ValueError):
    """A rule or an expression cannot be read."""


@dataclass(frozen=True)
class Expression:
    """A figure, which of its series, and the number that it is compared with."""

    text: str
    name: str
    matchers: tuple[tuple[str, str, str], ...] = ()
    window: float = DEFAULT_WINDOW
    comparison: str | None = None
    number: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Read `name`, `name{label="value"}`, `name[30s] > 5%` and the like; raises BadRule."""
        match = _EXPRESSION.match(text)
        if match is None:
            raise BadRule(f"{text!r} is no expression such as: ready_endpoints < 1")
        matchers = []
        for part in filter(str.strip, (match["matchers"] or "").split(",")):
            if (found := _MATCHER.fullmatch(part)) is None:
                raise BadRule(f'{text!r}: {part!r} is no matcher such as: job="gateway"')
            matchers.append((found[1], found[2], found[3]))
        try:
            window = duration(match["window"]) if match["window"] else DEFAULT_WINDOW
            number = float(match["number"] or 0) / (100 if match["percent"] else 1)
        except (ArgumentTypeError, ValueError) as error:
            raise BadRule(f"{text!r}: {error}") from None
        return cls(text, match["name"], tuple(matchers), window, match["comparison"], number)

    def evaluate(self, read: Read) -> list[Sample]:
        """The series that match and compare true."""
        result = []
        for labels, value in read(self.name, self.window):
            if any((labels.get(name, "") == text) != (sign == "=") for name, sign, text in self.matchers):
                continue
            if self.comparison is None or _COMPARISONS[self.comparison](value, self.number):
                result.append((labels, value))
        return result


def stamp(seconds: float) -> str:
    """Unix seconds in RFC 3339, as Prometheus writes it: UTC, no trailing zeros."""
    whole, fraction = divmod(round(seconds * 1_000_000), 1_000_000)
    digits = f".{fraction:06d}".rstrip("0").rstrip(".")
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + digits + "Z"


def number(value: float) -> str:
    """A value as Prometheus shows it in texts: `1`, `0.25`."""
    return str(int(value)) if value == int(value) else repr(value)


def exponent(value: float) -> str:
    """A value as Prometheus shows it in alerts: `1e+00`, `2.5e-01`, with as few digits as tell it apart."""
    for digits in range(17):
        if float(text := f"{value:.{digits}e}") == value:
            return text
    return f"{value:.17e}"


@dataclass
class Alert:
    """One series of a rule that is pending or firing."""

    labels: Labels
    annotations: dict[str, str]
    active_at: float
    value: float
    firing: bool = False

    def page(self) -> dict[str, Any]:
        """The alert as the API shows it."""
        return {
            "labels": self.labels,
            "annotations": self.annotations,
            "state": "firing" if self.firing else "pending",
            "activeAt": stamp(self.active_at),
            "value": exponent(self.value),
        }


@dataclass
class Rule:
    """An alerting rule and its alerts."""

    name: str
    expression: Expression
    hold: float
    labels: Labels
    annotations: dict[str, str]
    alerts: dict[tuple[tuple[str, str], ...], Alert] = field(default_factory=dict)
    last: float = 0.0
    took: float = 0.0

    @classmethod
    def parse(cls, values: Any) -> Rule:
        """Read a rule as JSON has it; raises BadRule."""
        if not isinstance(values, dict):
            raise BadRule(f"{values!r} is no rule")
        if unknown := set(values) - {"alert", "expr", "for", "labels", "annotations"}:
            raise BadRule(f"unknown keys in a rule: {', '.join(sorted(unknown))}")
        try:
            hold = duration(str(values.get("for", 0)))
        except ArgumentTypeError as error:
            raise BadRule(f"for: {error}") from None
        name, expression = values.get("alert"), values.get("expr")
        labels, annotations = values.get("labels") or {}, values.get("annotations") or {}
        if not isinstance(name, str) or not isinstance(expression, str):
            raise BadRule(f"a rule needs `alert` and `expr`: {json.dumps(values)}")
        for texts in (labels, annotations):
            if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
                raise BadRule(f"{name}: labels and annotations are texts")
        return cls(name, Expression.parse(expression), hold, labels, annotations)

    def evaluate(self, read: Read, now: float) -> None:
        """Move the alerts on: `now` is in unix seconds."""
        seen = {}
        for series, value in self.expression.evaluate(read):
            labels = {name: text for name, text in series.items() if name != "__name__"}
            labels |= self.labels | {"alertname": self.name}
            labels = dict(sorted(labels.items()))
            key = tuple(labels.items())
            old = self.alerts.get(key)
            alert = old or Alert(labels, {}, now, value)
            alert.value = value
            alert.annotations = {name: _fill(text, labels, value) for name, text in sorted(self.annotations.items())}
            alert.firing = alert.firing or now - alert.active_at >= self.hold
            seen[key] = alert
        self.alerts = seen
        self.last = now
        self.took = max(0.0, time.time() - now)

    @property
    def state(self) -> str:
        """inactive, pending or firing."""
        if not self.alerts:
            return "inactive"
        return "firing" if any(alert.firing for alert in self.alerts.values()) else "pending"

    def page(self) -> dict[str, Any]:
        """The rule as the API shows it."""
        return {
            "state": self.state,
            "name": self.name,
            "query": self.expression.text,
            "duration": int(self.hold) if self.hold == int(self.hold) else self.hold,
            "keepFiringFor": 0,
            "labels": self.labels,
            "annotations": self.annotations,
            "alerts": [alert.page() for alert in self.alerts.values()],
            "health": "ok",
            "evaluationTime": round(self.took, 9),
            "lastEvaluation": stamp(self.last),
            "type": "alerting",
        }


def _fill(text: str, labels: Labels, value: float) -> str:
    """Put the value and labels into an annotation."""
    return _TEMPLATE.sub(lambda found: labels.get(found[2], "") if found[2] else number(value), text)


def parse_rules(values: Any) -> list[Rule]:
    """Read a list of rules; raises BadRule."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise BadRule("rules are a list")
    return [Rule.parse(entry) for entry in values]
