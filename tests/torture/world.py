"""The lab that stands for all runs of a torture."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
    deployment: str = "model"
    selector: str = "app=model"


@contextmanager
def embedded(folder: Path) -> Iterator[Lab]:
    """An embedded lab that ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(SPEC))
    command = [sys.executable, "-m", "chaosrunner.lab", "--spec", str(folder / "spec.json"), "--state", str(folder)]
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--until-stdin-closes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        line = process.stdout.readline()
        assert line, (folder / "stderr").read_text()
        ready = json.loads(line)
        names = ("kubeconfig", "context", "namespace", "url", "toxiproxy", "pid")
        yield Lab(**{name: ready[name] for name in names})
    finally:
        process.terminate()
        process.wait(30)
        process.stdin.close()
        process.stdout.close()
