"""Parameters: values by type, and `${name}` replaced by them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from chaosrunner.playbook.base import Model, describe, is_number, read_duration
from chaosrunner.playbook.durations import format_duration, parse_percent
from chaosrunner.playbook.expressions import suggest
from chaosrunner.playbook.source import Document, Keys

_REFERENCE = re.compile(r"\$(?P<escape>\$)?\{(?P<name>[^{}]*)(?P<end>\}?)")
_ORDERED = ("integer", "number", "duration", "percent")
_INTEGER = re.compile(r"[-+]?[0-9]{1,15}", re.ASCII)
_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][-+]?[0-9]{1,2})?", re.ASCII)
_EXAMPLES = {
    "string": '"text"', "integer": "4", "number": "0.5", "boolean": "true or false", "duration": "30s",
    "percent": '"50%"',
}  # fmt: skip

ParameterName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Parameter(Model):
    """A value that a drill (or `-p name=value`) gives, written `${name}` where it is used."""

    type: Literal["string", "integer", "number", "boolean", "duration", "percent"]
    """What the value is: text, whole number, number, true/false, a duration (30s) or a percentage (50%)."""
    default: Any = None
    """Value where none is given; without a default a value must be given."""
    minimum: Any = None
    """Least value allowed (integer, number, duration, percent)."""
    maximum: Any = None
    """Largest value allowed (integer, number, duration, percent)."""
    enum: list[Any] | None = Field(default=None, min_length=1)
    """The only values allowed."""
    description: str = ""
    """What the value is for, shown by `plan` and by editors."""


def convert(value: Any, type_: str, *, from_text: bool = False) -> Any:
    """A value of the parameter's type: str, int, float, bool, seconds (float), or a percentage as text (`50%`).

    `from_text`: the value comes from the command line, where everything is text. Raises `ValueError`.
    """
    if from_text:
        value = _from_text(value, type_)
    match type_:
        case "string" if isinstance(value, str):
            return value
        case "integer" if isinstance(value, int) and not isinstance(value, bool):
            return value
        case "number" if is_number(value):
            return value
        case "boolean" if isinstance(value, bool):
            return value
        case "duration" if not isinstance(value, bool | None):
            return read_duration(value)
        case "percent" if isinstance(value, str):
            parse_percent(value)
            return value.replace(" ", "")
    raise ValueError(f"expected {_article(type_)}, like {_EXAMPLES[type_]}; got {describe(value)}")


def _from_text(text: str, type_: str) -> Any:
    match type_:
        case "integer" if _INTEGER.fullmatch(text):
            return int(text)
        case "number" | "duration" if _NUMBER.fullmatch(text):
            return float(text)
        case "boolean" if text in ("true", "false"):
            return text == "true"
    return text


def check(value: Any, parameter: Parameter) -> str:
    """Why a converted value is not allowed, or nothing."""
    kind = parameter.type
    for name, bound, wrong in (("minimum", parameter.minimum, -1), ("maximum", parameter.maximum, 1)):
        if bound is not None and (_order(value) - _order(convert(bound, kind))) * wrong > 0:
            side = "below" if wrong < 0 else "above"
            return f"{spell(value, kind)} is {side} the {name} {spell(convert(bound, kind), kind)}"
    if parameter.enum is not None:
        allowed = [convert(item, kind) for item in parameter.enum]
        if value not in allowed:
            return f"{spell(value, kind)} is not one of: {', '.join(spell(item, kind) for item in allowed)}"
    return ""


def spell(value: Any, type_: str) -> str:
    """A value as it is written inside other text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return format_duration(value) if type_ == "duration" else str(value)


def _order(value: Any) -> float:
    return parse_percent(value) if isinstance(value, str) else float(value)


def _article(type_: str) -> str:
    return {"integer": "a whole number", "boolean": "true or false", "percent": "a percentage"}.get(type_, f"a {type_}")


def define(playbook: Document, declared: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The parameters whose definitions make sense; problems of the others go to the document."""
    good = {}
    for name, parameter in declared.items():
        before = len(playbook.problems)
        where: Keys = ("parameters", name)
        for key in ("minimum", "maximum"):
            bound = getattr(parameter, key)
            if bound is not None and parameter.type not in _ORDERED:
                playbook.report(playbook.place((*where, key)), f"a {parameter.type} has no {key}")
            elif bound is not None:
                _try(playbook, (*where, key), bound, parameter.type)
        for index, item in enumerate(parameter.enum or []):
            _try(playbook, (*where, "enum", index), item, parameter.type)
        if len(playbook.problems) == before and parameter.default is not None:
            default = _try(playbook, (*where, "default"), parameter.default, parameter.type)
            if default is not None and (why := check(default, parameter)):
                playbook.report(playbook.place((*where, "default")), why)
        bounds = parameter.minimum, parameter.maximum
        if len(playbook.problems) == before and None not in bounds:
            low, high = (convert(bound, parameter.type) for bound in bounds)
            if _order(low) > _order(high):
                playbook.report(playbook.place((*where, "minimum")), "minimum is above maximum")
        if len(playbook.problems) == before:
            good[name] = parameter
    return good


def _try(document: Document, keys: Keys, value: Any, type_: str) -> Any:
    try:
        return convert(value, type_)
    except ValueError as error:
        document.report(document.place(keys), str(error))
        return None


def stand_in(parameter: Parameter) -> Any:
    """Some allowed value, for reading a playbook whose parameters have no values yet."""
    for candidate in (parameter.default, *(parameter.enum or []), parameter.minimum, parameter.maximum):
        if candidate is not None:
            return convert(candidate, parameter.type)
    examples = {"string": "x", "integer": 1, "number": 1, "boolean": False, "duration": 1.0, "percent": "50%"}
    return examples[parameter.type]


class Substitution:
    """The data of a document with its references replaced, and where they were.

    References to `broken` parameters (their definition is wrong) are replaced by text that nobody judges.
    """

    def __init__(
        self,
        document: Document,
        declared: Mapping[str, Parameter],
        values: Mapping[str, Any],
        broken: Iterable[str] = (),
    ) -> None:
        self.document = document
        self.types = {name: parameter.type for name, parameter in declared.items()} | dict.fromkeys(broken, "string")
        self.values = dict(values) | dict.fromkeys(broken, "x")
        self.unresolved = set(broken)
        """Parameters without a proper value; mistakes in what they make are no news."""
        self.used: dict[Keys, list[str]] = {}
        """Names of the parameters that made the value at a place."""
        self.data = self._apply(document.data, ())
        """A copy without references; `parameters` at the root is left as it is."""

    def _apply(self, data: Any, keys: Keys) -> Any:
        if isinstance(data, dict):
            return {
                key: value if (*keys, key) == ("parameters",) else self._apply(value, (*keys, key))
                for key, value in data.items()
            }
        if isinstance(data, list):
            return [self._apply(value, (*keys, index)) for index, value in enumerate(data)]
        if not isinstance(data, str) or "${" not in data:
            return data
        whole = _REFERENCE.fullmatch(data)
        if whole and not whole["escape"] and self._known(whole, keys):
            return self.values[whole["name"]]
        return _REFERENCE.sub(lambda match: self._text(match, keys), data)

    def _text(self, match: re.Match[str], keys: Keys) -> str:
        if match["escape"]:
            return match[0][1:]
        if not self._known(match, keys):
            return match[0]
        return spell(self.values[match["name"]], self.types[match["name"]])

    def _known(self, match: re.Match[str], keys: Keys) -> bool:
        name = match["name"]
        names = self.used.setdefault(keys, [])
        if name not in names:
            names.append(name)
        if match["end"] and name in self.values:
            return True
        self.unresolved.add(name)
        place = self.document.inside(keys, match.start())
        if not match["end"]:
            self.document.report(place, "${ is never closed", "write ${name}, or $${ for the characters themselves")
        else:
            hint = suggest(name, self.types) or f"known: {', '.join(self.types) or 'none'}"
            self.document.report(place, f'unknown parameter "{name}"', hint)
        return False
