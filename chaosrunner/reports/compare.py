"""Several runs in short, on about one screen: side by side, what was lost, and how it went in plain words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chaosrunner.analysis.facts import ALL, Facts
from chaosrunner.reports.document import STYLES, Cell, Section, Table
from chaosrunner.reports.format import UNKNOWN, plural, seconds, share, span
from chaosrunner.reports.losses import losses

MOST_KINDS = 4
"""Most kinds of loss shown for one run."""

MOST_COLUMNS = 3
"""Most runs as columns; more become rows."""


def side_by_side(runs: Sequence[Facts], names: Sequence[str] = (), *, checks: bool = True) -> list[Section]:
    """The key figures of all, and for each that lost requests, which and after what. `names`: what to call the runs,
    where that is not their drill's name. `checks`: also those that did not pass."""
    names = names or [facts.run.drill for facts in runs]
    made = [_figures(runs, names, checks=checks)]
    for facts, name in zip(runs, names, strict=True):
        lines = losses(facts)
        if lines:
            section = Section(f"Lost in {name}")
            for line in lines[:MOST_KINDS]:
                section.line(line, "bad")
            if len(lines) > MOST_KINDS:
                section.line(f"and {plural(len(lines) - MOST_KINDS, 'more kind')} of loss", "dim")
            made.append(section)
    return made


def _figures(runs: Sequence[Facts], names: Sequence[str], *, checks: bool) -> Section:
    section = Section("Side by side")
    wanted = _FIGURES | (_CHECKS if checks else {})
    figures = [(title, [cell(facts) for facts in runs]) for title, cell in wanted.items()]
    figures = [(title, cells) for title, cells in figures if any(cell.text for cell in cells)]
    if len(runs) <= MOST_COLUMNS:
        rows: list[Sequence[Cell | str]] = [(title, *cells) for title, cells in figures]
        section.table(Table(("", *names), rows, wrap=frozenset(range(1, len(runs) + 1))))
    else:
        short = {title: cells for title, cells in figures if title in _SHORT}
        rows = [(name, *(cells[index] for cells in short.values())) for index, name in enumerate(names)]
        section.table(Table(("drill", *short), rows, wrap=frozenset({0})))
    return section


def _lost(facts: Facts) -> Cell:
    exposure = facts.exposure
    if not exposure.victims:
        return Cell(UNKNOWN)
    if not exposure.exposed:
        return Cell("none was in flight", "warn")
    text = f"{exposure.lost} of {exposure.exposed} ({share(exposure.loss_on_victim)})"
    return Cell(text, "bad" if exposure.lost else "good")


def _incomplete(facts: Facts) -> Cell:
    count = facts.incomplete_200[ALL]
    return Cell(str(count), "bad" if count else "plain")


def _success(facts: Facts) -> Cell:
    rate = facts.success_rate[ALL]
    return Cell(UNKNOWN if rate.value is None else f"{share(rate.value)} ({rate.successes} of {rate.total})")


def _left(facts: Facts) -> Cell:
    """From the accepted call to the end of the Pod's object, the longest."""
    spans = [
        gone.gone.at - eviction.at
        for gone in facts.terminations
        for eviction in facts.evictions
        if eviction.uid == gone.uid and not eviction.dry_run and gone.gone.at is not None
    ]
    return Cell(seconds(max(spans, default=None)))


def _failed(facts: Facts) -> Cell:
    return Cell("\n".join(check.check for check in facts.checks if check.verdict == "failed"))


def _skipped(facts: Facts) -> Cell:
    return Cell("\n".join(check.check for check in facts.checks if check.verdict == "skipped"))


_FIGURES: dict[str, Callable[[Facts], Cell]] = {
    "verdict": lambda facts: Cell(facts.verdict.replace("_", " "), STYLES[facts.verdict]),
    "lost on the victim": _lost,
    "incomplete 200": _incomplete,
    "success rate": _success,
    "victim gone after": _left,
    "Ready after": lambda facts: Cell(span(facts.recovery.time_to_ready)),
    "first stream after": lambda facts: Cell(span(facts.recovery.time_to_first_stream)),
    "warm after": lambda facts: Cell(span(facts.recovery.time_to_serve)),
}
_CHECKS: dict[str, Callable[[Facts], Cell]] = {"failed checks": _failed, "skipped checks": _skipped}

_SHORT = ("verdict", "lost on the victim", "incomplete 200", "success rate", "warm after")


def in_words(facts: Facts) -> str:
    """What a run came to, and why, for people who read one line."""
    exposure, total = facts.exposure, facts.success_rate[ALL]
    parts = []
    if exposure.exposed:
        lost = exposure.lost or "none"
        parts.append(f"lost {lost} of {plural(exposure.exposed, 'stream')} on the victim")
    if total.total:
        parts.append(f"{total.successes} of {plural(total.total, 'request')} succeeded")
    return f"{', '.join(parts)} ({facts.reason})" if parts else facts.reason
