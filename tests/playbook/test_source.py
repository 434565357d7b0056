from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.playbook.problems import PlaybookError
from chaosrunner.playbook.source import Place, parse


def data(text: str) -> Any:
    return parse(text.encode(), Path("a.yaml"), "a.yaml").data


def problems(raw: bytes) -> list[str]:
    with pytest.raises(PlaybookError) as caught:
        parse(raw, Path("a.yaml"), "a.yaml")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("on", "on"), ("yes", "yes"), ("No", "No"), ("y", "y"),  # booleans in YAML 1.1
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        ("1:30", "1:30"), ("190:20:30", "190:20:30"),  # base 60 in YAML 1.1
        ("010", "010"), ("0x1f", "0x1f"), ("1_000", "1_000"),  # octal, hexadecimal, grouped
        ("1e3", 1000.0), ("12e03", 12000.0), ("1.5", 1.5), (".5", 0.5), ("-3", -3), ("+3", 3),
        ("2026-01-15", "2026-01-15"), (".inf", ".inf"), (".nan", ".nan"), ("=", "="),
        ("'5'", "5"), ("!!str 5", "5"), ("30s", "30s"), ("50%", "50%"),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(scalar: str, value: object) -> None:
    read = data(f"a: {scalar}")["a"]
    assert read == value
    assert type(read) is type(value)


def test_keys_are_text() -> None:
    assert data("{on: 1, 2: 3, null: 4, true: 5}") == {"on": 1, "2": 3, "null": 4, "true": 5}


def test_anchors_and_merges_work() -> None:
    text = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\nboth: {<<: [*base, {c: 4}]}\nsame: *base\n"
    read = data(text)
    assert read["other"] == {"a": 1, "b": 3}
    assert read["both"] == {"a": 1, "b": 2, "c": 4}
    assert read["same"] == read["base"]


def test_places_of_keys_and_values() -> None:
    document = parse(b"a:\n  - b: 1\n    c:  two\n", Path("a.yaml"), "a.yaml")
    assert document.place(("a", 0, "c")) == Place(3, 9)
    assert document.place(("a", 0, "c"), of_key=True) == Place(3, 5)
    assert document.place(("a", 0, "missing")) == Place(2, 5)
    assert document.place(("nowhere", "at", "all")) == Place(1, 1)


@pytest.mark.parametrize(
    ("text", "offset", "column"),
    [
        ("a: success >= 1", 8, 12),
        ("a: 'success >= 1'", 8, 13),
        ('a: "success >= 1"', 8, 13),
        ('a: "succ\\x65ss >= 1"', 8, 4),  # an escape: only the start can be told
        ("a: >\n  success >= 1", 8, 4),
    ],
)
def test_places_inside_a_scalar(text: str, offset: int, column: int) -> None:
    assert parse(text.encode(), Path("a.yaml"), "a.yaml").inside(("a",), offset) == Place(1, column)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", ["a.yaml:1:1: the file is empty"]),
        (b"# only a comment\n", ["a.yaml:1:1: the file is empty"]),
        (b"a: 1\n---\nb: 2\n",
         ['a.yaml:3:1: more than one document (remove everything from "---" on, or split the file)']),
        (b"a: 1\nb: \xff\n", ["a.yaml:2:4: not UTF-8 (save the file as UTF-8)"]),
        (b"\xff\xfea\x00:\x00", ["a.yaml:1:1: not UTF-8 (save the file as UTF-8)"]),
        (b"a:\n\tb: 1\n", ["a.yaml:2:1: no YAML: while scanning for the next token; found character '\\t' that "
                           "cannot start any token (indent with spaces, YAML forbids tabs)"]),
        (b"a: b: c\n", ["a.yaml:1:5: no YAML: mapping values are not allowed here "
                        "(put text with a colon in quotes, or check the indentation)"]),
        (b"a: @b\n", ["a.yaml:1:4: no YAML: while scanning for the next token; found character '@' that cannot start "
                      "any token (put the text in quotes)"]),
        (b"a: *b\n", ["a.yaml:1:4: no YAML: found undefined alias 'b' (text that begins with \"*\" needs quotes)"]),
        (b"a: [1, 2\n", ["a.yaml:2:1: no YAML: while parsing a flow sequence; expected ',' or ']', but got "
                         "'<stream end>'"]),
        (b"a: \x01\n", ["a.yaml:1:4: no YAML: character U+0001 is not allowed"]),
        (b"a: 1\nb: 2\na: 3\nb: 4\n", ['a.yaml:3:1: "a" is given twice (first in line 1)',
                                       'a.yaml:4:1: "b" is given twice (first in line 2)']),
        (b"a: 99999999999999999999\nb: 1e999\n",
         ["a.yaml:1:4: the number is too large (put it in quotes if it is text)",
          "a.yaml:2:4: the number is too large (put it in quotes if it is text)"]),
        (b"a: " + b"9" * 10_000, ["a.yaml:1:4: the number is too large (put it in quotes if it is text)"]),
        (b"a: !!python/name:os.system [ls]\n",
         ["a.yaml:1:4: tag tag:yaml.org,2002:python/name:os.system is not supported"]),
        (b"a: !secret x\n", ["a.yaml:1:4: tag !secret is not supported (put the text in quotes)"]),
        (b"? [a]\n: 1\n", ["a.yaml:1:3: a key must be plain text"]),
        (b"a: &a [*a]\n", ["a.yaml:1:4: an alias that contains itself"]),
        (b"a: &a {<<: *a}\n", ['a.yaml:1:8: "<<" merges a mapping']),
        (b"a: {<<: 1}\n", ['a.yaml:1:5: "<<" merges a mapping']),
        (b"a: " + b"[" * 2000, ["a.yaml:1:53: no YAML: nested too deeply"]),
        (b"#" * 1_000_001, ["a.yaml: larger than 1000000 bytes"]),
    ],
)  # fmt: skip
def test_what_is_no_good_yaml_is_told(raw: bytes, expected: list[str]) -> None:
    assert problems(raw) == expected


def test_aliases_cannot_multiply_without_end() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (problem,) = problems("\n".join(lines).encode())
    assert "too large: aliases multiply the content" in problem


def test_a_byte_order_mark_is_no_text() -> None:
    assert data("\ufeffa: 1") == {"a": 1}


@given(st.binary(max_size=200))
def test_any_bytes_are_data_or_told_problems(raw: bytes) -> None:
    with contextlib.suppress(PlaybookError):
        parse(raw, Path("a.yaml"), "a.yaml")


def test_redaction_takes_only_the_scalar() -> None:
    document = parse(b"a: {value: s3cret, b: s3cret}  # s3cret?\n", Path("a.yaml"), "a.yaml")
    assert document.redacted([("a", "value")]) == 'a: {value: "[redacted]", b: s3cret}  # s3cret?\n'
