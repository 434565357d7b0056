"""Chooses among drills as pytest chooses among tests: `-k` by name, `-m` by tag, with and, or, not, parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable

from chaosrunner.errors import UserError

_TOKEN = re.compile(r"\s*(?:(?P<mark>[()])|(?P<word>[^\s()]+))")

Match = Callable[[str], bool]


def compile_expression(text: str, option: str) -> Callable[[Match], bool]:
    """The expression as a function of what a single word means.

    Raises UserError where it does not parse.
    """
    tokens = [found["mark"] or found["word"] for found in _TOKEN.finditer(text.strip())]

    def wrong(what: str) -> UserError:
        return UserError(f"{option} {text!r}: {what}; like: evict and not drain")

    def either() -> Callable[[Match], bool]:
        left = both()
        while tokens and tokens[0] == "or":
            tokens.pop(0)
            left = _or(left, both())
        return left

    def both() -> Callable[[Match], bool]:
        left = single()
        while tokens and tokens[0] == "and":
            tokens.pop(0)
            left = _and(left, single())
        return left

    def single() -> Callable[[Match], bool]:
        if not tokens:
            raise wrong("ends too early")
        token = tokens.pop(0)
        if token == "not":
            inner = single()
            return lambda match: not inner(match)
        if token == "(":
            inner = either()
            if not tokens or tokens.pop(0) != ")":
                raise wrong("a parenthesis is not closed")
            return inner
        if token in (")", "and", "or"):
            raise wrong(f"{token!r} is out of place")
        return lambda match: match(token)

    made = either()
    if tokens:
        raise wrong(f"{tokens[0]!r} is out of place")
    return made


def _or(left: Callable[[Match], bool], right: Callable[[Match], bool]) -> Callable[[Match], bool]:
    return lambda match: left(match) or right(match)


def _and(left: Callable[[Match], bool], right: Callable[[Match], bool]) -> Callable[[Match], bool]:
    return lambda match: left(match) and right(match)


def chosen(name: str, tags: list[str], by_name: str | None, by_tag: str | None) -> bool:
    """Whether a drill is wanted. Names match by part, in any case, as pytest's `-k` does; tags match whole."""
    if by_name and not compile_expression(by_name, "-k")(lambda word: word.lower() in name.lower()):
        return False
    return not by_tag or compile_expression(by_tag, "-m")(lambda word: word in tags)
