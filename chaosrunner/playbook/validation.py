"""Data to models, with every mistake told in the user's words and at its place."""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, TypeVar, Union

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from chaosrunner.playbook.base import describe
from chaosrunner.playbook.expressions import suggest
from chaosrunner.playbook.source import Document, Keys

M = TypeVar("M", bound=BaseModel)

_EXPECTED = {
    "string_type": "text", "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number",
    "bool_type": "true or false", "model_type": "a mapping", "model_attributes_type": "a mapping",
    "dict_type": "a mapping", "list_type": "a list", "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}", "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}", "finite_number": "a finite number",
}  # fmt: skip
_FORMS = {
    "name": "letters, digits, -, _ and . only",
    "service": "letters, digits, -, _ and . only",
    "controller": "like deployment/chat",
    "path": "begin with /, no spaces",
    "env": "letters, digits and _ only",
    "parameters": "letters, digits and _ only",
    "headers": "no spaces, no colon",
}
_OLD_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false", "y": "true", "n": "false"}


def build(
    model: type[M], data: Any, document: Document, used: Mapping[Keys, list[str]], broken: Collection[str] = ()
) -> M | None:
    """A model out of the data of a document; None, and problems in the document, where it does not fit.

    `used` names the parameters that made a value, so that a mistake can say where a value came from;
    mistakes in values of `broken` ones are left out.
    """
    try:
        return model.model_validate(data, context={"folder": document.path.parent})
    except ValidationError as errors:
        for error in errors.errors(include_url=False):
            if not any(name in broken for name in used.get(_real(data, error["loc"]), ())):
                _report(model, data, document, error, used)
        return None


def _report(
    model: type[BaseModel], data: Any, document: Document, error: ErrorDetails, used: Mapping[Keys, list[str]]
) -> None:
    keys = _real(data, error["loc"])
    kind, context = error["type"], error.get("ctx", {})
    of_key = kind == "extra_forbidden" or error["loc"][-1:] == ("[key]",)
    place = document.place(keys, of_key=of_key)
    match kind:
        case "extra_forbidden":
            known = _keys_of(model, error["loc"][:-1])
            message = f'unknown key "{error["loc"][-1]}"'
            hint = suggest(str(error["loc"][-1]), known) or f"known: {', '.join(known)}"
        case "missing":
            message, hint = f'"{error["loc"][-1]}" is missing', ""
        case "mistake" | "expression":
            message, hint = context["message"], context["hint"]
            if "column" in context and keys not in used:
                place = document.inside(keys, context["column"])
        case _:
            value = keys[-1] if of_key else _value(data, keys)
            message, hint = _worded(kind, context, error["msg"], value, error["loc"])
    if keys in used:
        message += f" (the value comes from {', '.join('${' + name + '}' for name in used[keys])})"
    document.report(place, message, hint)


def _worded(
    kind: str, context: Mapping[str, Any], fallback: str, value: Any, loc: tuple[int | str, ...]
) -> tuple[str, str]:
    """Message and hint of one of pydantic's own errors."""
    got = describe(value)
    match kind:
        case "literal_error":
            allowed = context["expected"].replace("'", "").replace(" or ", ", ")
            return f"expected one of: {allowed}; got {got}", suggest(str(value), allowed.split(", "))
        case "bool_type" if str(value).lower() in _OLD_BOOLEANS:
            return f"expected true or false, got {got}", f"write {_OLD_BOOLEANS[str(value).lower()]}"
        case "string_type" if isinstance(value, bool | int | float):
            return f"expected text, got {got}", "put it in quotes"
        case "string_pattern_mismatch":
            field = next((part for part in reversed(loc) if part in _FORMS), "")
            return f"{got} is not allowed here", _FORMS.get(str(field), f"must match {context['pattern']}")
        case "too_short" | "string_too_short":
            return "must not be empty", ""
        case _ if kind in _EXPECTED:
            return f"expected {_EXPECTED[kind].format(**context)}, got {got}", ""
    return fallback, ""


def _real(data: Any, loc: tuple[int | str, ...]) -> Keys:
    """The part of pydantic's location that leads somewhere in the data (tags of unions lead nowhere)."""
    keys: list[int | str] = []
    for part in loc:
        match data:
            case dict() if part in data:
                data = data[part]
            case list() if isinstance(part, int) and part < len(data):
                data = data[part]
            case _:
                continue
        keys.append(part)
    return tuple(keys)


def _value(data: Any, keys: Keys) -> Any:
    for key in keys:
        data = data[key]
    return data


def _keys_of(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Keys that the model at a location knows."""
    found: Any = model
    for part in loc:
        found = _child(found, part)
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        return []
    return [field.alias or name for name, field in found.model_fields.items()]


def _child(annotation: Any, part: int | str) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if part in (name, field.alias):
                return _container(field.annotation)
        return annotation
    if typing.get_origin(annotation) in (list, dict):
        return _container(typing.get_args(annotation)[-1])
    return annotation


def _container(annotation: Any) -> Any:
    """The model, list or dict inside an annotation such as `Annotated[list[X], ...] | None`."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _container(typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        options = [_container(option) for option in typing.get_args(annotation)]
        containers = [o for o in options if typing.get_origin(o) in (list, dict) or _is_model(o)]
        return containers[0] if containers else annotation
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
