from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tests.engine import drills
from tests.engine.lab import Lab
from tests.engine.proxy import Proxy

SPEC = {
    "nodes": 3,
    "replicas": 2,
    "startup": "200ms",
    "grace": 5,
    "model": {"tokens_per_second": 200, "max_sequences": 8, "sigterm": "drain"},
    "gateway": {"pod_header": "x-served-by", "propagation_delay": "100ms"},
    "pdb": {"max_unavailable": 1},
    # No heartbeat between the read of a node and its patch.
    "kubelet": {"heartbeat": "120s", "node_grace": "600s"},
}


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One lab for all tests here; each leaves it as it was. It ends with them: an idle one takes time from others."""
    state = tmp_path_factory.mktemp("lab")
    (state / "spec.json").write_text(json.dumps(SPEC))
    command = [sys.executable, "-m", "chaosrunner.lab", "--spec", str(state / "spec.json"), "--state", str(state)]
    with (state / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--until-stdin-closes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, (state / "stderr").read_text()
    ready = json.loads(line)
    yield Lab(**{field.name: ready[field.name] for field in fields(Lab)})
    process.terminate()
    process.wait(20)


@pytest.fixture(autouse=True)
def clean(lab: Lab) -> Iterator[None]:
    """A test that fails leaves nothing to the next: no process, no cordon, no Lease."""
    yield
    drills.kill_started()
    lab.restore()


@pytest.fixture
def proxy(lab: Lab, tmp_path: Path) -> Iterator[Proxy]:
    """Stands between the runner and the API server; `kubeconfig` leads through it."""
    with Proxy.before(lab.server) as made:
        made.kubeconfig = lab.kubeconfig_for(made.url, tmp_path / "kubeconfig-proxy")
        yield made
