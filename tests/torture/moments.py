"""The instants of a run at which it changes something, told by the run itself as it comes to them."""

from __future__ import annotations

import os
import select
import struct
import time
from dataclasses import dataclass, field
from typing import Literal

from chaosrunner.timeline import rows
from chaosrunner.timeline.writer import Writer

NEAR = 0.05
"""Seconds around a changing request in which half of the runs are killed."""

ANNOUNCED, SENT, ANSWERED, APPLIED, MARKED = b"isapm"
"""In the journal; about to leave; its answer is there; in the journal, both of them."""

UNSENT = (ANNOUNCED, SENT)
"""Those after which the call has still to leave."""

HOLD = 1.0
"""Seconds that a run stands still at most before it sends a call."""

_MOMENT = struct.Struct("=Bd")

Where = Literal["before", "during", "after"]
"""Of a changing request: it was announced and had not left; it had no answer yet; it had one."""


@dataclass
class Moments:
    """What the run has told, through a pipe; instants are of the monotonic clock, which all processes share."""

    told: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.file, self._end = os.pipe()

    def tell(self, hold: int | None) -> None:
        """From now on this process, which is the run's, tells of each row about a change, before it is written.

        `hold`: from the moment of this number on it stands still before a call leaves, for its death to come.
        """
        emit, count = Writer.emit, 0

        def telling(writer: Writer, row: rows.Row) -> None:
            nonlocal count
            if what := _about(row):
                os.write(self._end, _MOMENT.pack(what, time.monotonic()))
                count += 1
                if hold is not None and count >= hold and what in UNSENT:
                    time.sleep(HOLD)
            emit(writer, row)

        Writer.emit = telling  # type: ignore[method-assign, assignment]

    def forked(self) -> None:
        """The run has its end of the pipe."""
        os.close(self._end)

    def read(self) -> None:
        """Takes what has been told by now."""
        while select.select([self.file], [], [], 0)[0] and (data := os.read(self.file, 1000 * _MOMENT.size)):
            self.told += _MOMENT.iter_unpack(data)

    def close(self) -> None:
        os.close(self.file)

    def at(self, number: int, *, unsent: bool) -> float | None:
        """The instant of the moment of this number, from 1; of the first from there on after which a call has still to
        leave where that is wanted."""
        return next((at for what, at in self.told[number - 1 :] if not unsent or what in UNSENT), None)

    def where(self, died: float, *, held: bool) -> tuple[Where | None, float | None]:
        """Where in its calls a run died (monotonic clock), None if not within `NEAR` of one; and how many seconds after
        the last thing that it told of one, None if it had told nothing. `held`: it stood still before a call."""
        told = [(what, at) for what, at in self.told if at <= died and what in (ANNOUNCED, SENT, ANSWERED)]
        if not told:
            return None, None
        after = died - told[-1][1]
        if held:
            return ("before" if after <= NEAR else None), after
        if sum(what == SENT for what, _ in told) > sum(what == ANSWERED for what, _ in told):
            return "during", after
        if after > NEAR:
            return None, after
        return ("before" if told[-1][0] == ANNOUNCED else "after"), after


def _about(row: rows.Row) -> int | None:
    match row:
        case rows.Action(dry_run=False):
            return SENT if row.event == "sent" else ANSWERED
        case rows.Journal(event="intent"):
            return ANNOUNCED
        case rows.Journal():
            return APPLIED if row.event == "applied" else MARKED
    return None
