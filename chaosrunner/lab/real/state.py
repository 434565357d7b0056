"""The state folder of a real lab: where its files are, and whether its keeper lives."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaosrunner.errors import UserError

DEFAULT = Path("/var/lib/chaosrunner-lab")

_MARK = "chaosrunner-lab"
"""Name of the file that tells a lab's folder from any other, so that no other is ever cleared."""


@dataclass(frozen=True)
class State:
    """Paths below the state folder, which is absolute."""

    folder: Path

    @property
    def name(self) -> str:
        """A name for what cannot live in the folder: control groups, and the lock of who starts or ends the lab."""
        return f"chaosrunner-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:10]}"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        return self.folder / "log"

    @property
    def events(self) -> Path:
        """What each node's containerd tells of its containers, a file a node."""
        return self.folder / "events"

    @property
    def requests(self) -> Path:
        """Where the workload's Pods log their requests, on whichever node."""
        return self.folder / "requests"

    @property
    def owners(self) -> Path:
        """A file for each workload that somebody serves here; see `owners`."""
        return self.folder / "owners"

    @property
    def kubeconfig(self) -> Path:
        """An administrator's."""
        return self.folder / "kubeconfig"

    @property
    def account_kubeconfig(self) -> Path:
        """That of a ServiceAccount without any right."""
        return self.folder / "serviceaccount.kubeconfig"

    @property
    def control(self) -> Path:
        """The keeper's socket."""
        return self.folder / "control.sock"

    @property
    def ready(self) -> Path:
        """What the lab tells of itself when all nodes are Ready; absent before."""
        return self.folder / "ready.json"

    def node(self, name: str) -> Path:
        return self.folder / "nodes" / name

    def containerd(self, node: str) -> Path:
        """The socket of a node's containerd."""
        return self.folder / f"containerd-{node}.sock"

    @property
    def keeper_lock(self) -> Path:
        """A file that the keeper holds locked for as long as it lives."""
        return self.folder / "keeper.lock"

    @property
    def _keeper(self) -> Path:
        return self.folder / "keeper"

    def check(self) -> None:
        """UserError unless the folder can be a lab's: new, empty or a lab's already, and with room for sockets."""
        if self.folder.is_relative_to("/run") or self.folder.is_relative_to("/var/run"):
            raise UserError(f"--state {self.folder}: /run is the lab's own, and goes with it; name another folder")
        if self.folder.exists() and not self.is_lab() and any(self.folder.iterdir()):
            raise UserError(f"--state {self.folder}: the folder is not empty and no lab's; name another one")
        # A socket's path has 107 bytes at most (man 7 unix); kubelet gives this one a name of ten digits first.
        longest = self.node("node100") / "kubelet" / "pod-resources" / "0123456789"
        if len(os.fsencode(longest)) > 107:
            raise UserError(f"--state {self.folder}: too long a path for the sockets in it; name a shorter one")

    def claim(self) -> None:
        """Make the folder. UserError as `check`."""
        self.check()
        for folder in (self.folder, self.logs, self.events, self.requests):
            folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _MARK).touch()
        self.keeper_lock.touch()

    def is_lab(self) -> bool:
        return (self.folder / _MARK).exists()

    def is_kept(self) -> bool:
        """Whether a keeper lives; it may not have noted itself yet."""
        try:
            with self.keeper_lock.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def note_keeper(self, pid: int) -> None:
        """Write down process 1 of the lab, by its number in the machine's own PID namespace."""
        _write(self._keeper, str(pid))

    def noted_keeper(self) -> int | None:
        """The process id that was written down, of a keeper that may be dead."""
        try:
            return int(self._keeper.read_text())
        except FileNotFoundError:
            return None

    def keeper(self) -> int | None:
        """The keeper's process id; None where none lives."""
        return self.noted_keeper() if self.is_kept() else None

    def tell(self, told: dict[str, Any]) -> None:
        """Write down what there is to tell of a lab that is up."""
        _write(self.ready, json.dumps(told) + "\n")

    def told(self) -> dict[str, Any] | None:
        """What the lab told of itself when it was ready; None where it is not, or its keeper is dead."""
        if not self.is_kept():
            return None
        try:
            return dict(json.loads(self.ready.read_text()))
        except FileNotFoundError:
            return None


def _write(path: Path, text: str) -> None:
    """Write a file, so that whoever reads it sees all of it or nothing."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)
