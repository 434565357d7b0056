"""A whole recording, read once: its manifest, its facts, and what became of whom."""

from __future__ import annotations

from functools import cached_property

from chaosrunner.analysis.analyse import facts, picture
from chaosrunner.analysis.context import AnalysisContext
from chaosrunner.analysis.facts import Facts
from chaosrunner.analysis.picture import Picture
from chaosrunner.analysis.transitions import Transition
from chaosrunner.analysis.transitions import transitions as of_picture
from chaosrunner.timeline.manifest import Manifest
from chaosrunner.timeline.reader import Recording


class Reading:
    def __init__(self, recording: Recording) -> None:
        """Raises ValueError where the manifest's checks or selector, or a row, cannot be read."""
        self.recording = recording
        self.context = AnalysisContext.of(recording.manifest)
        self.picture: Picture = picture(recording, self.context)

    @property
    def manifest(self) -> Manifest:
        return self.recording.manifest

    @cached_property
    def facts(self) -> Facts:
        return facts(self.picture)

    @cached_property
    def transitions(self) -> list[Transition]:
        return of_picture(self.picture, self.recording.events())

    @property
    def zero(self) -> float:
        """t = 0 of a comparison, seconds on the recording's clock: the first fault was sent; the recording's own zero
        where none was."""
        return self.picture.fault_at or 0.0


def transitions(recording: Recording) -> list[Transition]:
    """What became of whom, by time. Raises ValueError as `Reading` does."""
    return Reading(recording).transitions
