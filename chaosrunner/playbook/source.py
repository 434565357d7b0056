"""YAML text to plain data, keeping the place of every key and value.

Scalars are read by the core schema of YAML 1.2, not by the rules of 1.1 that surprise people: `on` and `yes` are
text, `1:30` is text and not 90, `010` is text and not 8, `1e3` is a number, dates are text. Keys are always text.
Anchors, aliases and `<<` work; tags do not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chaosrunner.playbook.problems import PlaybookError, Problem
from chaosrunner.timeline.redact import MASK

Keys = tuple[str | int, ...]
"""Keys and indexes that lead from the root to a place."""

LARGEST_FILE = 1_000_000
"""Bytes."""
_MOST_NODES = 50_000
_DEEPEST = 50
_LARGEST_INT = 2**53
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Place:
    """Line and column, both from 1."""

    line: int
    column: int
    file: str = ""
    """Where it is written, if not in the document's file."""


@dataclass
class Document:
    """A file that was read."""

    name: str
    """As shown to the user."""
    path: Path
    text: str
    data: Any = None
    values: dict[Keys, Place] = field(default_factory=dict)
    keys: dict[Keys, Place] = field(default_factory=dict)
    scalars: dict[Keys, yaml.ScalarNode] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def report(self, place: Place, message: str, hint: str = "", *, warning: bool = False) -> None:
        severity = "warning" if warning else "error"
        self.problems.append(Problem(place.file or self.name, place.line, place.column, message, hint, severity))  # type: ignore[arg-type]

    def place(self, keys: Keys, *, of_key: bool = False) -> Place:
        """Where the value at `keys` (or its key) is written; the nearest enclosing place where it is not."""
        if of_key and keys in self.keys:
            return self.keys[keys]
        while keys not in self.values and keys:
            keys = keys[:-1]
        return self.values.get(keys, Place(1, 1))

    def inside(self, keys: Keys, offset: int) -> Place:
        """Where character `offset` of the text at `keys` is written; its start where that cannot be told."""
        start = self.place(keys)
        node = self.scalars.get(keys)
        while node is None and keys:
            keys = keys[:-1]
            node = self.scalars.get(keys)
        if node is None or node.start_mark.line != node.end_mark.line:
            return start
        quote = 0 if node.style is None else 1
        raw = self.text[node.start_mark.index + quote : node.end_mark.index - quote]
        return Place(start.line, start.column + quote + offset) if raw == node.value else start

    def override(self, keys: Keys, text: str, origin: str) -> None:
        """Set the value at `keys` to a scalar, written like one in YAML; mappings on the way are made.

        Raises `PlaybookError` where the way leads through something else.
        """
        here = self.data
        for depth, key in enumerate(keys[:-1], start=1):
            here = here.setdefault(key, {})
            if not isinstance(here, dict):
                message = f"{'.'.join(map(str, keys[:depth]))} is no mapping"
                raise PlaybookError([Problem(origin, 0, 0, message)])
        here[keys[-1]] = parse(text.encode(), self.path, origin).data if text.strip() else text
        self.values[keys] = self.keys[keys] = Place(0, 0, origin)
        self.scalars.pop(keys, None)

    def redacted(self, secrets: list[Keys]) -> str:
        """The text with the scalars at `secrets` blotted out."""
        spans = {(node.start_mark.index, node.end_mark.index) for keys in secrets if (node := self.scalars.get(keys))}
        text = self.text
        for start, end in sorted(spans, reverse=True):
            text = f'{text[:start]}"{MASK}"{text[end:]}'
        return text


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with the scalars of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own shape)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose as PyYAML does, which recurses, but not deeper than any file of ours needs."""
        if self.depth >= _DEEPEST:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "nested too deeply", mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


for _kind, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(rf"^(?:{_pattern})$", re.ASCII), list(_first))


def read(path: Path, name: str | None = None) -> Document:
    """Read one file; raises `PlaybookError` where it is no single YAML document or has keys twice."""
    name = name or str(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PlaybookError([Problem(name, 0, 0, f"cannot be read: {error.strerror or error}")]) from error
    return parse(raw, path, name)


def parse(raw: bytes, path: Path, name: str) -> Document:
    """The same for bytes that were read already."""
    if len(raw) > LARGEST_FILE:
        raise PlaybookError([Problem(name, 0, 0, f"larger than {LARGEST_FILE} bytes")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        raise PlaybookError([Problem(name, line, column, "not UTF-8", "save the file as UTF-8")]) from error
    document = Document(name, path, text)
    root = _compose(document)
    if root is not None:
        document.data = _Conversion(document).convert(root, ())
    if document.problems:
        raise PlaybookError(document.problems)
    return document


def _compose(document: Document) -> yaml.Node | None:
    try:
        roots = [root for root in yaml.compose_all(document.text, Loader=_Loader) if root is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
        message = "; ".join(part for part in (error.context, error.problem) if part)
        document.report(place, f"no YAML: {message}", _advice(str(error.problem)))
        return None
    except yaml.reader.ReaderError as error:
        before = document.text[: error.position]
        place = Place(before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1)
        document.report(place, f"no YAML: character U+{int(error.character):04X} is not allowed")
        return None
    if not roots:
        document.report(Place(1, 1), "the file is empty")
        return None
    if len(roots) > 1:
        document.report(
            _place(roots[1]), "more than one document", 'remove everything from "---" on, or split the file'
        )
    return roots[0]


def _advice(problem: str) -> str:
    if "'\\t'" in problem:
        return "indent with spaces, YAML forbids tabs"
    if "mapping values are not allowed" in problem:
        return "put text with a colon in quotes, or check the indentation"
    if "undefined alias" in problem:
        return 'text that begins with "*" needs quotes'
    if "cannot start any token" in problem:
        return "put the text in quotes"
    return ""


def _place(node: yaml.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


class _Conversion:
    """Turns nodes into data, once, noting places and problems in the document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.open: list[yaml.Node] = []
        self.count = 0

    def convert(self, node: yaml.Node, keys: Keys) -> Any:
        self.count += 1
        if self.count > _MOST_NODES:
            if self.count == _MOST_NODES + 1:
                self.document.report(_place(node), "too large: aliases multiply the content")
            return None
        self.document.values[keys] = _place(node)
        if isinstance(node, yaml.ScalarNode):
            self.document.scalars[keys] = node
            return self.scalar(node)
        if any(node is outer for outer in self.open):
            self.document.report(_place(node), "an alias that contains itself")
            return None
        self.open.append(node)
        try:
            if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
                self.document.report(_place(node), f"tag {node.tag} is not supported")
            if isinstance(node, yaml.SequenceNode):
                return [self.convert(item, (*keys, index)) for index, item in enumerate(node.value)]
            return self.mapping(node, keys)
        finally:
            self.open.pop()

    def mapping(self, node: yaml.Node, keys: Keys) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in self.pairs(node):
            path = (*keys, key.value)
            self.document.keys[path] = _place(key)
            result[key.value] = self.convert(value, path)
        return result

    def pairs(self, node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """Merged pairs first, so that own ones win; own keys must differ from each other."""
        own: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                for other in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(other, yaml.MappingNode) or other in self.open:
                        self.document.report(_place(key), '"<<" merges a mapping')
                    else:
                        yield from self.pairs(other)
            elif not isinstance(key, yaml.ScalarNode):
                self.document.report(_place(key), "a key must be plain text")
            elif key.value in own:
                first = own[key.value][0].start_mark.line + 1
                self.document.report(_place(key), f'"{key.value}" is given twice (first in line {first})')
            else:
                own[key.value] = (key, value)
        yield from own.values()

    def scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        match node.tag.removeprefix(_TAG):
            case "str" | "merge":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                if len(text) > 20 or abs(int(text)) > _LARGEST_INT:
                    self.document.report(_place(node), "the number is too large", "put it in quotes if it is text")
                    return 0
                return int(text)
            case "float":
                number = float(text)
                if not math.isfinite(number):
                    self.document.report(_place(node), "the number is too large", "put it in quotes if it is text")
                    return 0.0
                return number
        self.document.report(_place(node), f"tag {node.tag} is not supported", "put the text in quotes")
        return None
