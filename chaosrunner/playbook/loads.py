"""How much a probe sends, and when."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from chaosrunner.playbook.base import Duration, Model, Percent, PositiveDuration, mistake
from chaosrunner.playbook.durations import format_duration

Rate = Annotated[float, Field(ge=0, le=100_000)]
"""Requests a second."""


class Closed(Model):
    """A fixed number of users, each sending its next request when the last one ended."""

    concurrency: int = Field(ge=1, le=10_000)
    """Requests in flight."""
    pause: Duration = 0.0
    """Time between the end of a request and the next of the same user."""
    jitter: Duration = 0.0
    """By how much a pause is shorter or longer at most; drawn evenly, so that users do not march in step."""
    ramp: Duration = 0.0
    """Time over which the users begin, one after the other at equal distances. Streams of one length that begin
    together also end together, and a fault just then finds none to hit."""

    @model_validator(mode="after")
    def _consistent(self) -> Closed:
        if self.jitter > self.pause:
            raise mistake(
                f"jitter {format_duration(self.jitter)} is longer than the pause {format_duration(self.pause)}",
                "a pause lasts from pause - jitter to pause + jitter",
            )
        return self

    def text(self) -> str:
        """In words."""
        parts = [f"closed loop, {self.concurrency} in flight"]
        if self.pause:
            spread = f" ± {format_duration(self.jitter)}" if self.jitter else ""
            parts.append(f"{format_duration(self.pause)}{spread} between an answer and the next request")
        return ", ".join(parts)


class Stage(Model):
    """A stretch of an open loop."""

    rps: Rate
    """Requests a second; 0 is a pause."""
    to: Rate | None = None
    """The rate at its end, to which it goes evenly; `rps` all along where absent."""
    for_: PositiveDuration = Field(alias="for")
    """How long it lasts."""

    @property
    def end(self) -> float:
        return self.rps if self.to is None else self.to

    def text(self) -> str:
        rate = f"{self.rps:g}/s" if self.end == self.rps else f"{self.rps:g}/s to {self.end:g}/s"
        return f"{rate} for {format_duration(self.for_)}"


class Open(Model):
    """Requests sent by a schedule, whether or not the service keeps up. Latencies count from the scheduled time."""

    stages: list[Stage] = Field(min_length=1)
    """One after the other, from when the probe begins. The rate at the end of the last one goes on until the steps of
    the playbook are over; end with `rps: 0` to stop sooner."""
    arrivals: Literal["poisson", "constant"] = "poisson"
    """Like independent users (a Poisson process, the same for the same run), or at equal distances."""
    max_in_flight: int = Field(default=256, ge=1, le=10_000)
    """What would be more in flight is not sent: its outcome is `not_sent`, which counts against the success rate."""

    @model_validator(mode="after")
    def _consistent(self) -> Open:
        if not any(stage.rps or stage.end for stage in self.stages):
            raise mistake("no stage sends anything", "give one an rps above 0")
        return self

    def text(self) -> str:
        """In words."""
        last = self.stages[-1].end
        stages = ", ".join(stage.text() for stage in self.stages) + (f", then on at {last:g}/s" if last else "")
        how = "Poisson arrivals" if self.arrivals == "poisson" else "at equal distances"
        return f"open loop, {how}: {stages}; at most {self.max_in_flight} in flight"


class Load(Model):
    """How much is sent: exactly one of `closed`, `open`."""

    closed: Closed | None = None
    """Closed loop: a fixed number in flight."""
    open: Open | None = None
    """Open loop: a rate, whatever is in flight."""

    @model_validator(mode="after")
    def _one(self) -> Load:
        if (self.closed is None) == (self.open is None):
            found = "none" if self.closed is None else "closed and open"
            raise mistake(f"load has exactly one of closed, open; found {found}", "like closed: {concurrency: 4}")
        return self

    @property
    def most_in_flight(self) -> int:
        """Most requests, and so connections, at the same time."""
        if self.closed is not None:
            return self.closed.concurrency
        assert self.open is not None
        return self.open.max_in_flight

    def text(self) -> str:
        """In words."""
        load = self.closed or self.open
        assert load is not None
        return load.text()


class CancelAfter(Model):
    """That requests are cancelled in mid-stream, as by a user who closes the page: exactly one of `chunks`, `time`."""

    chunks: int | None = Field(default=None, ge=1)
    """With this chunk of content, counted from 1. (How many tokens a chunk holds, only the usage at the end tells.)"""
    time: PositiveDuration | None = None
    """So long after sending."""
    share: Percent = 100.0
    """Share of the requests; the others run to their end."""

    @model_validator(mode="after")
    def _one(self) -> CancelAfter:
        if (self.chunks is None) == (self.time is None):
            found = "none" if self.chunks is None else "chunks and time"
            raise mistake(f"cancel_after has exactly one of chunks, time; found {found}", "like {chunks: 20}")
        return self

    def text(self) -> str:
        when = f"chunk {self.chunks}" if self.time is None else format_duration(self.time)
        return f"{self.share:g} % cancelled after {when}"
