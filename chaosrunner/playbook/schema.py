"""JSON Schema of playbooks and drills, for editors (yaml-language-server) and reviewers.

The schema knows the shape of a file; what must fit together (names, parameters, metrics) only `validate` knows.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from chaosrunner.playbook.base import Quantity
from chaosrunner.playbook.drill import Drill
from chaosrunner.playbook.expressions import Expression
from chaosrunner.playbook.lab import LabPdb
from chaosrunner.playbook.loads import CancelAfter, Load
from chaosrunner.playbook.playbook import Playbook
from chaosrunner.playbook.probe import PROBE_KINDS, Probe
from chaosrunner.playbook.requests import LineTerminal, Terminal
from chaosrunner.playbook.secret import Secret
from chaosrunner.playbook.steps import STEPS, PodSource, Step

_REFERENCE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"}
"""What may stand for any number, duration, boolean or word of a list: text with a parameter in it."""

_ONE_OF: dict[type[BaseModel], tuple[str, ...]] = {
    Step: STEPS,
    Probe: PROBE_KINDS,
    Load: ("closed", "open"),
    CancelAfter: ("chunks", "time"),
    Terminal: ("data", "event", "eof"),
    LineTerminal: ("fields", "data", "eof"),
    PodSource: ("selector", "node", "expression"),
    LabPdb: ("min_available", "max_unavailable"),
    Secret: ("env", "file", "value"),
}
"""Models of which exactly one of these fields is given."""

_SHORT = {"Step": {"enum": list(STEPS)}, "Check": {"type": "string", "minLength": 1}}
"""What may be written instead of a mapping."""


class _Generator(GenerateJsonSchema):
    """Defaults are shown as YAML writes them."""

    def encode_default(self, dft: Any) -> Any:
        return str(dft) if isinstance(dft, Quantity | Expression) else super().encode_default(dft)


def schema(kind: Literal["playbook", "drill"]) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a file of this kind."""
    model: type[BaseModel] = Playbook if kind == "playbook" else Drill
    result = model.model_json_schema(schema_generator=_Generator)
    fixed = {key: result["properties"][key] for key in ("apiVersion", "kind")}
    definitions = result["$defs"]
    for restricted, names in _ONE_OF.items():
        if restricted.__name__ in definitions:
            _exactly_one(definitions[restricted.__name__], restricted, names)
    for name, short in _SHORT.items():
        if name in definitions:
            definitions[name] = {"anyOf": [definitions[name], short]}
    result["properties"] = {key: _with_references(value) for key, value in result["properties"].items()} | fixed
    result["$defs"] = {
        name: value if name in ("Metadata", "Parameter") else _with_references(value)
        for name, value in definitions.items()
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **result}


def _exactly_one(definition: dict[str, Any], model: type[BaseModel], names: tuple[str, ...]) -> None:
    keys = [model.model_fields[name].alias or name for name in names]
    definition["oneOf"] = [{"required": [key]} for key in keys]
    for key in keys if model is not Step else ():  # `- uncordon:` is a step with all defaults, `openai:` is no probe
        field = definition["properties"][key]
        field["anyOf"] = [option for option in field["anyOf"] if option != {"type": "null"}]
        del field["default"]


def _with_references(node: Any) -> Any:
    """The schema with a reference allowed wherever a scalar is asked for that a reference does not look like."""
    if isinstance(node, list):
        return [_with_references(item) for item in node]
    if not isinstance(node, dict):
        return node
    if _is_scalar(node):
        described = {key: node[key] for key in ("description", "title", "default") if key in node}
        bare = {key: value for key, value in node.items() if key not in described}
        return {**described, "anyOf": [*bare.get("anyOf", [bare]), _REFERENCE]}
    return {
        key: {name: _with_references(value) for name, value in inner.items()}
        if key == "properties"
        else _with_references(inner)
        if key in ("anyOf", "items", "additionalProperties")
        else inner
        for key, inner in node.items()
    }


def _is_scalar(node: dict[str, Any]) -> bool:
    """Whether a schema asks for one value that text with a reference in it would not be."""
    if "anyOf" in node:
        return all(_is_scalar(option) or option.get("type") in ("null", "string") for option in node["anyOf"])
    if node.get("type") == "string":
        return "pattern" in node or "enum" in node or "const" in node
    return node.get("type") in ("integer", "number", "boolean") or ("enum" in node and "properties" not in node)
