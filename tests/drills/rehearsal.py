"""Runs a drill on the embedded lab inside the test's process, with short phases, and keeps what the live folds said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio

from chaosrunner.analysis import AnalysisContext, Facts, Live, analyse
from chaosrunner.cli import lab_process
from chaosrunner.engine import Options, run_drill
from chaosrunner.playbook import BoundDrill, load_drill
from chaosrunner.timeline import rows
from chaosrunner.timeline.reader import Recording
from chaosrunner.timeline.rows import Emit

SHORT = {
    "baseline": "2s",
    "hold": "2s",
    "max_tokens": "32",
    "chunk_gap": "500ms",
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


def load(drill: str, **parameters: str) -> BoundDrill:
    """The drill with short phases; parameters that it does not have are left out."""
    bound = load_drill(drill)
    known = set(bound.parameters)
    values = {name: value for name, value in SHORT.items() if name in known or name.startswith("lab.")}
    return load_drill(drill, values | parameters)


def rehearse(
    drill: str, timelines: Path, on_row: Callable[[rows.Row, Live], None] | None = None, **parameters: str
) -> Rehearsal:
    """Rehearses a drill. `on_row` is called with every row, after the live folds have seen it."""
    bound = load(drill, **parameters)
    kept: list[Live] = []

    def follow(folder: Path, live: Live) -> Emit:
        kept.append(live)
        return lambda row: on_row(row, live) if on_row else None

    async def run() -> Path:
        async with lab_process.running_lab(lab_process.lab_spec(bound)) as (ready, _):
            aimed, config = lab_process.towards(bound, ready)
            options = Options(
                timelines=timelines,
                lab="embedded",
                signals=False,
                follow=follow,
                finish=lambda folder: lab_process.keep_log(ready, folder),
            )
            return (await run_drill(aimed, config, options)).folder

    recording = Recording.open(anyio.run(run))
    return Rehearsal(recording, analyse(recording, AnalysisContext.of(recording.manifest)), kept[0].facts())
