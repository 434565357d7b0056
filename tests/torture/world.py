"""The lab that stands for all runs of a torture."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaosrunner.lab.real.syscalls import enter_network

SPEC = {
    "nodes": 3,
    "replicas": 2,
    "startup": "50ms",
    "grace": 2,
    "model": {"tokens_per_second": 400, "max_sequences": 8, "sigterm": "abort"},
    "gateway": {"pod_header": "x-served-by", "propagation_delay": "20ms"},
    "kubelet": {"heartbeat": "120s", "node_grace": "600s", "backoff": "100ms", "backoff_most": "200ms"},
}


@dataclass(frozen=True)
class Lab:
    """Where it is."""

    kubeconfig: str
    context: str
    namespace: str
    url: str
    toxiproxy: str | None
    pid: int
    real: bool = False
    deployment: str = "model"
    selector: str = "app=model"


NAMES = ("kubeconfig", "context", "namespace", "url", "toxiproxy", "pid")


@contextmanager
def embedded(folder: Path) -> Iterator[Lab]:
    """An embedded lab that ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(SPEC))
    command = [sys.executable, "-m", "chaosrunner.lab", "--spec", str(folder / "spec.json"), "--state", str(folder)]
    with _serving(command, folder) as ready:
        yield Lab(**{name: ready[name] for name in NAMES})


@contextmanager
def real(folder: Path, state: Path) -> Iterator[Lab]:
    """The workload on a real lab of its own, which ends with the block; this process is in its network from then on."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = {key: value for key, value in SPEC.items() if key != "kubelet"}
    (folder / "spec.json").write_text(json.dumps(spec))
    program = [sys.executable, "-m", "chaosrunner.lab.real"]
    where = ["--state", str(state)]
    up = subprocess.run([*program, "up", *where, "--nodes", "3"], stdout=subprocess.PIPE, check=True)
    try:
        with _serving([*program, "serve", *where, "--spec", str(folder / "spec.json")], folder) as ready:
            enter_network(Path(ready["network"]))
            found: dict[str, Any] = {name: ready.get(name) for name in NAMES}
            yield Lab(**found | {"pid": json.loads(up.stdout)["pid"], "real": True})
    finally:
        subprocess.run([*program, "down", *where], stdout=subprocess.DEVNULL, check=False)


@contextmanager
def _serving(command: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """A lab's program for the length of the block; its ready line."""
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--until-stdin-closes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        line = process.stdout.readline()
        assert line, (folder / "stderr").read_text()
        yield json.loads(line)
    finally:
        process.terminate()
        process.wait(60)
        process.stdin.close()
        process.stdout.close()
