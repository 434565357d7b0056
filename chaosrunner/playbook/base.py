"""What all models of this room share: strictness, and small value types with their spelling in YAML."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from chaosrunner.playbook import durations
from chaosrunner.playbook.expressions import suggest
from chaosrunner.playbook.selectors import parse_selector


class Model(BaseModel):
    """Unknown keys are refused, nothing is converted silently, and what was loaded does not change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True, hide_input_in_errors=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describes each field by the docstring below it. Done here, not by pydantic's `use_attribute_docstrings`: that
        parses the source of all models in each process, and only an editor's schema needs it."""
        result = handler(schema)
        properties = handler.resolve_ref_schema(result)["properties"]
        for name, text in _docstrings(cls).items():
            properties[cls.model_fields[name].alias or name].setdefault("description", text)
        return result


def _docstrings(model: type[Model]) -> dict[str, str]:
    """Field to the docstring below it, those of the classes it derives from included."""
    found = {}
    for base in reversed(model.__mro__[: model.__mro__.index(Model)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in pairwise(tree.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


def mistake(message: str, hint: str = "") -> PydanticCustomError:
    """What a validator raises: what is wrong, and how to mend it."""
    return PydanticCustomError("mistake", "{message}", {"message": message, "hint": hint})


def reader(read: Callable[[Any], Any]) -> BeforeValidator:
    """A validator of one value out of a function that raises `ValueError` with a message for the user."""

    def validate(value: Any) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise mistake(str(error)) from None

    return BeforeValidator(validate)


def describe(value: Any) -> str:
    """A value as the user sees it in the file."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}..."'
        case dict():
            return "a mapping"
        case list():
            return "a list"
    return str(value)


def is_number(value: Any) -> bool:
    """An int or a finite float; `True` is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15 and math.isfinite(value)


def read_duration(value: Any) -> float:
    """Seconds of a duration as YAML gives it: a number of seconds, or text with units."""
    if isinstance(value, str):
        return durations.parse_duration(value)
    if not is_number(value):
        raise ValueError("expected a duration like 500ms, 30s or 1h30m")
    if value < 0:
        raise ValueError("a duration cannot be negative")
    return float(value)


def _read_percent(value: Any) -> float:
    percent = durations.parse_percent(value) * 100 if isinstance(value, str) else value
    if not is_number(percent) or not 0 < percent <= 100:
        raise ValueError("expected a percentage above 0 and at most 100, like 50%")
    return float(percent)


Duration = Annotated[
    float,
    reader(read_duration),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": durations.PATTERN}]}),
]
"""Seconds; in YAML `500ms`, `2s`, `1h30m`, or a plain number of seconds."""


def _read_whole_seconds(value: Any) -> int:
    seconds = read_duration(value)
    if seconds != int(seconds):
        raise ValueError("Kubernetes knows grace periods in whole seconds only")
    return int(seconds)


WholeSeconds = Annotated[
    int,
    reader(_read_whole_seconds),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": durations.PATTERN}]}),
]
"""A duration in whole seconds."""


def _positive(value: Any) -> float:
    seconds = read_duration(value)
    if seconds <= 0:
        raise ValueError("the duration must be longer than 0s")
    return seconds


PositiveDuration = Annotated[
    float,
    reader(_positive),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": durations.PATTERN}]}
    ),
]
"""A `Duration` above zero."""

Percent = Annotated[
    float,
    reader(_read_percent),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
                {"type": "string", "pattern": rf"^{durations.NUMBER}\s*%$"},
            ]
        }
    ),
]
"""Percent (50.0); in YAML `50%` or `50`."""


@dataclass(frozen=True)
class Quantity:
    """How many of the candidates: `one`, `all`, a fixed number, or a percentage such as `"50%"`."""

    mode: Literal["one", "all", "fixed", "percent"]
    value: float = 1

    def of(self, candidates: int) -> int:
        """How many of `candidates` (Running and not terminating) are taken.

        A percentage rounds **down**, so that a drill never takes more than it was told to, but at least one is taken:
        a fault without a target is none. (Chaos Mesh rounded down to none, now it rounds up; both surprised users.)
        A fixed number is returned as it is, also where there are fewer candidates: that is for the plan to refuse.
        """
        match self.mode:
            case "one":
                return min(1, candidates)
            case "all":
                return candidates
            case "fixed":
                return int(self.value)
            case "percent":
                # The small term keeps 58.0000000001 % of 50 and the like from losing one to binary fractions.
                return min(candidates, max(1, math.floor(candidates * self.value / 100 + 1e-9)))

    def __str__(self) -> str:
        match self.mode:
            case "fixed":
                return f"{self.value:.0f}"
            case "percent":
                return f"{self.value:.15g}%"
            case mode:
                return mode

    @classmethod
    def read(cls, value: Any) -> Quantity:
        """From YAML; raises `ValueError`."""
        if isinstance(value, Quantity):
            return value
        if value in ("one", "all"):
            return cls(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1_000_000:
            return cls("fixed", value)
        if isinstance(value, str) and value.endswith("%"):
            return cls("percent", _read_percent(value))
        raise ValueError('expected one, all, a whole number above 0, or a percentage like "50%"')

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: Any) -> Quantity:
            try:
                return cls.read(value)
            except ValueError as error:
                raise mistake(str(error)) from None

        serialization = core_schema.plain_serializer_function_ser_schema(
            lambda quantity: int(quantity.value) if quantity.mode == "fixed" else str(quantity)
        )
        return core_schema.no_info_plain_validator_function(validate, serialization=serialization)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "anyOf": [
                {"enum": ["one", "all"]},
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": rf"^{durations.NUMBER}\s*%$"},
            ]
        }


def read_selector(value: Any) -> str:
    """A label selector as kubectl's `-l` takes it, or a mapping of labels; never an empty one.

    Grammar: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
    """
    if isinstance(value, dict) and all(isinstance(v, str) for v in value.values()):
        value = ",".join(f"{key}={label}" for key, label in value.items())
    if not isinstance(value, str):
        raise ValueError('expected a label selector like "app=chat,tier!=batch"')
    if not value.strip():
        raise ValueError("the selector is empty; an empty selector matches everything, name the labels")
    parse_selector(value)
    return value.strip()


Selector = Annotated[
    str,
    reader(read_selector),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}},
            ]
        }
    ),
]
"""A label selector, in the spelling of `kubectl -l`."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=100)]
"""A name: letters, digits, `-`, `_` and `.`."""

Text = Annotated[str, Field(min_length=1)]


def _beside(path: str, info: ValidationInfo) -> str:
    folder: Path = (info.context or {}).get("folder", Path())
    return str(folder / Path(path).expanduser())


FilePath = Annotated[str, Field(min_length=1), AfterValidator(_beside)]
"""Path of a file; a relative one is relative to the folder of the file that names it."""


def words(known: Sequence[str], noun: str, several: str) -> Callable[[Any], list[str]]:
    """Reads one of the known words, or a list of them; `several`: what is expected, where there is none."""

    def read(value: Any) -> list[str]:
        given = value if isinstance(value, list) else [value]
        for word in given:
            if word not in known:
                hint = suggest(str(word), known) or "one of: " + ", ".join(known)
                raise ValueError(f'unknown {noun} "{word}"; {hint}')
        if not given:
            raise ValueError(f"expected {several}")
        return given

    return read


API_VERSION = "chaosrunner.dev/v1"
"""Version of the format of playbooks and drills."""


def exactly_one(model: Model, names: tuple[str, ...], what: str) -> str:
    """The one of the fields `names` that is given; raises a mistake where it is not exactly one."""
    given = [name for name in names if getattr(model, name) is not None]
    if len(given) == 1:
        return given[0]
    keys = [type(model).model_fields[name].alias or name for name in names]
    found = " and ".join(type(model).model_fields[name].alias or name for name in given) or "none"
    raise mistake(f"{what} has exactly one of {', '.join(keys)}; found {found}")


class Metadata(Model):
    name: Name
    """Name by which the file is found and reported."""
    tags: list[Name] = Field(default_factory=list)
    """Words to choose drills by."""
