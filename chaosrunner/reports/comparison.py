"""Two recordings beside each other, for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from chaosrunner.analysis.comparison import Aligned, CheckPair, Comparison, DirectSide, LatencyPair, RunInfo, SharePair
from chaosrunner.analysis.facts import ALL, CheckResult, Estimate, Facts, Span
from chaosrunner.analysis.transitions import Transition
from chaosrunner.reports.compare import side_by_side
from chaosrunner.reports.document import STYLES, Cell, Section, Style, Table
from chaosrunner.reports.format import UNKNOWN, number, one_line, plural, seconds, share
from chaosrunner.reports.sections import found_in
from chaosrunner.timeline.outcomes import SUCCESSES

NAMES = ("A", "B")
MOST_SETTINGS = 24
"""Most differing settings that are shown; the JSON has all."""
MOST_LINES = 12
"""Most differing lines of a file that are shown; the JSON has all."""
LONGEST = 60
"""Longest value of a setting that is shown whole."""


def headline(comparison: Comparison) -> Cell:
    """The whole comparison in one line."""
    a, b = (verdict.replace("_", " ") for verdict in (comparison.a.verdict, comparison.b.verdict))
    verdicts = f"both {a}" if comparison.same_verdict else f"A {a}, B {b}"
    phases = list(dict.fromkeys(pair.phase for pair in comparison.outcomes if bool(pair.a) != bool(pair.b)))
    outcomes = f"other outcomes in {', '.join(phases)}" if phases else "the same outcomes in each phase"
    order = "the same transitions"
    if not comparison.same_transitions:
        alone = sum(line.a is None or line.b is None for line in comparison.timeline)
        parts = [f"{plural(alone, 'transition')} of one side only"] if alone else []
        parts += [plural(len(comparison.inversions), "order inversion")] if comparison.inversions else []
        order = " and ".join(parts)
    word = "SAME" if comparison.same else "DIFFERENT"
    return Cell(f"{word}: {verdicts}; {outcomes}; {order}", "good" if comparison.same else "warn")


def sections(comparison: Comparison, a: Facts, b: Facts) -> list[Section]:
    """Everything that the comparison says, most important first. `a` and `b` are the facts of the two sides."""
    figures, *losses = side_by_side((a, b), NAMES, checks=False)
    made = [
        _compared(comparison),
        _settings(comparison),
        figures,
        *losses,
        _checks(comparison.checks),
        _shares(comparison),
        _outcomes(comparison),
        _recovery(comparison),
        _latency(comparison),
        *_direct(comparison),
        _timeline(comparison),
        _order(comparison),
    ]
    return [section for section in made if section.parts]


def _compared(comparison: Comparison) -> Section:
    section = Section("Compared")
    a, b = comparison.a, comparison.b
    rows: list[Sequence[Cell | str]] = [
        ("drill", a.drill, b.drill),
        ("run", a.run, b.run),
        ("on", _place(a), _place(b)),
        ("recorded", seconds(a.seconds), seconds(b.seconds)),
    ]
    section.table(Table(("", *NAMES), rows, wrap=frozenset({1, 2})))
    unfaulted = [name for name, side in zip(NAMES, (a, b), strict=True) if not side.fault]
    if unfaulted:
        text = f"no fault was sent in {' and '.join(unfaulted)}: times are from the start of the recording"
        section.line(text, "warn")
    return section


def _place(side: RunInfo) -> str:
    if side.load is not None:
        return f"no cluster: a probe alone, {side.load}"
    return f"{side.lab} lab" if side.lab else f"context {side.context}" if side.context else "a cluster"


def _settings(comparison: Comparison) -> Section:
    section = Section("Differences in what was run")
    settings = [item for item in comparison.settings if item.what != "drill"]  # which is shown above
    rows = [(item.what, _setting(item.a), _setting(item.b)) for item in settings[:MOST_SETTINGS]]
    if rows:
        section.table(Table(("", *NAMES), rows, wrap=frozenset({0, 1, 2})))
    if len(settings) > MOST_SETTINGS:
        section.line(f"and {len(settings) - MOST_SETTINGS} more; the JSON output has them", "dim")
    other = {item.what for item in settings}
    for text in comparison.texts:
        if text.kind in other:
            continue  # nobody compares the lines of two playbooks
        section.line(f"lines of the {text.kind}'s file that only one side has", "dim")
        for line in text.lines[:MOST_LINES]:
            section.line(f"  {'A' if line.startswith('-') else 'B'}  {line[1:]}")
        if len(text.lines) > MOST_LINES:
            section.line(f"  and {len(text.lines) - MOST_LINES} more; the JSON output has them", "dim")
    if not section.parts:
        section.line("none: the same drill, playbook, parameters, versions and Pods", "good")
    return section


def _setting(value: object) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else one_line(str(value), LONGEST)


# --- verdicts and shares ------------------------------------------------------------------------------------


def _checks(pairs: Sequence[CheckPair]) -> Section:
    section = Section("Checks")
    rows = [(pair.check, _check(pair.a), _check(pair.b)) for pair in pairs]
    if rows:
        section.table(Table(("check", *NAMES), rows, wrap=frozenset({0, 1, 2})))
    return section


def _check(check: CheckResult | None) -> Cell:
    if check is None:
        return Cell(UNKNOWN, "dim")
    found = "" if check.verdict == "skipped" else found_in(check)
    return Cell(f"{check.verdict}: {found}" if found else check.verdict, STYLES[check.verdict])


def _shares(comparison: Comparison) -> Section:
    section = Section("Shares, with their 95 % intervals")
    rows = [
        (
            pair.what + (f", {pair.phase}" if pair.phase != ALL else ""),
            _estimate(pair.a),
            _estimate(pair.b),
            _points(pair.difference),
            _chance(pair),
        )
        for pair in comparison.shares
    ]
    section.table(Table(("", *NAMES, "B − A", ""), rows, wrap=frozenset({0, 1, 2, 3, 4})))
    if any(pair.chance and pair.difference.value for pair in comparison.shares):
        section.line("within chance: two runs of the same thing may differ so much; more streams or runs tell", "dim")
    return section


def _estimate(value: Estimate | None) -> str:
    if value is None or value.value is None:
        return UNKNOWN
    return f"{share(value.value)} ({100 * (value.low or 0):.3g}…{100 * (value.high or 0):.3g})"


def _points(value: Span) -> str:
    """A difference of shares, in percentage points."""
    if value.value is None or value.low is None or value.high is None:
        return UNKNOWN
    shown, low, high = (f"{100 * end:+.3g}" for end in (value.value, value.low, value.high))
    return f"{shown} ({low}…{high})" if value.value else "0"


def _chance(pair: SharePair) -> Cell:
    if pair.chance is None:
        return Cell("")
    if not pair.difference.value:
        return Cell("equal", "dim")
    return Cell("within chance", "dim") if pair.chance else Cell("beyond chance", "warn")


def _outcomes(comparison: Comparison) -> Section:
    section = Section("Outcomes by phase")
    rows: list[Sequence[Cell | str]] = []
    before = ""
    for pair in comparison.outcomes:
        style: Style = "plain" if pair.outcome in SUCCESSES else "bad"
        alone = "" if pair.a and pair.b else "only A" if pair.a else "only B"
        rows.append(
            (
                pair.phase if pair.phase != before else "",
                Cell(pair.outcome, style),
                str(pair.a or UNKNOWN),
                str(pair.b or UNKNOWN),
                Cell(alone, "warn"),
            )
        )
        before = pair.phase
    if rows:
        section.table(Table(("sent in", "outcome", *NAMES, ""), rows, right=frozenset({2, 3})))
    return section


# --- recovery and latency -----------------------------------------------------------------------------------


def _recovery(comparison: Comparison) -> Section:
    section = Section("Time to serve, after the fault was sent")
    several = any(pair.replacement > 1 for pair in comparison.stages)
    width = _width(row for pair in comparison.stages for row in (*pair.evidence.a[:1], *pair.evidence.b[:1]))
    rows = [
        (
            (f"replacement {pair.replacement}: " if several else "") + pair.stage.replace("_", " "),
            _with_row(_span(pair.a), pair.evidence.a, width),
            _with_row(_span(pair.b), pair.evidence.b, width),
            _signed(pair.difference.value),
            _ratio(pair.ratio),
        )
        for pair in comparison.stages
        if pair.a.high is not None or pair.b.high is not None
    ]
    if rows:
        columns = ("", *NAMES, "B − A", "B / A")
        section.table(Table(columns, rows, right=frozenset({1, 2, 3, 4}), wrap=frozenset({0})))
    return section


def _span(value: Span) -> str:
    if value.value is not None:
        return f"{value.value:.3f} s"
    if value.low is not None and value.high is not None:
        return f"{value.low:.2f} to {value.high:.2f} s"
    return UNKNOWN


def _signed(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:+.3f} s"


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _latency(comparison: Comparison) -> Section:
    section = Section("Latency of successful requests")
    pairs = {(pair.metric, pair.phase, pair.percentile): pair for pair in comparison.latency}
    percentiles = sorted({percentile for *_, percentile in pairs})
    rows: list[Sequence[Cell | str]] = []
    before = ""
    for metric, phase in dict.fromkeys((metric, phase) for metric, phase, _ in pairs):
        mine = [pairs[metric, phase, percentile] for percentile in percentiles]
        if metric == "ttft_answer" and all(_only_answers(pair, pairs) for pair in mine):
            continue
        cells = [cell for pair in mine for cell in (seconds(pair.a), seconds(pair.b), _ratio(pair.ratio))]
        rows.append((metric if metric != before else "", phase, f"{mine[0].n_a}/{mine[0].n_b}", *cells))
        before = metric
    if rows:
        heads = [head for p in percentiles for head in (f"p{p} A", f"p{p} B", "B / A")]
        columns = ("metric", "sent in", "n A/B", *heads)
        section.table(Table(columns, rows, right=frozenset(range(2, len(columns))), wrap=frozenset({2})))
    return section


def _only_answers(answer: LatencyPair, pairs: Mapping[tuple[str, str, int], LatencyPair]) -> bool:
    """Whether the first token of any kind was the answer's, or it is not known which was."""
    first = pairs.get(("ttft", answer.phase, answer.percentile))
    return first is not None and answer.a in (None, first.a) and answer.b in (None, first.b)


# --- replicas, asked directly -------------------------------------------------------------------------------


def _direct(comparison: Comparison) -> Iterable[Section]:
    """One for each probe of the replicas: what each answered, when it served, and how late the gateway was."""
    pairs = comparison.direct
    shown = _Titles(pair.role for pair in pairs)
    for probe in dict.fromkeys(pair.probe for pair in pairs):
        section = Section(f"Replicas, asked directly by {probe}")
        rows: list[Sequence[Cell | str]] = []
        for pair in pairs:
            if pair.probe != probe:
                continue
            role, sides = shown.of(pair.role), (pair.a, pair.b)
            rows.append((f"{role}: answered", *map(_answered, sides), ""))
            for what, spans, difference in (
                ("served, after the fault", [side.served if side else None for side in sides], pair.served_difference),
                ("routing delay", [side.routing_delay if side else None for side in sides], pair.delay_difference),
            ):
                told = [_span(span) if span else UNKNOWN for span in spans]
                if told != [UNKNOWN, UNKNOWN]:
                    rows.append((f"{role}: {what}", *told, _signed(difference.value)))
            if any(side is not None and side.routed_after is not None for side in sides):
                rows.append((f"{role}: sent to after it stopped", *map(_late, sides), ""))
        section.table(Table(("", *NAMES, "B − A"), rows, right=frozenset({1, 2, 3}), wrap=frozenset({0})))
        yield section


def _answered(side: DirectSide | None) -> str:
    if side is None:
        return UNKNOWN
    of = f" by {side.replicas}" if side.replicas > 1 else ""
    wrong = [f"{count} {outcome}" for outcome, count in side.outcomes.items() if outcome not in SUCCESSES]
    lost = f" ({', '.join(wrong)})" if wrong else ""
    return f"{side.answered.successes} of {side.answered.total}{of}{lost}"


def _late(side: DirectSide | None) -> Cell:
    if side is None or side.routed_after is None:
        return Cell(UNKNOWN)
    lost = f", {side.routed_after_lost} lost" if side.routed_after_lost else ""
    return Cell(f"{side.routed_after}{lost}", "warn" if lost else "plain")


# --- the timelines ------------------------------------------------------------------------------------------


def _timeline(comparison: Comparison) -> Section:
    section = Section("Timelines, in seconds after the fault was sent")
    lines = comparison.timeline
    shown = _Titles(line.role for line in lines)
    width = _width(side.row for line in lines for side in (line.a, line.b) if side is not None)
    rows: list[Sequence[Cell | str]] = []
    for line in lines:
        alone = "" if line.a and line.b else "only A" if line.a else "only B"
        rows.append(
            (
                f"{shown.of(line.role)}: {line.what}{_detail(line)}",
                _instant(line.a, width),
                _instant(line.b, width),
                Cell(alone, "warn") if alone else _number(line.difference),
            )
        )
    if rows:
        section.table(Table(("", *NAMES, "B − A"), rows, right=frozenset({1, 2, 3}), wrap=frozenset({0})))
    return section


class _Titles:
    """Roles as people say them: a number only where there are several."""

    def __init__(self, roles: Iterable[str]) -> None:
        self._several = {match[1] for role in roles for match in re.finditer(r"(\w[\w ]*?) [2-9]\d*\b", _last(role))}

    def of(self, role: str) -> str:
        kind, _, count = role.rpartition(" ")
        return kind if count == "1" and _last(role).rpartition(" ")[0] not in self._several else role


def _last(role: str) -> str:
    """`victim 1` of `endpoint of victim 1`."""
    return re.sub(r"^(endpoint of|requests on) ", "", role)


def _detail(line: Aligned) -> str:
    details = list(dict.fromkeys(side.detail for side in (line.a, line.b) if side is not None and side.detail))
    return f" ({' / '.join(details)})" if details else ""


def _instant(side: Transition | None, width: int) -> str:
    if side is None:
        return UNKNOWN + " " * (width + 1)
    text = _number(side.at) if side.at is not None else f"{side.window[0]:+.2f} to {side.window[1]:+.2f}"
    return _with_row(text, [side.row], width)


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    text = f"{value:+.3f}"
    return text[1:] if float(text) == 0 else text


def _width(rows: Iterable[int]) -> int:
    """Characters of the longest row id."""
    return max((len(f"#{row}") for row in rows), default=0)


def _with_row(text: str, rows: Sequence[int], width: int) -> str:
    """A figure and the row that shows it, in columns."""
    return f"{text} {f'#{rows[0]}' if rows else '':<{width}}"


def _order(comparison: Comparison) -> Section:
    """Inversions, those of the same transitions together: who changed places with whom."""
    section = Section("Order")
    shown = _Titles(line.role for line in comparison.timeline)
    left = {(item.earlier, item.later) for item in comparison.inversions}
    order = list(dict.fromkeys((line.role, line.what) for line in comparison.timeline))
    while left:
        later = {key: frozenset(last for first, last in left if first == key) for key in order}
        earlier = {key: frozenset(first for first, last in left if last == key) for key in order}
        partners, words = max(
            ((later, ("before", "after")), (earlier, ("after", "before"))),
            key=lambda side: max(map(len, side[0].values())),
        )
        others = max(partners.values(), key=len)
        moved = [key for key in order if partners[key] == others]
        section.line(f"{_listed(moved, shown)}: in A {words[0]}, in B {words[1]}", "warn")
        section.line(f"  {_listed([key for key in order if key in others], shown)}")
        left -= {pair for key in moved for other in others for pair in ((key, other), (other, key))}
    return section


def _listed(keys: Sequence[tuple[str, str]], shown: _Titles) -> str:
    """Transitions role by role."""
    roles: dict[str, list[str]] = {}
    for role, what in dict.fromkeys(keys):
        roles.setdefault(shown.of(role), []).append(what)
    return "; ".join(f"{role}: {', '.join(whats)}" for role, whats in roles.items())
