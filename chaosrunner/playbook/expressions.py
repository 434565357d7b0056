"""The small language of `checks`, `until`, `when` and `abort`: comparisons of metrics, joined by and, or, not.

    expression  = expression ("and" | "or") expression | "not" expression | "(" expression ")" | comparison | metric
    comparison  = operand ("==" | "!=" | "<" | "<=" | ">" | ">=") operand
    operand     = metric | literal
    metric      = name [ "(" argument { "," argument } ")" ] [ "[" duration "]" ]
    literal     = number | number "%" | duration | quoted string | "true" | "false"

`or` binds least, then `and`, then `not`, then comparisons, which do not chain. Everything that can be wrong without
a run is wrong when parsed: unknown names, arguments, and quantities that cannot be compared.

Evaluation is three-valued (Kleene's strong logic): a metric that is not known makes a comparison unknown (`None`),
`false and unknown` is false, `true or unknown` is true. Unknown is never a pass.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, Protocol

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from chaosrunner.playbook.durations import format_duration, parse_duration, parse_percent
from chaosrunner.timeline.outcomes import Outcome

# --- what can be asked ------------------------------------------------------------------------------------


class Quantity(StrEnum):
    """What a metric or a literal measures; decides what may be compared with what."""

    SHARE = "a share between 0 and 1"
    SECONDS = "seconds"
    COUNT = "a count"
    RATE = "requests a second"
    BOOLEAN = "true or false"
    STATE = "an alert state"
    NUMBER = "a number"
    PERCENT = "a percentage"
    DURATION = "a duration"
    STRING = "a string"


PHASES: Final = ("baseline", "during", "after")
LATENCIES: Final = ("ttft", "ttft_answer", "tpot", "e2e", "chunk_gap")
OUTCOMES: Final = tuple(outcome.value for outcome in Outcome)
ALERT_STATES: Final = ("inactive", "pending", "firing")
ANSWERS: Final = (
    "accepted", "blocked_by_budget", "budget_not_observed", "throttled", "multiple_budgets", "precondition_failed",
    "not_found", "forbidden", "namespace_terminating", "bad_request", "server_error", "unreachable",
    "already_terminating",
)  # fmt: skip
"""Classes of the answer to an eviction."""


@dataclass(frozen=True)
class Argument:
    """One argument of a metric. `values` are the words allowed; empty means a quoted string."""

    what: str
    values: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True)
class MetricType:
    """A metric that expressions may use."""

    quantity: Quantity
    doc: str
    arguments: tuple[Argument, ...] = ()
    window: bool = False
    """Whether `[30s]` may follow."""


_PHASE = Argument("phase", PHASES)
_PERCENTILE = (Argument("latency", LATENCIES, required=True), _PHASE)


def _percentile(percent: int) -> MetricType:
    doc = f"{percent}th percentile, nearest rank, over successful requests"
    return MetricType(Quantity.SECONDS, doc, _PERCENTILE)


METRICS: Final[dict[str, MetricType]] = {
    "success_rate": MetricType(Quantity.SHARE, "successes over requests that count", (_PHASE,), window=True),
    "incomplete_200": MetricType(Quantity.COUNT, "requests with HTTP 200 that were no success", (_PHASE,)),
    "requests": MetricType(Quantity.COUNT, "requests that count", (_PHASE,)),
    "outcome": MetricType(
        Quantity.COUNT, "requests with this outcome", (Argument("outcome", OUTCOMES, required=True), _PHASE)
    ),
    "loss_on_victim": MetricType(Quantity.SHARE, "exposed requests that were lost, over exposed requests"),
    "exposed": MetricType(Quantity.COUNT, "requests in flight on a victim when the fault was sent"),
    "unplaced": MetricType(Quantity.COUNT, "requests in flight when the fault was sent whose Pod is not known"),
    "in_flight": MetricType(
        Quantity.COUNT, "requests in flight, in all or on the target", (Argument("target", ("target",)),)
    ),
    "p50": _percentile(50),
    "p90": _percentile(90),
    "p95": _percentile(95),
    "p99": _percentile(99),
    "goodput": MetricType(Quantity.RATE, "successes inside every SLO, a second"),
    "good_share": MetricType(Quantity.SHARE, "successes inside every SLO over requests that count"),
    "time_to_serve": MetricType(Quantity.SECONDS, "fault sent to warm, longest of the replacements"),
    "time_to_ready": MetricType(Quantity.SECONDS, "fault sent to Pod Ready, longest of the replacements"),
    "time_to_first_stream": MetricType(
        Quantity.SECONDS, "fault sent to the first complete stream, longest of the replacements"
    ),
    "routing_delay": MetricType(
        Quantity.SECONDS,
        "first request that a replacement served directly to its first one through the gateway, longest of the "
        "replacements; takes a probe with target: replicas",
    ),
    "replacement.created": MetricType(Quantity.BOOLEAN, "every replacement exists"),
    "replacement.ready": MetricType(Quantity.BOOLEAN, "every replacement is Ready"),
    "replacement.endpoint_ready": MetricType(Quantity.BOOLEAN, "every replacement is a ready endpoint"),
    "replacement.routed": MetricType(Quantity.BOOLEAN, "a request was routed to every replacement"),
    "replacement.first_complete": MetricType(Quantity.BOOLEAN, "a stream was complete on every replacement"),
    "replacement.warm": MetricType(Quantity.BOOLEAN, "every replacement is warm"),
    "replacement.tokens": MetricType(
        Quantity.COUNT, "most completion tokens of one success, least of the replacements"
    ),
    "replacements": MetricType(Quantity.COUNT, "replacements seen"),
    "ready_endpoints": MetricType(Quantity.COUNT, "ready endpoints of the Service"),
    "pods_ready": MetricType(Quantity.COUNT, "Ready Pods of the workload"),
    "endpoints_back": MetricType(Quantity.BOOLEAN, "as many ready endpoints as before the first fault"),
    "restarts": MetricType(Quantity.COUNT, "container restarts in the workload since the run began"),
    "zero_ready_seconds": MetricType(Quantity.SECONDS, "time without any ready endpoint"),
    "evictions": MetricType(
        Quantity.COUNT,
        "evictions with this answer; one that got none is accepted where its Pod is seen to go",
        (Argument("answer", ANSWERS, required=True),),
    ),
    "alert": MetricType(Quantity.STATE, "state of the alert now", (Argument("alert name", required=True),)),
    "alert_fired": MetricType(
        Quantity.BOOLEAN, "the alert fired during the run", (Argument("alert name", required=True),)
    ),
}
"""Every metric by name."""

_COMPARABLE: Final[dict[Quantity, frozenset[Quantity]]] = {
    Quantity.SHARE: frozenset({Quantity.SHARE, Quantity.NUMBER, Quantity.PERCENT}),
    Quantity.SECONDS: frozenset({Quantity.SECONDS, Quantity.NUMBER, Quantity.DURATION}),
    Quantity.COUNT: frozenset({Quantity.COUNT, Quantity.NUMBER}),
    Quantity.RATE: frozenset({Quantity.RATE, Quantity.NUMBER}),
    Quantity.BOOLEAN: frozenset({Quantity.BOOLEAN}),
    Quantity.STATE: frozenset({Quantity.STATE, Quantity.STRING}),
}

_SPELLING: Final[dict[Quantity, str]] = {
    Quantity.SHARE: "compare with a share like 0.999 or 99.9%",
    Quantity.SECONDS: "compare with a duration like 2s or 500ms",
    Quantity.COUNT: "compare with a whole number",
    Quantity.RATE: "compare with a number (requests a second)",
    Quantity.BOOLEAN: "compare with true or false, or write it alone",
    Quantity.STATE: 'compare with "inactive", "pending" or "firing"',
}

Value = float | bool | str | None
"""Value of a metric; None is unknown."""


class Scope(Protocol):
    """Where an expression gets its values from."""

    def value(self, name: str, args: tuple[str, ...], window: float | None) -> Value:
        """Value of a metric at this instant; `window` in seconds; None where it is not known."""


class ExpressionError(ValueError):
    """Text that is no expression. `column` counts characters from 0; `hint` says how to mend it."""

    def __init__(self, message: str, column: int, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.hint = hint


# --- the tree ---------------------------------------------------------------------------------------------


class Expression:
    """A parsed expression: immutable, comparable, and `parse(str(expression)) == expression`."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> Expression:
            if isinstance(value, Expression):
                return value
            if not isinstance(value, str):
                hint = 'write it as a string, like "success_rate >= 0.99"'
                raise PydanticCustomError(
                    "expression", "{message}", {"message": "expected an expression", "hint": hint}
                )
            try:
                return parse(value)
            except ExpressionError as error:
                context = {"message": error.message, "hint": error.hint, "column": error.column}
                raise PydanticCustomError("expression", "{message}", context) from None

        return core_schema.no_info_plain_validator_function(read, serialization=core_schema.to_string_ser_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "minLength": 1, "examples": ["success_rate >= 99.9% and replacement.warm"]}


@dataclass(frozen=True)
class Metric(Expression):
    name: str
    args: tuple[str, ...] = ()
    window: float | None = None
    """Seconds."""

    def __str__(self) -> str:
        words = (
            arg if kind.values else _quoted(arg)
            for arg, kind in zip(self.args, METRICS[self.name].arguments, strict=False)
        )
        args = f"({', '.join(words)})" if self.args else ""
        return f"{self.name}{args}" + (f"[{format_duration(self.window)}]" if self.window is not None else "")


@dataclass(frozen=True)
class Literal(Expression):
    quantity: Quantity
    value: float | bool | str
    """A share for percentages, seconds for durations."""
    text: str
    """As written."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Comparison(Expression):
    left: Metric | Literal
    sign: str
    right: Metric | Literal

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"


@dataclass(frozen=True)
class Not(Expression):
    operand: Expression

    def __str__(self) -> str:
        return f"not {_inside(self.operand, And, Or)}"


@dataclass(frozen=True)
class And(Expression):
    left: Expression
    right: Expression

    def __str__(self) -> str:
        return f"{_inside(self.left, Or)} and {_inside(self.right, And, Or)}"


@dataclass(frozen=True)
class Or(Expression):
    left: Expression
    right: Expression

    def __str__(self) -> str:
        return f"{self.left} or {_inside(self.right, Or)}"


def _inside(expression: Expression, *looser: type[Expression]) -> str:
    return f"({expression})" if isinstance(expression, looser) else str(expression)


def _quoted(text: str) -> str:
    return f"'{text}'" if '"' in text else f'"{text}"'


def walk(expression: Expression) -> Iterator[Metric | Literal | Comparison]:
    """Comparisons and operands, left to right."""
    match expression:
        case Not(operand):
            yield from walk(operand)
        case And(left, right) | Or(left, right):
            yield from walk(left)
            yield from walk(right)
        case Comparison(left, _, right):
            yield expression
            yield from walk(left)
            yield from walk(right)
        case Metric() | Literal():
            yield expression


def metrics(expression: Expression) -> set[str]:
    """Names of the metrics that the expression reads."""
    return {node.name for node in walk(expression) if isinstance(node, Metric)}


def reads_target(expression: Expression) -> bool:
    """Whether it asks about the Pod that a step would take, as `in_flight(target)` does."""
    return any(isinstance(node, Metric) and "target" in node.args for node in walk(expression))


# --- evaluation -------------------------------------------------------------------------------------------

_SIGNS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def evaluate(expression: Expression, scope: Scope) -> bool | None:
    """True, false, or None where what is known does not decide it (Kleene's strong three-valued logic)."""
    match expression:
        case And(left, right):
            first, second = evaluate(left, scope), evaluate(right, scope)
            if first is False or second is False:
                return False
            return True if first and second else None
        case Or(left, right):
            first, second = evaluate(left, scope), evaluate(right, scope)
            if first or second:
                return True
            return None if first is None or second is None else False
        case Not(operand):
            inner = evaluate(operand, scope)
            return None if inner is None else not inner
        case Comparison(left, sign, right):
            a, b = operand_value(left, scope), operand_value(right, scope)
            return None if a is None or b is None else _SIGNS[sign](a, b)
        case Metric():
            value = operand_value(expression, scope)
            return None if value is None else bool(value)
    raise TypeError(f"{expression!r} cannot be evaluated alone")


def operand_value(operand: Metric | Literal, scope: Scope) -> Value:
    """Value of one side of a comparison."""
    if isinstance(operand, Literal):
        return operand.value
    return scope.value(operand.name, operand.args, operand.window)


# --- parsing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int


_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<percent>[0-9]+(?:\.[0-9]+)?\s*%)
      | (?P<duration>(?:[0-9]+(?:\.[0-9]+)?(?:ms|[dhms]))+(?![\w.]))
      | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?(?![\w.]))
      | (?P<string>"[^"\n]*"|'[^'\n]*')
      | (?P<word>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
      | (?P<sign>==|!=|<=|>=|<|>)
      | (?P<mark>[()\[\],])""",
    re.VERBOSE | re.ASCII,
)
_SLIPS: Final = {"&&": "and", "&": "and", "||": "or", "|": "or", "!": "not", "=": "==", "=<": "<=", "=>": ">="}
_KEYWORDS: Final = frozenset({"and", "or", "not", "true", "false"})
_OR, _AND, _NOT = 1, 2, 3
_DEEPEST: Final = 50
_LONGEST: Final = 4000


def parse(text: str) -> Expression:
    """Parse an expression; raises `ExpressionError`."""
    if len(text) > _LONGEST:
        raise ExpressionError(f"longer than {_LONGEST} characters", _LONGEST)
    return _Parser(text).parse()


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean "..."?`, or nothing when no known word is near."""
    spelled = {name.casefold(): name for name in known}
    near = get_close_matches(word.casefold(), spelled, n=1, cutoff=0.6)
    return f'did you mean "{spelled[near[0]]}"?' if near else ""


class _Parser:
    """Precedence climbing over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_tokens(text))
        self.next = 0
        self.depth = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def parse(self) -> Expression:
        if self.token.kind == "end":
            raise self.error("the expression is empty", self.token, 'write it like "success_rate >= 0.99"')
        tree = self.truth(_OR)
        if self.token.kind != "end":
            raise self.error(
                f"unexpected {self.token.text!r} after the expression", self.token, 'join parts with "and" or "or"'
            )
        return tree

    def truth(self, weakest: int) -> Expression:
        """An expression whose operators bind at least as tightly as `weakest`."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.error(f"nested more than {_DEEPEST} deep", self.token)
        tree = self.prefix()
        while True:
            if self.token.text == "and" and weakest <= _AND:
                self.take()
                tree = And(tree, self.truth(_AND + 1))
            elif self.token.text == "or" and weakest <= _OR:
                self.take()
                tree = Or(tree, self.truth(_OR + 1))
            else:
                self.depth -= 1
                return tree

    def prefix(self) -> Expression:
        if self.token.text == "not" and self.token.kind == "word":
            self.take()
            return Not(self.truth(_NOT))
        if self.token.text == "(":
            opening = self.take()
            tree = self.truth(_OR)
            if self.token.text != ")":
                raise self.error('")" is missing', opening if self.token.kind == "end" else self.token)
            self.take()
            if self.token.kind == "sign":
                raise self.error("only metrics and literals can be compared", self.token)
            return tree
        return self.comparison()

    def comparison(self) -> Expression:
        start = self.token
        left = self.operand()
        if self.token.kind != "sign":
            if isinstance(left, Literal):
                raise self.error(f"{left} alone says nothing", start, "compare a metric with it")
            if METRICS[left.name].quantity is not Quantity.BOOLEAN:
                raise self.error(
                    f"{left} is {METRICS[left.name].quantity}, not true or false", start, _SPELLING[quantity(left)]
                )
            return left
        sign, at = self.take(), self.token
        right = self.operand()
        if self.token.kind == "sign":
            raise self.error("comparisons do not chain", self.token, 'join two comparisons with "and"')
        self.check(left, start, sign, right, at)
        return Comparison(left, sign.text, right)

    def check(self, left: Metric | Literal, start: _Token, sign: _Token, right: Metric | Literal, at: _Token) -> None:
        """Refuse to compare quantities that have nothing in common."""
        other: Metric | Literal
        if isinstance(left, Metric):
            metric, other, where = left, right, at
        elif isinstance(right, Metric):
            metric, other, where = right, left, start
        else:
            raise self.error("compares two constants", start, "one side must be a metric")
        kind = quantity(metric)
        if quantity(other) not in _COMPARABLE[kind]:
            raise self.error(f"{metric} is {kind}, {other} is {quantity(other)}", where, _SPELLING[kind])
        if kind in (Quantity.BOOLEAN, Quantity.STATE) and sign.text not in ("==", "!="):
            raise self.error(f"{metric} has no order", sign, "use == or !=")
        if isinstance(other, Literal):
            if kind is Quantity.SHARE and isinstance(other.value, float) and other.value > 1:
                percent = f"write {other}%" if other.quantity is Quantity.NUMBER else "use at most 100%"
                raise self.error(f"{metric} is a share between 0 and 1, {other} is above it", where, percent)
            if kind is Quantity.COUNT and isinstance(other.value, float) and other.value != int(other.value):
                raise self.error(f"{metric} is a count, {other} is no whole number", where)
            if kind is Quantity.STATE and other.value not in ALERT_STATES:
                raise self.error(f"no alert is ever {other}", where, _one_of(str(other.value), ALERT_STATES))

    def operand(self) -> Metric | Literal:
        token = self.take()
        match token.kind:
            case "number":
                return Literal(Quantity.NUMBER, float(token.text), token.text)
            case "percent":
                return Literal(Quantity.PERCENT, parse_percent(token.text), token.text)
            case "duration":
                return Literal(Quantity.DURATION, self.duration(token), token.text)
            case "string":
                return Literal(Quantity.STRING, token.text[1:-1], token.text)
            case "word" if token.text in ("true", "false"):
                return Literal(Quantity.BOOLEAN, token.text == "true", token.text)
            case "word" if token.text not in _KEYWORDS:
                return self.metric(token)
            case "end":
                raise self.error("the expression ends too early", token, "a metric or a value is missing")
        raise self.error(f"unexpected {token.text!r}", token, "a metric or a value belongs here")

    def metric(self, name: _Token) -> Metric:
        if name.text not in METRICS:
            hint = suggest(name.text, METRICS) or f"known: {', '.join(METRICS)}"
            raise self.error(f'unknown metric "{name.text}"', name, hint)
        known = METRICS[name.text]
        args = tuple(self.arguments(name, known)) if self.token.text == "(" else ()
        required = sum(argument.required for argument in known.arguments)
        if len(args) < required:
            what = known.arguments[len(args)].what
            raise self.error(f"{name.text} needs its {what}", name, f"write {_signature(name.text)}")
        window = None
        if self.token.text == "[":
            opening = self.take()
            if not known.window:
                raise self.error(f"{name.text} takes no window", opening)
            window = self.duration(self.take())
            if window <= 0:
                raise self.error("the window must be longer than 0s", opening)
            self.expect("]")
        return Metric(name.text, args, window)

    def arguments(self, name: _Token, known: MetricType) -> Iterator[str]:
        opening = self.take()
        if not known.arguments:
            raise self.error(f"{name.text} takes no arguments", opening, f"write {name.text}")
        for position, argument in enumerate(known.arguments):
            token = self.take()
            if not argument.values and token.kind != "string":
                raise self.error(
                    f"{name.text} takes its {argument.what} in quotes", token, f"write {_signature(name.text)}"
                )
            word = token.text[1:-1] if token.kind == "string" else token.text
            if argument.values and word not in argument.values:
                raise self.error(f'{name.text} has no {argument.what} "{word}"', token, _one_of(word, argument.values))
            if not word:
                raise self.error(f"the {argument.what} is empty", token)
            yield word
            if self.token.text != "," or position + 1 == len(known.arguments):
                break
            self.take()
        if self.token.text == ",":
            raise self.error(f"{name.text} takes at most {len(known.arguments)} argument(s)", self.token)
        self.expect(")")

    def duration(self, token: _Token) -> float:
        if token.kind != "duration":
            raise self.error(
                f"{token.text!r} is no duration" if token.text else "a duration is missing", token, "like 30s"
            )
        try:
            return parse_duration(token.text)
        except ValueError as error:
            raise self.error(str(error), token) from None

    def expect(self, mark: str) -> None:
        if self.token.text != mark:
            raise self.error(f'"{mark}" is missing', self.token)
        self.take()

    def take(self) -> _Token:
        token = self.token
        if token.kind != "end":
            self.next += 1
        return token

    def error(self, message: str, token: _Token, hint: str = "") -> ExpressionError:
        return ExpressionError(message, token.column, hint)


def quantity(operand: Metric | Literal) -> Quantity:
    """What an operand measures."""
    return operand.quantity if isinstance(operand, Literal) else METRICS[operand.name].quantity


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            slip = re.match(r"&&?|\|\|?|=[<>]?|!", text[at:])
            if slip:
                raise ExpressionError(f"unknown operator {slip[0]!r}", at, f'write "{_SLIPS[slip[0]]}"')
            if text[at] in "\"'":
                raise ExpressionError("the quote is never closed", at)
            if text[at] in "+-*/":
                raise ExpressionError("there is no arithmetic, and no metric is negative", at)
            unread = re.split(r"(?<=[\w.])(?![\w.])", text[at:], maxsplit=1)[0]
            raise ExpressionError(f"cannot read {unread!r}", at)
        if match.lastgroup != "space":
            yield _Token(match.lastgroup or "", match[0], at)
        at = match.end()
    yield _Token("end", "", len(text))


def _one_of(word: str, known: tuple[str, ...]) -> str:
    return suggest(word, known) or f"one of: {', '.join(known)}"


def _signature(name: str) -> str:
    """How a metric is written, as in `outcome(cut_stream, during)`."""
    known = METRICS[name].arguments
    words = [(a.values[0] if a.values else f'"{a.what}"') for a in known if a.required]
    return f"{name}({', '.join(words)})"
