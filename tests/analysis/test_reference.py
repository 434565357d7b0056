"""The recording that is kept in git: an example for people, and a promise that old recordings can be read again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from chaosrunner.analysis import AnalysisContext, Facts, analyse
from chaosrunner.timeline import manifest as manifests
from chaosrunner.timeline import reader
from chaosrunner.timeline.reader import Recording

TIMELINES = Path(__file__).parents[2] / "timelines"
(REFERENCE,) = (TIMELINES / "reference").glob("*/*")


def facts_of(folder: Path) -> Facts:
    recording = Recording.open(folder)
    return analyse(recording, AnalysisContext.of(recording.manifest))


def of_old(new: Any, old: Any) -> Any:
    """What is left of a report without the figures that an older version did not know."""
    if isinstance(new, dict) and isinstance(old, dict):
        return {key: of_old(value, old[key]) for key, value in new.items() if key in old}
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        return [of_old(*pair) for pair in zip(new, old, strict=True)]
    return new


def test_it_gives_every_figure_of_the_report_that_its_run_wrote() -> None:
    written = json.loads((REFERENCE / "report.json").read_bytes())
    assert of_old(msgspec.to_builtins(facts_of(REFERENCE)), written) == written


def test_its_rows_alone_give_the_same_report(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in ("manifest.json", "rows.jsonl"):
        shutil.copyfile(REFERENCE / name, folder / name)
    assert facts_of(folder) == facts_of(REFERENCE)


def test_its_files_are_the_ones_that_its_manifest_names() -> None:
    named = Recording.open(REFERENCE).manifest.files
    assert named == {path.name: manifests.sha256(path) for path in REFERENCE.iterdir() if path.name != manifests.NAME}


def test_it_is_no_run_of_the_user() -> None:
    assert REFERENCE not in reader.find(TIMELINES)


def test_it_tells_what_the_drill_is_made_to_show() -> None:
    facts = facts_of(REFERENCE)
    assert facts.verdict == "failed"
    assert facts.exposure.exposed >= 1
    assert facts.exposure.loss_on_victim == 1
    assert {lost.outcome for lost in facts.lost_requests if lost.straddles} == {"aborted"}
    (replacement,) = facts.replacements
    assert replacement.time_to_serve.value is not None
