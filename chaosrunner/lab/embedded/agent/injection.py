"""What an ephemeral container runs here: the agent of faults, or a command of an image that the Pod has anyway."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from chaosrunner.lab.embedded.agent import faults, guardian
from chaosrunner.lab.embedded.agent.processes import Process
from chaosrunner.lab.objects import Json

_AGENT = re.compile(r"([^/]+/)*chaosrunner/agent([:@].*)?")
_MESSAGE_BYTES = 4096
"""Longest termination message (pkg/kubelet/container/runtime.go)."""


class Injection:
    """An ephemeral container. `folder`: where the Pod's faults are written down."""

    def __init__(self, spec: Json, pod: Json, folder: Path) -> None:
        self._spec = spec
        self._pod = pod
        self._folder = folder
        self._message = folder / f"{spec['name']}.message"
        self.target: str = spec.get("targetContainerName") or ""
        self._is_agent = _AGENT.fullmatch(spec["image"]) is not None

    @property
    def trouble(self) -> tuple[str, str] | None:
        """Reason and message with which the container waits for ever: nothing is pulled here."""
        image = self._spec["image"]
        if self._is_agent or any(entry["image"] == image for entry in self._pod["spec"]["containers"]):
            return None
        if self._spec["imagePullPolicy"] == "Never":
            return "ErrImageNeverPull", f'Container image "{image}" is not present with pull policy of Never'
        return "ErrImagePull", f'failed to pull image "{image}": the embedded lab pulls no images'

    @property
    def command(self) -> list[str] | None:
        """What stands in for the agent's own program; None where the container's command is run as it is."""
        if not self._is_agent:
            return None
        words = [*(self._spec.get("command") or ("agent",))[1:], *(self._spec.get("args") or ())]
        return [sys.executable, "-S", "-m", faults.__name__, *words]

    def variables(self, target: Process | None) -> dict[str, str]:
        """What the agent needs to know; `target` is the main process of the container that is aimed at."""
        started = guardian.identity(target.pid) if target is not None and target.exit_code is None else None
        return {
            "LAB_TARGET": f"{target.pid} {started}" if target is not None and started else "",
            "LAB_FAULTS": str(self._folder),
            "LAB_TERMINATION_LOG": str(self._message),
        }

    def release(self, agent: int) -> None:
        """The process has ended, whatever ended it: nothing that it froze stays so."""
        faults.release_of(self._folder, agent)

    def message(self) -> str:
        """Its termination message."""
        if not self._message.exists():
            return ""
        return self._message.read_bytes()[:_MESSAGE_BYTES].decode(errors="replace")
