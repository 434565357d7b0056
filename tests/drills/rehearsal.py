"""Runs a drill on a lab inside the test's process, with short phases, and keeps what the live folds said."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import anyio

from chaosrunner.analysis import AnalysisContext, Facts, Live, analyse
from chaosrunner.cli import lab_process
from chaosrunner.engine import Options, run_drill
from chaosrunner.playbook import BoundDrill, load_drill
from chaosrunner.timeline import rows
from chaosrunner.timeline.reader import Recording
from chaosrunner.timeline.rows import Emit

Some = TypeVar("Some")
OnRow = Callable[[rows.Row, Live], None]
Lab = Callable[[dict[str, Any]], AbstractAsyncContextManager[lab_process.Ready]]
"""Serves a workload, given as a drill's `lab:` section, for the length of the block."""

SHORT = {
    "baseline": "2s",
    "hold": "2s",
    "max_tokens": "32",
    "chunk_gap": "500ms",
    "duration": "5s",
    "silence": "4s",
    "lab.startup": "1s",
    "lab.warmup.first_token": "300ms",
    "lab.warmup.standstill": "700ms",
}
"""Phases of 2 to 3 seconds; everything else is as shipped."""


@dataclass(frozen=True)
class Rehearsal:
    recording: Recording
    facts: Facts
    """From the recording, after the end."""
    live: Facts
    """From the folds that were fed while the run lasted."""

    @property
    def folder(self) -> Path:
        return self.recording.folder

    @cached_property
    def rows(self) -> list[rows.Row]:
        return list(self.recording.rows())

    def of(self, kind: type[Some]) -> list[Some]:
        return [row for row in self.rows if isinstance(row, kind)]

    def said_by_the_lab(self) -> dict[tuple[str | None, str], float]:
        """By the UID of a Pod and what happened: when the lab's own log says it first, on the recording's clock."""
        anchor = self.recording.manifest.anchor
        said: dict[tuple[str | None, str], float] = {}
        for line in (self.folder / lab_process.LOG).read_text().splitlines():
            row = json.loads(line)
            said.setdefault((row.get("uid"), row["what"]), row["wall"] - anchor)
        return said


def load(drill: str, **parameters: str) -> BoundDrill:
    """The drill with short phases; parameters that it does not have are left out."""
    bound = load_drill(drill)
    known = set(bound.parameters)
    values = {name: value for name, value in SHORT.items() if name in known or name.startswith("lab.")}
    return load_drill(drill, values | parameters)


def embedded(spec: dict[str, Any]) -> AbstractAsyncContextManager[lab_process.Ready]:
    return lab_process.on_embedded_lab(spec, lambda doing: None)


def rehearse(
    drill: str, timelines: Path, on_row: OnRow | None = None, *, lab: Lab = embedded, **parameters: str
) -> Rehearsal:
    """Rehearses a drill. `on_row` is called with every row, after the live folds have seen it."""
    bound = load(drill, **parameters)

    async def run() -> Rehearsal:
        async with lab(lab_process.lab_spec(bound)) as ready:
            return await run_on(ready, bound, timelines, on_row)

    return anyio.run(run)


async def run_on(
    ready: lab_process.Ready, bound: BoundDrill, timelines: Path, on_row: OnRow | None = None
) -> Rehearsal:
    """Runs a drill on a workload that serves; this process is in the lab's network."""
    kept: list[Live] = []

    def follow(folder: Path, live: Live) -> Emit:
        kept.append(live)
        return lambda row: on_row(row, live) if on_row else None

    aimed, config = lab_process.towards(bound, ready)
    options = Options(
        timelines=timelines,
        lab="real" if ready.network else "embedded",
        signals=False,
        follow=follow,
        finish=lambda folder: lab_process.keep_log(ready, folder),
    )
    recording = Recording.open((await run_drill(aimed, config, options)).folder)
    return Rehearsal(recording, analyse(recording, AnalysisContext.of(recording.manifest)), kept[0].facts())
