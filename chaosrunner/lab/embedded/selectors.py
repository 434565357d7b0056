"""Label selectors (text and objects) and field selectors, as the API server parses and matches them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaosrunner.lab.embedded import names
from chaosrunner.lab.embedded.errors import bad_request


@dataclass(frozen=True)
class Requirement:
    """One condition on one label. `operator`: in, notin, =, !=, exists, !, gt, lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "in" | "=":
                return value is not None and value in self.values
            case "notin" | "!=":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
            case _:
                if value is None or not re.fullmatch(r"-?\d+", value):
                    return False
                return int(value) > int(self.values[0]) if self.operator == "gt" else int(value) < int(self.values[0])

    def __str__(self) -> str:
        match self.operator:
            case "in" | "notin":
                return f"{self.key} {self.operator} ({','.join(sorted(self.values))})"
            case "exists":
                return self.key
            case "!":
                return f"!{self.key}"
            case "gt" | "lt":
                return f"{self.key}{'>' if self.operator == 'gt' else '<'}{self.values[0]}"
            case _:
                return f"{self.key}{self.operator}{self.values[0]}"


@dataclass(frozen=True)
class Selector:
    """A conjunction of requirements; the empty selector matches everything."""

    requirements: tuple[Requirement, ...] = field(default=())

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Read `a=b,c in (d,e),!f`. ApiError 400 for text that does not parse."""
        return cls(tuple(_Parser(text).requirements()))

    @classmethod
    def of(cls, selector: Mapping[str, Any] | None) -> Selector | None:
        """Read a `metav1.LabelSelector`. None selects nothing, and so does this function's None."""
        if selector is None:
            return None
        operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}
        found = [Requirement(key, "=", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
        found += [
            Requirement(entry["key"], operators[entry["operator"]], tuple(entry.get("values") or ()))
            for entry in selector.get("matchExpressions") or ()
        ]
        return cls(tuple(sorted(found, key=lambda requirement: requirement.key)))

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        return all(requirement.matches(labels or {}) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


_TOKEN = re.compile(r"\s*(?:(?P<symbol>==|!=|[=!<>(),])|(?P<word>[^\s=!<>(),]+)|$)")


class _Parser:
    """Recursive descent over the grammar of k8s.io/apimachinery/pkg/labels."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, bool]] = []
        position = 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None or not (found["symbol"] or found["word"]):
                break
            self._tokens.append((found["symbol"] or found["word"], found["word"] is not None))
            position = found.end()
        self._at = 0

    def requirements(self) -> list[Requirement]:
        found: list[Requirement] = []
        while self._peek()[0]:
            found.append(self._requirement())
            if not self._peek()[0]:
                break
            if not self._accept(","):
                raise self._unexpected("',' or 'end of string'", within=False)
            if not self._peek()[1] and self._peek()[0] != "!":
                raise self._unexpected("identifier after ','", within=False)
        return found

    def _requirement(self) -> Requirement:
        negated = self._accept("!")
        if not negated and not self._peek()[1]:
            raise self._unexpected("!, identifier, or 'end of string'", within=False)
        key = self._word("identifier")
        for why in names.of_key(key):
            raise _invalid("<nil>", key, why)
        if negated:
            return Requirement(key, "!")
        token, is_word = self._peek()
        if token in ("", ","):
            return Requirement(key, "exists")
        if is_word and token in ("in", "notin"):
            self._at += 1
            return Requirement(key, token, self._set())
        self._at += 1
        match token:
            case "=" | "==" | "!=":
                value = self._value()
                for why in names.of_value(value):
                    raise _invalid(f"values[0][{key}]", value, why)
                return Requirement(key, "!=" if token == "!=" else "=", (value,))
            case "<" | ">":
                value = self._value()
                if not re.fullmatch(r"-?\d+", value):
                    raise _invalid("values[0]", value, "for 'Gt', 'Lt' operators, the value must be an integer")
                return Requirement(key, "gt" if token == ">" else "lt", (value,))
            case _:
                self._at -= 1
                raise self._unexpected("in, notin, =, ==, !=, gt, lt")

    def _set(self) -> tuple[str, ...]:
        if not self._accept("("):
            raise bad_request(f"unable to parse requirement: found '{self._peek()[0]}' expected: '('")
        values = [self._value()]
        while self._accept(","):
            values.append(self._value())
        self._expect(")", "',' or ')'")
        return tuple(values)

    def _value(self) -> str:
        """A value may be empty: `a=`, `a in (,b)`."""
        if self._peek()[0] in ("", ",", ")"):
            return ""
        return self._word("identifier")

    def _word(self, expected: str) -> str:
        token, is_word = self._peek()
        if not is_word:
            raise self._unexpected(expected)
        self._at += 1
        return token

    def _accept(self, token: str) -> bool:
        if self._peek() == (token, False):
            self._at += 1
            return True
        return False

    def _expect(self, token: str, expected: str) -> None:
        if not self._accept(token):
            raise self._unexpected(expected)

    def _peek(self) -> tuple[str, bool]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", False)

    def _unexpected(self, expected: str, *, within: bool = True) -> Exception:
        """`within`: whether a requirement was begun."""
        found = f"found '{self._peek()[0]}', expected: {expected}"
        return bad_request(f"unable to parse requirement: {found}" if within else found)


def _invalid(field: str, value: str, why: str) -> Exception:
    return bad_request(f'unable to parse requirement: {field}: Invalid value: "{value}": {why}')


_ANYWHERE = ("metadata.name", "metadata.namespace")
_FIELDS: dict[str, tuple[str, ...]] = {
    "pods": ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
             "status.phase", "status.podIP", "status.nominatedNodeName"),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "services": ("spec.clusterIP", "spec.type"),
    "events": ("involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
               "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
               "reportingComponent", "source", "type"),
}  # fmt: skip
_ALIASES = {"source": "source.component"}

FieldSelector = tuple[tuple[str, bool, str], ...]
"""Conjunction of (path, must be equal, value)."""


def parse_fields(resource: str, text: str) -> FieldSelector:
    """Read `spec.nodeName=n1,status.phase!=Failed`. ApiError 400 for fields that the kind cannot be selected by.

    Events also answer to the names of events.k8s.io/v1 (`regarding.name`, `note` is not selectable).
    """
    found = []
    for term in filter(None, text.split(",")):
        parts = re.fullmatch(r"([^=!]*)(==|=|!=)(.*)", term)
        if parts is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        path = parts[1].strip()
        if resource == "events":
            path = path.replace("regarding.", "involvedObject.", 1)
        if path not in _ANYWHERE and path not in _FIELDS.get(resource, ()):
            raise bad_request(
                f"field label not supported: {path}"
                if resource in _FIELDS
                else f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"'
            )
        found.append((path, parts[2] != "!=", parts[3].strip()))
    return tuple(found)


def match_fields(selector: FieldSelector, obj: Mapping[str, Any]) -> bool:
    return all((_field(obj, _ALIASES.get(path, path)) == value) is equal for path, equal, value in selector)


def _field(obj: Mapping[str, Any], path: str) -> str:
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    match value:
        case None:
            return "false" if path in ("spec.unschedulable", "spec.hostNetwork") else ""
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)


def matcher(labels: Selector | None, fields: FieldSelector | None) -> Callable[[Mapping[str, Any]], bool]:
    """One predicate for a label and a field selector, either of which may be absent."""
    return lambda obj: (
        (labels is None or labels.matches(obj["metadata"].get("labels"))) and (not fields or match_fields(fields, obj))
    )
