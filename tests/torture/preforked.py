"""Guardians that are forked from this process, which has imported all that they need, and not started anew."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO, Any

from chaosrunner.engine import guarding
from chaosrunner.journal import guardian, takeover

assert takeover  # what a guardian imports when it is needed, which is most of what it costs


class Preforked:
    """A guardian of a run to come: its program, in a process and a session of its own, with the usual two pipes."""

    def __init__(self) -> None:
        told, self._tell = os.pipe()
        self._hear, heard = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.setsid()
                os.dup2(told, 0)
                os.dup2(heard, 1)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                for file in (told, self._tell, self._hear, heard):
                    os.close(file)
                guardian.main()
            finally:
                os._exit(0)
        os.close(told)
        os.close(heard)

    def serve(self) -> None:
        """In the run's process: this is the guardian that it starts."""
        guarding.start = lambda _: _Started(self._tell, self._hear)  # type: ignore[assignment, return-value]

    def leave(self) -> None:
        """In ours: the run alone has the pipes."""
        os.close(self._tell)
        os.close(self._hear)

    def reap(self) -> None:
        """Waits for its end."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class _Started:
    """What of a `subprocess.Popen` is used."""

    def __init__(self, tell: int, hear: int) -> None:
        self.stdin: IO[Any] = os.fdopen(tell, "wb", buffering=0)
        self.stdout: IO[Any] = os.fdopen(hear, "rb", buffering=0)

    def wait(self) -> int:
        """Of a process that is not our child there is nothing to wait for; its pipe has told its end."""
        return 0
