"""Files to playbooks and drills that can be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, Field

from chaosrunner.errors import UserError
from chaosrunner.playbook import locate, parameters, rules, source
from chaosrunner.playbook.base import API_VERSION, Model
from chaosrunner.playbook.drill import Drill
from chaosrunner.playbook.expressions import suggest
from chaosrunner.playbook.parameters import Parameter, ParameterName
from chaosrunner.playbook.playbook import Playbook
from chaosrunner.playbook.problems import PlaybookError, Problem
from chaosrunner.playbook.source import Document, Keys
from chaosrunner.playbook.validation import build
from chaosrunner.timeline.redact import is_sensitive

COMMAND_LINE = "-p"
"""`file` of problems with values given on the command line."""
LAB = "lab."
"""Prefix of names on the command line that are keys of the lab section."""


@dataclass(frozen=True)
class BoundDrill:
    """A drill with its playbook, ready to be planned: every parameter has its value, no `${}` is left."""

    drill: Drill
    playbook: Playbook
    parameters: dict[str, Any]
    """Final values: text, numbers, booleans, durations in seconds, percentages as text."""
    sources: dict[str, str]
    """File name to text, with literal credentials blotted out."""
    path: Path
    """The drill's file."""
    warnings: tuple[Problem, ...] = ()

    def check_environment(self, context: str | None = None) -> None:
        """Refuse a drill that can only be rehearsed; `context` is the one given on the command line.

        Raises `UserError`.
        """
        name = self.drill.metadata.name
        if self.drill.endpoint.url is None:
            raise UserError(
                f"{self.path}: drill {name} names no endpoint.url, so there is nothing to send requests to; "
                "add it, or rehearse the drill on the lab"
            )
        if self.drill.context is None and context is None:
            raise UserError(
                f"{self.path}: drill {name} names no context, and no context is guessed; add `context: NAME` "
                "(or in-cluster), or give --context"
            )

    def check_lab(self) -> None:
        """Refuse a drill that cannot be rehearsed. Raises `UserError`."""
        if self.drill.lab is None:
            raise UserError(
                f"{self.path}: drill {self.drill.metadata.name} has no lab section, so there is nothing to rehearse on"
            )


def load_playbook(path_or_name: str | Path, parameters: Mapping[str, str] | None = None) -> Playbook:
    """A playbook by itself. `parameters` are the values of `-p name=value`, as text; the others have their defaults (or
    some allowed value where they have none).

    Raises `UserError` where there is no such file, `PlaybookError` where it cannot be used.
    """
    loading = _Playbook(source.read(locate.resolve(str(path_or_name), "playbooks")))
    problems: list[Problem] = []
    loading.fill(_override_values(parameters or {}, loading, problems))
    return _finish(loading.build(), [loading.document], problems)


def load_drill(path_or_name: str | Path, parameters: Mapping[str, str] | None = None) -> BoundDrill:
    """A drill with its playbook. `parameters` are the values of `-p name=value`, as text; they win over the drill's.

    A name that begins with `lab.` is no parameter but a key of the drill's lab section, like `lab.startup=1s` or
    `lab.warmup.standstill=500ms`.

    Raises `UserError` where there is no such file, `PlaybookError` (with every problem of both files) where they
    cannot be used.
    """
    document = source.read(locate.resolve(str(path_or_name), "drills"))
    bound, documents, problems = _load_drill(document, parameters or {})
    return _finish(bound, documents, problems)


def validate(path: str | Path, parameters: Mapping[str, str] | None = None) -> list[Problem]:
    """Every problem of a playbook or a drill (and of the playbook that it names), errors and warnings, in order.

    Raises `UserError` only where there is no such file.
    """
    name = str(path)
    known = {**locate.available("playbooks"), **locate.available("drills")}
    if name not in known and "/" not in name and not Path(name).exists() and (hint := suggest(name, known)):
        raise UserError(f"no such file: {name} ({hint})")
    file = known[name] if name in known else locate.resolve(name if "/" in name else f"./{name}", "drills")
    try:
        document = source.read(file)
        if _kind(document) == "Playbook":
            loading = _Playbook(document)
            loading.fill({})
            loading.build()
            return sorted(set(document.problems))
        _, documents, problems = _load_drill(document, parameters or {})
    except PlaybookError as error:
        return error.problems
    return sorted({*problems, *(problem for document in documents for problem in document.problems)})


T = TypeVar("T")


def _finish(result: T | None, documents: Iterable[Document], others: Iterable[Problem] = ()) -> T:
    problems = [*others, *(problem for document in documents for problem in document.problems)]
    if result is None or any(problem.severity == "error" for problem in problems):
        raise PlaybookError(problems)
    return result


def _kind(document: Document) -> Any:
    return document.data.get("kind") if isinstance(document.data, dict) else None


def _expect(document: Document, kind: str) -> None:
    """Refuse a file of another kind at once: nothing else that is said about it would help."""
    place = document.place(())
    if not isinstance(document.data, dict):
        document.report(place, f"expected a {kind}: a mapping with apiVersion, kind, metadata")
    elif "kind" not in document.data:
        document.report(place, '"kind" is missing', f"add kind: {kind}")
    elif (found := _kind(document)) != kind:
        at = document.place(("kind",))
        if found in ("Playbook", "Drill"):
            hint = f"a Drill names its playbook; give a file of kind {kind}"
            document.report(at, f"this is a {found}, expected a {kind}", hint)
        else:
            hint = suggest(str(found), ("Playbook", "Drill")) or "Playbook and Drill are known"
            document.report(at, f'unknown kind "{found}"', hint)
    elif "apiVersion" not in document.data:
        document.report(place, '"apiVersion" is missing', f"add apiVersion: {API_VERSION}")
    elif document.data["apiVersion"] != API_VERSION:
        at = document.place(("apiVersion",))
        document.report(at, f'unknown apiVersion "{document.data["apiVersion"]}"', f"write {API_VERSION}")
    if document.problems:
        raise PlaybookError(document.problems)


class _Declaration(Model):
    """The part of a playbook that must be read before the rest."""

    model_config = ConfigDict(extra="ignore")
    parameters: dict[ParameterName, Parameter] = Field(default_factory=dict)


@dataclass
class _Playbook:
    """A playbook while it is being loaded."""

    document: Document
    declared: dict[str, Parameter] = field(default_factory=dict)
    """Parameters whose definitions make sense."""
    broken: set[str] = field(default_factory=set)
    """The other ones; what depends on them is not judged."""
    values: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _expect(self.document, "Playbook")
        section = self.document.data.get("parameters") or {}
        for name in section if isinstance(section, dict) else ():
            # One at a time, so that a mistake in one does not hide the others.
            alone = build(_Declaration, {"parameters": {name: section[name]}}, self.document, {})
            good = parameters.define(self.document, alone.parameters) if alone else {}
            self.declared.update(good)
            if name not in good:
                self.broken.add(name)

    def knows(self, name: str) -> bool:
        return name in self.declared or name in self.broken

    def fill(self, given: Mapping[str, Any]) -> None:
        """Set values; a parameter without one gets a stand-in, so that the rest can still be judged."""
        self.values = {
            name: given[name] if name in given else parameters.stand_in(parameter)
            for name, parameter in self.declared.items()
        }

    def substitute(self, document: Document) -> parameters.Substitution:
        return parameters.Substitution(document, self.declared, self.values, self.broken)

    def build(self) -> Playbook | None:
        substitution = self.substitute(self.document)
        if self.broken:
            data = {**substitution.data, "parameters": {}}
            build(Playbook, data, self.document, substitution.used, substitution.unresolved)
            return None
        for name in self.declared:
            if not any(name in names for names in substitution.used.values()):
                place = self.document.place(("parameters", name), of_key=True)
                self.document.report(place, f'parameter "{name}" is used nowhere', "remove it", warning=True)
        playbook = build(Playbook, substitution.data, self.document, substitution.used, substitution.unresolved)
        if playbook is not None:
            for finding in rules.review_playbook(playbook):
                _place(self.document, finding)
        return playbook


def _place(document: Document, finding: rules.Finding) -> None:
    place = document.inside(finding.keys, finding.offset) if finding.offset else document.place(finding.keys)
    document.report(place, finding.message, finding.hint, warning=finding.warning)


def _load_drill(
    document: Document, overrides: Mapping[str, str]
) -> tuple[BoundDrill | None, list[Document], list[Problem]]:
    """The drill, the documents that were read (with their problems), and problems of the command line."""
    _expect(document, "Drill")
    loading = _named_playbook(document)
    if loading is None:
        build(Drill, document.data, document, {})
        return None, [document], []
    problems: list[Problem] = []
    for name in [name for name in overrides if name.startswith(LAB)]:
        document.override(tuple(name.split(".")), overrides[name], f"{COMMAND_LINE} {name}={overrides[name]}")
    overrides = {name: text for name, text in overrides.items() if not name.startswith(LAB)}
    given = _drill_values(document, loading) | _override_values(overrides, loading, problems)
    _require(document, loading, given.keys() | overrides.keys())
    loading.fill(given)
    playbook = loading.build()
    substitution = loading.substitute(document)
    drill = build(Drill, substitution.data, document, substitution.used, substitution.unresolved)
    documents = [document, loading.document]
    if drill is None or playbook is None:
        return None, documents, problems
    for in_playbook, finding in rules.review_drill(drill, playbook):
        _place(loading.document if in_playbook else document, finding)
    warnings = tuple(p for d in documents for p in d.problems if p.severity == "warning")
    sources = {document.path.name: document.redacted(_secrets(document))}
    name = loading.document.path.name
    sources[name if name not in sources else f"playbook-{name}"] = loading.document.text
    return BoundDrill(drill, playbook, loading.values, sources, document.path, warnings), documents, problems


def _named_playbook(document: Document) -> _Playbook | None:
    name = document.data.get("playbook")
    if not isinstance(name, str) or not name:
        return None  # the model reports it
    try:
        path = locate.resolve(name, "playbooks", beside=document.path.parent)
    except UserError as error:
        document.report(document.place(("playbook",)), str(error))
        return None
    return _Playbook(source.read(path))


def _drill_values(document: Document, loading: _Playbook) -> dict[str, Any]:
    given = document.data.get("parameters")
    values = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        keys: Keys = ("parameters", name)
        if name not in loading.declared:
            if not loading.knows(name):
                document.report(document.place(keys, of_key=True), *_unknown(name, loading))
            continue
        try:
            values[name] = parameters.convert(value, loading.declared[name].type)
            if why := parameters.check(values[name], loading.declared[name]):
                raise ValueError(why)
        except ValueError as error:
            values.pop(name, None)
            document.report(document.place(keys), f"{name}: {error}", loading.declared[name].description)
    return values


def _override_values(overrides: Mapping[str, str], loading: _Playbook, problems: list[Problem]) -> dict[str, Any]:
    values = {}
    for name, text in overrides.items():
        where = f"{COMMAND_LINE} {name}={text}"
        if name not in loading.declared:
            if not loading.knows(name):
                problems.append(Problem(where, 0, 0, *_unknown(name, loading)))
            continue
        try:
            value = parameters.convert(text, loading.declared[name].type, from_text=True)
            if why := parameters.check(value, loading.declared[name]):
                raise ValueError(why)
            values[name] = value
        except ValueError as error:
            problems.append(Problem(where, 0, 0, str(error), loading.declared[name].description))
    return values


def _unknown(name: str, loading: _Playbook) -> tuple[str, str]:
    known = loading.declared
    hint = suggest(name, known) or f"the playbook has: {', '.join(known) or 'none'}"
    return f'unknown parameter "{name}"', hint


def _require(document: Document, loading: _Playbook, given: Iterable[str]) -> None:
    drill_values = document.data.get("parameters")
    named = {*given, *(drill_values if isinstance(drill_values, dict) else ())}
    for name, parameter in loading.declared.items():
        if parameter.default is None and name not in named:
            place = document.place(("parameters",), of_key=True)
            hint = f"add {name}: VALUE under parameters, or give -p {name}=VALUE"
            document.report(place, f'parameter "{name}" of the playbook has no value', hint)


def _secrets(document: Document) -> list[Keys]:
    """Places of scalars that are credentials."""
    found = []
    for keys in document.scalars:
        in_headers = "headers" in keys[:-1]
        literal = keys[-1:] == ("value",) and (in_headers or "api_key" in keys)
        if literal or (in_headers and keys[-2] == "headers" and is_sensitive(str(keys[-1]))):
            found.append(keys)
    return found
