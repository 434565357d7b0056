"""The small language of -k and -m."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.cli.select import chosen, compile_expression
from chaosrunner.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "a"), ("not a", "not a"), ("a and b or c", "(a and b) or c"), ("a or b and c", "a or (b and c)"),
        ("not a and b", "(not a) and b"), ("not (a or b)", "not (a or b)"), ("not not a", "a"),
        ("((a))and(b)", "a and b"), ("(a or b) and not c", "(a or b) and not c"),
    ],
)  # fmt: skip
def test_precedence_as_in_python(text: str, expected: str) -> None:
    compiled = compile_expression(text, "-k")
    for a, b, c in product([False, True], repeat=3):
        values = {"a": a, "b": b, "c": c}
        assert compiled(values.__getitem__) is eval(expected, {}, dict(values))


expressions = st.recursive(
    st.sampled_from("abc"),
    lambda inner: st.one_of(
        inner.map(lambda x: f"not {x}" if " " not in x else f"not ({x})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
    ),
)


@given(expressions, st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_it_agrees_with_python(text: str, truth: tuple[bool, bool, bool]) -> None:
    values = dict(zip("abc", truth, strict=True))
    assert compile_expression(text, "-m")(values.__getitem__) is eval(text, {}, dict(values))


@pytest.mark.parametrize("text", ["and", "a and", "a b", "(a", "a)", "not", "()", "or a", "a or or b"])
def test_what_does_not_parse(text: str) -> None:
    with pytest.raises(UserError, match="-k"):
        compile_expression(text, "-k")


def test_names_match_by_part_and_in_any_case_tags_whole() -> None:
    assert chosen("lab-evict-one-replica", ["lab"], "EVICT and not drain", None)
    assert not chosen("lab-drain-node", ["lab"], "evict", None)
    assert chosen("x", ["smoke", "lab"], None, "smoke and not slow")
    assert not chosen("x", ["smoke-test"], None, "smoke")
    assert not chosen("x", ["lab"], "x", "smoke")
    assert chosen("x", [], None, None)
