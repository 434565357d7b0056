"""The state folder of a real lab: where its files are, and whether its keeper lives."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaosrunner.errors import UserError

DEFAULT = Path("/var/lib/chaosrunner/lab")

_MARK = "chaosrunner-lab"
"""Name of the file that tells a lab's folder from any other, so that no other is ever cleared."""


@dataclass(frozen=True)
class State:
    """Paths below the state folder, which is absolute."""

    folder: Path

    @property
    def name(self) -> str:
        """A name for what cannot live in the folder: control groups, and the lock of who works on the lab."""
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
        """The socket of a node's containerd. The kernel takes no longer path than 107 bytes."""
        return self.folder / f"containerd-{node}.sock"

    @property
    def _keeper(self) -> Path:
        return self.folder / "keeper.json"

    def claim(self) -> None:
        """Make the folder, which must be new, empty or a lab's. UserError otherwise."""
        if self.folder.exists() and not self.is_lab() and any(self.folder.iterdir()):
            raise UserError(f"--state {self.folder}: the folder is not empty and no lab's; name another one")
        if len(str(self.containerd("node100"))) > 100:
            raise UserError(f"--state {self.folder}: too long a path for the sockets in it; name a shorter one")
        for folder in (self.folder, self.logs, self.events, self.requests):
            folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _MARK).touch()

    def is_lab(self) -> bool:
        return (self.folder / _MARK).exists()

    def note_keeper(self, pid: int) -> None:
        """Write down process 1 of the lab, by its number in the machine's own PID namespace."""
        self._keeper.write_text(json.dumps({"pid": pid, "started": _started(pid)}))

    def keeper(self) -> int | None:
        """The keeper's process id; None where there is none, or only another process that was given its number."""
        noted = self._noted()
        started = _started(noted["pid"]) if noted else None
        return noted["pid"] if noted and started is not None and started == noted["started"] else None

    def noted_keeper(self) -> int | None:
        """The keeper's process id in the machine's PID namespace, for the lab itself, which sees another one."""
        noted = self._noted()
        return noted["pid"] if noted else None

    def _noted(self) -> dict[str, int] | None:
        try:
            return dict(json.loads(self._keeper.read_text()))
        except (OSError, ValueError):
            return None

    def told(self) -> dict[str, Any] | None:
        """What the lab told of itself when it was ready; None where it is not, or its keeper is dead."""
        if self.keeper() is None:
            return None
        try:
            return dict(json.loads(self.ready.read_text()))
        except (OSError, ValueError):
            return None


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the id it names one process only (man 5 proc)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # A zombie has ended; nobody has asked for its exit code yet.
    return None if fields[0] == "Z" else int(fields[19])
