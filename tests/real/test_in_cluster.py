"""The runner as a Job of a real Kubernetes, by the manifests that `chaosrunner job` prints and its own image."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaosrunner.cli import lab_process
from chaosrunner.lab.real import images
from chaosrunner.plan.job import USER
from chaosrunner.playbook.locate import resolve
from chaosrunner.timeline import rows
from chaosrunner.timeline.reader import Recording
from tests.drills.rehearsal import SHORT, load
from tests.engine.drills import invoke
from tests.engine.lab import wait_for
from tests.labs import RealLab, real_lab_command
from tests.real.serving import Serving, serving

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(240)]

Object = dict[str, Any]
INFRA = ("--node-selector", "lab.chaosrunner.dev/role=infra", "--tolerate", "lab.chaosrunner.dev/infra")


@pytest.fixture(scope="module")
def workload(real_lab: RealLab) -> Iterator[Serving]:
    with serving(real_lab.state, lab_process.lab_spec(load("lab-drain-node"))) as made:
        yield made


@pytest.fixture(scope="module")
def image(real_lab: RealLab) -> str:
    """The runner's image, on node infra, which hosts no replica."""
    made = images.runner()
    real_lab_command("import", "--node", "infra", str(made.tar), state=real_lab.state)
    return made.reference


@dataclass
class Job:
    """A drill as a Job, from `chaosrunner job` to the end of its Pod."""

    lab: RealLab
    workload: Serving
    image: str
    folder: Path
    name: str = field(default_factory=lambda: f"drill-{secrets.token_hex(3)}")

    @property
    def recordings(self) -> Path:
        return self.folder / "recordings"

    def start(
        self,
        drill: str,
        *options: str,
        steps: list[Object] | None = None,
        change: Callable[[Object], None] | None = None,
    ) -> None:
        """`steps` in place of the playbook's, `change` of the Job before it is applied."""
        ready = self.workload.ready
        source = yaml.safe_load(resolve(drill, "drills").read_text())
        source |= {"context": "somewhere", "namespace": ready.namespace}
        source["endpoint"]["url"] = ready.url
        source["prometheus"]["url"] = ready.prometheus
        playbook = yaml.safe_load(resolve(source["playbook"], "playbooks").read_text())
        if steps is not None:
            playbook["steps"] = [playbook["steps"][0], *steps]
            del source["parameters"]["hold"], playbook["parameters"]["hold"]
        # Named by a path, as in a repository of one's own.
        source["playbook"] = "../playbooks/mine.yaml"
        for kind, document in (("drills", source), ("playbooks", playbook)):
            (self.folder / kind).mkdir()
            (self.folder / kind / "mine.yaml").write_text(yaml.safe_dump(document))
        self.recordings.mkdir()
        shutil.chown(self.recordings, USER, USER)
        known = playbook["parameters"].keys() & SHORT.keys()
        values = [word for name in sorted(known) for word in ("-p", f"{name}={SHORT[name]}")]
        code, out, err = invoke(
            "job", str(self.folder / "drills" / "mine.yaml"), "--image", self.image, "--name", self.name,
            "--volume", f"host:{self.recordings}", *INFRA, *values, *options,
        )  # fmt: skip
        assert code == 0, err
        objects = [obj for obj in yaml.safe_load_all(out) if obj]
        if change:
            change(objects[-1])
        file = self.folder / "job.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        self.lab.kubectl("apply", "-f", str(file))

    def kubectl(self, *arguments: str) -> str:
        return self.lab.kubectl("-n", self.workload.namespace, *arguments).stdout

    def pod(self) -> Object | None:
        listed = json.loads(self.kubectl("get", "pods", "-l", f"job-name={self.name}", "-o", "json"))["items"]
        return listed[0] if listed else None

    def ended(self) -> tuple[int, str]:
        """Exit code and log, when it has ended."""

        def terminated() -> Object | None:
            pod = self.pod()
            statuses = (pod or {}).get("status", {}).get("containerStatuses") or [{}]
            state: Object = statuses[0].get("state", {})
            return state.get("terminated")

        code = wait_for(terminated, 150)["exitCode"]
        return code, self.kubectl("logs", f"job/{self.name}")

    def recording(self) -> Recording:
        (manifest,) = self.recordings.glob("*/*/manifest.json")
        return Recording.open(manifest.parent)

    def steps(self) -> list[str]:
        """Steps that have begun so far."""
        if not list(self.recordings.glob("*/*/manifest.json")):
            return []
        found = [row for row in self.recording().rows() if isinstance(row, rows.Step)]
        return [row.step for row in found if row.event == "started"]

    def cordoned(self) -> list[str]:
        nodes = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        return [node["metadata"]["name"] for node in nodes if node["spec"].get("unschedulable")]

    def clear(self) -> None:
        file = self.folder / "job.yaml"
        if file.exists():
            self.lab.kubectl("delete", "-f", str(file), "--ignore-not-found", timeout=120)


@pytest.fixture
def job(real_lab: RealLab, workload: Serving, image: str, tmp_path: Path) -> Iterator[Job]:
    made = Job(real_lab, workload, image, tmp_path)
    yield made
    made.clear()


def test_a_job_runs_the_drill_and_leaves_the_recording(job: Job) -> None:
    job.start("lab-evict-one-replica-graceful")
    code, log = job.ended()
    assert code == 0, log
    recording = job.recording()
    manifest = recording.manifest
    assert (manifest.verdict, manifest.context) == ("passed", "in-cluster")
    pod = job.pod()
    assert pod is not None
    meta = pod["metadata"]
    assert manifest.plan["runner"] == {
        "host": meta["name"], "pod": meta["name"], "namespace": meta["namespace"], "node": "infra",
    }  # fmt: skip
    # Rights, watches, probes: nothing was kept from it.
    watches = [row for row in recording.rows() if isinstance(row, rows.Watch)]
    assert not [row for row in watches if row.event in ("forbidden", "gap_opened")]
    assert not [problem for problem in manifest.plan["problems"] if problem["code"] in ("forbidden", "access_unknown")]


def test_a_job_that_is_deleted_puts_everything_back_and_tells_what_it_saw(job: Job) -> None:
    job.start("lab-cordon-and-rollback", steps=[{"cordon": {"nodes": 1}}, {"hold": {"for": "300s"}}])
    wait_for(lambda: "hold" in job.steps(), 90)
    assert len(job.cordoned()) == 1
    began = time.monotonic()
    job.kubectl("delete", "job", job.name, "--wait=false")
    wait_for(lambda: job.pod() is None, 60)
    # Well within its grace period: nothing was killed.
    assert time.monotonic() - began < 60
    assert job.cordoned() == []
    recording = job.recording()
    assert (recording.manifest.verdict, recording.manifest.exit_code) == ("aborted", 4)
    assert (recording.folder / "report.json").is_file()
    undone = [row for row in recording.rows() if isinstance(row, rows.Action) and row.undo]
    assert [row.ok for row in undone if row.event == "answered"] == [True]


def without(*names: str) -> Callable[[Object], None]:
    def change(job: Object) -> None:
        container = job["spec"]["template"]["spec"]["containers"][0]
        container["env"] = [entry for entry in container["env"] if entry["name"] not in names]

    return change


def as_a_replica(job: Object) -> None:
    job["spec"]["template"]["metadata"]["labels"]["app"] = "model"
    without("POD_NAME", "POD_NAMESPACE", "NODE_NAME")(job)


@pytest.mark.parametrize(
    ("drill", "steps", "change", "reason"),
    [
        ("lab-cordon-and-rollback", [{"cordon": {"node": "infra"}}], None, "runs on node infra"),
        (
            "lab-drain-node",
            [{"drain": {"node": "infra", "force": True, "delete_emptydir_data": True}}],
            without("POD_NAME", "POD_NAMESPACE", "NODE_NAME"),
            "runs on node infra",
        ),
        ("lab-evict-one-replica", None, as_a_replica, "itself runs in Pod drill-"),
    ],
    ids=["cordon", "drain-without-downward-api", "evict-without-downward-api"],
)
def test_a_job_refuses_to_take_itself_away(
    job: Job, drill: str, steps: list[Object] | None, change: Callable[[Object], None] | None, reason: str
) -> None:
    job.start(drill, steps=steps, change=change)
    code, log = job.ended()
    assert code == 6, log
    assert "the plan was refused" in log
    assert reason in log
    assert job.cordoned() == []
    assert list(job.recordings.iterdir()) == []
