from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.playbook.expressions import (
    ALERT_STATES,
    METRICS,
    And,
    Comparison,
    Expression,
    ExpressionError,
    Literal,
    Metric,
    Not,
    Or,
    Quantity,
    Value,
    evaluate,
    metrics,
    parse,
)


class Table:
    """A scope out of a table; what is missing is unknown."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = values

    def value(self, name: str, args: tuple[str, ...], window: float | None) -> Value:
        return self.values.get(str(Metric(name, args, window)))


def judge(text: str, **values: Value) -> bool | None:
    return evaluate(parse(text), Table({name.replace("__", "."): value for name, value in values.items()}))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("replacement.warm", Metric("replacement.warm")),
        (
            "success_rate(during)[1m30s] >= 99.9%",
            Comparison(Metric("success_rate", ("during",), 90.0), ">=", Literal(Quantity.PERCENT, 0.999, "99.9%")),
        ),
        ("0 == exposed", Comparison(Literal(Quantity.NUMBER, 0.0, "0"), "==", Metric("exposed"))),
        (
            'alert("Api \'5xx\'") == "firing"',
            Comparison(Metric("alert", ("Api '5xx'",)), "==", Literal(Quantity.STRING, "firing", '"firing"')),
        ),
        (
            "not endpoints_back and replacement.ready or replacement.warm",
            Or(And(Not(Metric("endpoints_back")), Metric("replacement.ready")), Metric("replacement.warm")),
        ),
        (
            "endpoints_back and (replacement.ready or replacement.warm)",
            And(Metric("endpoints_back"), Or(Metric("replacement.ready"), Metric("replacement.warm"))),
        ),
        (
            "not exposed == 1",
            Not(Comparison(Metric("exposed"), "==", Literal(Quantity.NUMBER, 1.0, "1"))),
        ),
        (
            "p99( ttft , during )<=500ms",
            Comparison(Metric("p99", ("ttft", "during")), "<=", Literal(Quantity.DURATION, 0.5, "500ms")),
        ),
    ],
)  # fmt: skip
def test_trees(text: str, tree: Expression) -> None:
    assert parse(text) == tree


@pytest.mark.parametrize(
    ("text", "column", "message", "hint"),
    [
        ("", 0, "the expression is empty", 'write it like "success_rate >= 0.99"'),
        ("succes_rate >= 0.9", 0, 'unknown metric "succes_rate"', 'did you mean "success_rate"?'),
        ("replacement.wram", 0, 'unknown metric "replacement.wram"', 'did you mean "replacement.warm"?'),
        ("success_rate >= 2s", 16, "success_rate is a share between 0 and 1, 2s is a duration",
         "compare with a share like 0.999 or 99.9%"),
        ("success_rate >= 99", 16, "success_rate is a share between 0 and 1, 99 is above it", "write 99%"),
        ("success_rate >= 101%", 16, "success_rate is a share between 0 and 1, 101% is above it", "use at most 100%"),
        ("time_to_serve < 50%", 16, "time_to_serve is seconds, 50% is a percentage",
         "compare with a duration like 2s or 500ms"),
        ("exposed >= 1.5", 11, "exposed is a count, 1.5 is no whole number", ""),
        ("exposed == success_rate", 11, "exposed is a count, success_rate is a share between 0 and 1",
         "compare with a whole number"),
        ("replacement.warm == 1", 20, "replacement.warm is true or false, 1 is a number",
         "compare with true or false, or write it alone"),
        ("replacement.warm > true", 17, "replacement.warm has no order", "use == or !="),
        ('alert("A") == "fireing"', 14, 'no alert is ever "fireing"', 'did you mean "firing"?'),
        ('alert("A") >= "firing"', 11, 'alert("A") has no order', "use == or !="),
        ("alert(A) == \"firing\"", 6, "alert takes its alert name in quotes", 'write alert("alert name")'),
        ("alert == \"firing\"", 0, "alert needs its alert name", 'write alert("alert name")'),
        ("outcome(cut_strem) == 0", 8, 'outcome has no outcome "cut_strem"', 'did you mean "cut_stream"?'),
        ("evictions(ok) == 1", 10, 'evictions has no answer "ok"', "one of: accepted, blocked_by_budget, "
         "budget_not_observed, throttled, multiple_budgets, precondition_failed, not_found, forbidden, "
         "namespace_terminating, bad_request, server_error, unreachable, already_terminating"),
        ("p99 < 1s", 0, "p99 needs its latency", "write p99(ttft)"),
        ("p99(ttft, now) < 1s", 10, 'p99 has no phase "now"', "one of: baseline, during, after"),
        ("p99(ttft, during, after) < 1s", 16, "p99 takes at most 2 argument(s)", ""),
        ("exposed(1) == 0", 7, "exposed takes no arguments", "write exposed"),
        ("exposed[30s] == 0", 7, "exposed takes no window", ""),
        ("success_rate[30] > 0.9", 13, "'30' is no duration", "like 30s"),
        ("success_rate[0s] > 0.9", 12, "the window must be longer than 0s", ""),
        ("success_rate[30s > 0.9", 17, '"]" is missing', ""),
        ("success_rate", 0, "success_rate is a share between 0 and 1, not true or false",
         "compare with a share like 0.999 or 99.9%"),
        ("0.9 < success_rate < 1", 19, "comparisons do not chain", 'join two comparisons with "and"'),
        ("1 == 1", 0, "compares two constants", "one side must be a metric"),
        ("true", 0, "true alone says nothing", "compare a metric with it"),
        ("(replacement.warm", 0, '")" is missing', ""),
        ("(exposed) == 1", 1, "exposed is a count, not true or false", "compare with a whole number"),
        ("(replacement.warm) == true", 19, "only metrics and literals can be compared", ""),
        ("replacement.warm replacement.ready", 17, "unexpected 'replacement.ready' after the expression",
         'join parts with "and" or "or"'),
        ("replacement.warm and", 20, "the expression ends too early", "a metric or a value is missing"),
        ("exposed >= and", 11, "unexpected 'and'", "a metric or a value belongs here"),
        ("replacement.warm && endpoints_back", 17, "unknown operator '&&'", 'write "and"'),
        ("exposed = 1", 8, "unknown operator '='", 'write "=="'),
        ("!replacement.warm", 0, "unknown operator '!'", 'write "not"'),
        ("exposed == -1", 11, "there is no arithmetic, and no metric is negative", ""),
        ('alert("A) == 1', 6, "the quote is never closed", ""),
        ("exposed == 1x", 11, "cannot read '1x'", ""),
        ("p99(ttft) < 1m1m", 12, '"1m1m" is no duration; write it like 500ms, 30s, 10m or 1h30m', ""),
        (" or ".join(["endpoints_back"] * 300), 4000, "longer than 4000 characters", ""),
        ("(" * 60 + "replacement.warm" + ")" * 60, 50, "nested more than 50 deep", ""),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_column(text: str, column: int, message: str, hint: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert (caught.value.message, caught.value.column, caught.value.hint) == (message, column, hint)


@pytest.mark.parametrize(
    ("text", "values", "result"),
    [
        ("success_rate >= 99.9%", {"success_rate": 0.999}, True),
        ("success_rate >= 99.9%", {"success_rate": 0.9989}, False),
        ("success_rate >= 99.9%", {}, None),
        ("p99(ttft) <= 500ms", {"p99(ttft)": 0.5}, True),
        ("p99(ttft, during) <= p99(ttft, baseline)", {"p99(ttft, during)": 2.0, "p99(ttft, baseline)": 1.0}, False),
        ('alert("A") != "firing"', {'alert("A")': "pending"}, True),
        ('alert("A") != "firing"', {}, None),
        ("replacement.warm == false", {"replacement.warm": False}, True),
        ("loss_on_victim == 0", {"loss_on_victim": 0.0}, True),
    ],
)
def test_values(text: str, values: dict[str, Value], result: bool | None) -> None:
    assert evaluate(parse(text), Table(values)) is result


TRUTH = (True, False, None)


@pytest.mark.parametrize("a", TRUTH)
@pytest.mark.parametrize("b", TRUTH)
def test_logic_is_kleenes(a: bool | None, b: bool | None) -> None:
    """With false < unknown < true, and is the least, or the greatest (Kleene, 1938)."""
    order = {False: 0, None: 1, True: 2}
    assert judge("endpoints_back and replacement.warm", endpoints_back=a, replacement__warm=b) is min(
        (a, b), key=order.__getitem__
    )
    assert judge("endpoints_back or replacement.warm", endpoints_back=a, replacement__warm=b) is max(
        (a, b), key=order.__getitem__
    )
    assert judge("not endpoints_back", endpoints_back=a) is (None if a is None else not a)


def test_metrics_of_an_expression() -> None:
    text = 'success_rate[30s] >= 0.99 and not (alert("A") == "firing" or in_flight(target) < in_flight)'
    assert metrics(parse(text)) == {"success_rate", "alert", "in_flight"}


# --- properties ---------------------------------------------------------------------------------------------


@st.composite
def some_metric(draw: st.DrawFn, quantities: frozenset[Quantity] = frozenset(Quantity)) -> Metric:
    name = draw(st.sampled_from([n for n, known in METRICS.items() if known.quantity in quantities]))
    known = METRICS[name]
    args = []
    for argument in known.arguments:
        if not argument.required and draw(st.booleans()):
            break
        words = st.sampled_from(argument.values) if argument.values else st.text(min_size=1).filter(
            lambda text: "\n" not in text and not ('"' in text and "'" in text)
        )  # fmt: skip
        args.append(draw(words))
    window = draw(st.none() | st.integers(1, 10**6).map(lambda ms: ms / 1000)) if known.window else None
    return Metric(name, tuple(args), window)


@st.composite
def some_literal(draw: st.DrawFn, quantity: Quantity) -> Literal:
    match quantity:
        case Quantity.SHARE:
            text = f"{draw(st.integers(0, 1000)) / 10}%"
        case Quantity.SECONDS:
            text = f"{draw(st.integers(0, 10**6))}ms"
        case Quantity.BOOLEAN:
            text = draw(st.sampled_from(["true", "false"]))
        case Quantity.STATE:
            text = f'"{draw(st.sampled_from(ALERT_STATES))}"'
        case _:
            text = str(draw(st.integers(0, 10**6)))
    comparison = parse(f"{_EXAMPLE[quantity]} == {text}")
    assert isinstance(comparison, Comparison)
    assert isinstance(comparison.right, Literal)
    return comparison.right


_EXAMPLE = {
    Quantity.SHARE: "success_rate", Quantity.SECONDS: "time_to_serve", Quantity.COUNT: "exposed",
    Quantity.RATE: "goodput", Quantity.BOOLEAN: "endpoints_back", Quantity.STATE: 'alert("A")',
}  # fmt: skip


@st.composite
def some_comparison(draw: st.DrawFn) -> Expression:
    left = draw(some_metric())
    quantity = METRICS[left.name].quantity
    right = draw(some_literal(quantity) | some_metric(frozenset({quantity})))
    signs = ["==", "!="] if quantity in (Quantity.BOOLEAN, Quantity.STATE) else ["==", "!=", "<", "<=", ">", ">="]
    return Comparison(left, draw(st.sampled_from(signs)), right)


some_expression = st.recursive(
    some_comparison() | some_metric(frozenset({Quantity.BOOLEAN})),
    lambda inner: st.builds(Not, inner) | st.builds(And, inner, inner) | st.builds(Or, inner, inner),
    max_leaves=8,
)


@given(some_expression)
def test_what_is_written_reads_back(expression: Expression) -> None:
    assert parse(str(expression)) == expression


@given(st.text())
def test_any_text_is_an_expression_or_a_mistake_inside_it(text: str) -> None:
    columns = [0]
    try:
        parse(text)
    except ExpressionError as error:
        columns.append(error.column)
    assert 0 <= columns[-1] <= len(text)


@given(some_expression, st.data())
def test_unknown_values_never_decide_more_than_known_ones(expression: Expression, data: st.DataObject) -> None:
    """Kleene's logic is monotone: learning a value turns unknown into true or false and never flips a decision."""
    known: dict[str, Value] = {}
    for name in METRICS:
        match METRICS[name].quantity:
            case Quantity.BOOLEAN:
                known[name] = data.draw(st.booleans())
            case Quantity.STATE:
                known[name] = data.draw(st.sampled_from(ALERT_STATES))
            case _:
                known[name] = data.draw(st.floats(0, 10))
    hidden = data.draw(st.sets(st.sampled_from(sorted(METRICS))))

    class ByName:
        def __init__(self, hide: set[str]) -> None:
            self.hide = hide

        def value(self, name: str, args: tuple[str, ...], window: float | None) -> Value:
            return None if name in self.hide else known[name]

    full, partial = evaluate(expression, ByName(set())), evaluate(expression, ByName(hidden))
    assert full is not None
    assert partial is None or partial == full
