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
    made = [_problems(plan), _workload(plan), _load(plan), _steps(plan), _rights(plan)]
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


def _load(plan: Plan) -> Section:
    section = Section("Load, from the first step to the last")
    for probe in plan.probes:
        section.line(f"{probe.name}: {probe.text}")
    return section


def _steps(plan: Plan) -> Section:
    section = Section("Steps, with predicted answers")
    for step in plan.steps:
        section.line(f"{step.index + 1}  {step.text}")
        for touch in step.touches:
            section.line(f"     {_touch(touch)}: {_answer(touch)}", "dim")
        if step.alternatives:
            section.line(f"     chosen when it fires; each alone: {_alternatives(step.alternatives)}", "dim")
        if step.stays:
            section.line(f"     stays until undone: {step.stays}", "warn")
    return section


def _alternatives(touches: Sequence[Touch]) -> str:
    """Answers, and of which targets where they differ."""
    answers: dict[str, list[str]] = {}
    for touch in touches:
        answers.setdefault(touch.predicted or UNKNOWN, []).append(touch.target.name)
    if len(answers) == 1:
        return next(iter(answers))
    return "; ".join(f"{answer} for {', '.join(names)}" for answer, names in answers.items())


def _touch(touch: Touch) -> str:
    name = f"{touch.target.kind.lower()}/{touch.target.name}"
    return f"{touch.action.replace('_', ' ')} {name}" + (f" on {touch.target.node}" if touch.target.node else "")


def _answer(touch: Touch) -> str:
    answer = touch.predicted or UNKNOWN
    why = f", {touch.reason}" if touch.reason else ""
    return answer + why + (f" [{', '.join(touch.pdbs)}]" if touch.pdbs else "")


def _rights(plan: Plan) -> Section:
    section = Section("Rights")
    missing = [right for right in plan.rbac if right.allowed is False]
    if not missing:
        section.line(f"all {len(plan.rbac)} rights that the drill needs are there", "dim")
    return section
