"""What a plan looks like to people. Every answer in it is a prediction, and says so."""

from __future__ import annotations

from collections.abc import Sequence

from chaosrunner.faults.base import Touch
from chaosrunner.plan.plan import Plan
from chaosrunner.reports.document import Cell, Section, Style, Table
from chaosrunner.reports.format import UNKNOWN, plural

SEVERITIES: dict[str, Style] = {"refuse": "bad", "warn": "warn", "info": "dim"}


def plan_headline(plan: Plan) -> Cell:
    if plan.refused:
        return Cell(f"REFUSED: {plan.drill} would not be run", "bad")
    return Cell(
        f"{plan.drill} on context {plan.context}, namespace {plan.workload.namespace}: nothing was changed", "good"
    )


def plan_sections(plan: Plan) -> list[Section]:
    made = [_problems(plan), _workload(plan), _steps(plan), _rights(plan)]
    return [section for section in made if section.parts]


def _problems(plan: Plan) -> Section:
    section = Section("Problems")
    for problem in plan.problems:
        section.line(f"{problem.severity}: {problem.text}", SEVERITIES[problem.severity])
        if problem.how:
            section.line(f"  {problem.how}")
    return section


def _workload(plan: Plan) -> Section:
    section = Section("Workload")
    workload = plan.workload
    section.line(
        f"{workload.controller or 'no controller'}, {plural(len(plan.candidates), 'candidate')} "
        f"by {workload.selector}, service {workload.service or UNKNOWN}"
        + ("" if plan.ready_endpoints is None else f" with {plural(plan.ready_endpoints, 'ready endpoint')}")
    )
    if plan.candidates:
        rows = [(pod.name, pod.node or UNKNOWN, pod.uid) for pod in plan.candidates]
        section.table(Table(("candidate", "node", "UID"), rows, wrap=frozenset({0, 1, 2})))
    return section


def _steps(plan: Plan) -> Section:
    section = Section("Steps")
    rows: list[Sequence[Cell | str]] = []
    for step in plan.steps:
        rows.append((str(step.index + 1), step.text, ""))
        rows += [("", f"  {_touch(touch)}", _answer(touch)) for touch in step.touches]
        if step.alternatives:
            others = ", ".join(f"{touch.target.name}: {touch.predicted or UNKNOWN}" for touch in step.alternatives)
            rows.append(("", f"  it chooses when it fires; each alone: {others}", ""))
        if step.stays:
            rows.append(("", f"  stays until undone: {step.stays}", ""))
    section.table(Table(("", "step", "predicted answer"), rows, wrap=frozenset({1, 2})))
    return section


def _touch(touch: Touch) -> str:
    name = f"{touch.target.kind.lower()}/{touch.target.name}"
    return f"{touch.action.replace('_', ' ')} {name}" + (f" on {touch.target.node}" if touch.target.node else "")


def _answer(touch: Touch) -> str:
    answer = touch.predicted or UNKNOWN
    why = f": {touch.reason}" if touch.reason else ""
    return answer + why + (f" [{', '.join(touch.pdbs)}]" if touch.pdbs else "")


def _rights(plan: Plan) -> Section:
    section = Section("Rights")
    missing = [right for right in plan.rbac if right.allowed is False]
    if not missing:
        section.line(f"all {len(plan.rbac)} rights that the drill needs are there", "dim")
    return section
