"""The runner's side of its guardian (`chaosrunner.journal.guardian`): starts it, shows that it lives, lets it go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

import anyio
import anyio.to_thread
import structlog

from chaosrunner.errors import UserError
from chaosrunner.journal.guardian import ALIVE, ENDED, ENDING, READY, UNDONE, Watch

log = structlog.get_logger()

START_LIMIT = 20.0
"""Longest wait for the guardian to watch, seconds."""
LEAVE_LIMIT = 2.0
"""Longest wait for it to be gone at the end, seconds."""
BEAT = 1.0
"""Seconds between two signs of life."""


def start(journal: str) -> subprocess.Popen[bytes]:
    """A guardian's process, which takes `Watch` on its standard input. Raises OSError."""
    return subprocess.Popen(
        [sys.executable, "-m", "chaosrunner.journal.guardian", journal],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class Guarded:
    """A run with its guardian. Nothing may be changed before `watched` has returned."""

    def __init__(self, told: Watch) -> None:
        """Starts the process, which takes a moment to be ready. Raises OSError."""
        self._process = start(told.journal)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pipe, self._heard = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.write(self._pipe, json.dumps(asdict(told)).encode() + b"\n")
        os.set_blocking(self._pipe, False)
        self._gone = False

    async def watched(self) -> None:
        """Returns once the guardian watches. Raises UserError where it does not come up."""
        with anyio.move_on_after(START_LIMIT):
            await anyio.wait_readable(self._heard)
            if os.read(self._heard, len(READY)) == READY:
                return
        raise UserError("the guardian of the run did not start, without which nothing is changed")

    async def beat(self) -> None:
        """Shows each second that the event loop lives."""
        while True:
            self._say(ALIVE)
            await anyio.sleep(BEAT)

    def ending(self) -> None:
        """The steps are over, their undo begins."""
        self._say(ENDING)

    def undone(self) -> None:
        """The undo is over; draining and analysis may take their time."""
        self._say(UNDONE)

    async def end(self) -> None:
        """The run has ended."""
        self._say(ENDED)
        with anyio.move_on_after(LEAVE_LIMIT):
            await anyio.wait_readable(self._heard)  # its end closes it
            await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

    def _say(self, what: bytes) -> None:
        if self._gone:
            return
        try:
            os.write(self._pipe, what)
        except BlockingIOError:  # it is stopped: it will read one sign of life as well as many
            pass
        except BrokenPipeError:
            self._gone = True
            log.warning(
                "the guardian of this run is gone: should the run die, `chaosrunner recover` undoes its changes"
            )
