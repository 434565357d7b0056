"""The manifests of a drill as a Job, without a cluster."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaosrunner.engine.run import UNDO_LIMIT
from chaosrunner.plan.job import name_of
from chaosrunner.plan.rbac import grant, read_subject
from chaosrunner.playbook import load_drill
from chaosrunner.playbook.locate import resolve
from tests.engine.drills import invoke

Object = dict[str, Any]
EXAMPLE = "aibrix-vllm-example"


def job(drill: str, *options: str) -> tuple[list[Object], str]:
    """Objects that the command prints, and what it says on standard error."""
    code, out, err = invoke("job", drill, "--image", "registry.example.com/chaosrunner:1", *options)
    assert code == 0, err
    return [obj for obj in yaml.safe_load_all(out) if obj], err


def pod_of(objects: list[Object]) -> Object:
    return dict(objects[-1]["spec"]["template"]["spec"])


def unpacked(objects: list[Object], folder: Path) -> Path:
    """The drill's file as the Pod finds it."""
    (config,) = [obj for obj in objects if obj["kind"] == "ConfigMap"]
    pod = pod_of(objects)
    for item in pod["volumes"][0]["configMap"]["items"]:
        path = folder / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(config["data"][item["key"]])
    return folder / Path(pod["containers"][0]["args"][-1]).relative_to("/drill")


def test_everything_that_a_run_needs_is_there(tmp_path: Path) -> None:
    objects, said = job(EXAMPLE, "-p", "hold=1m", "--env-from", "keys")
    assert [obj["kind"] for obj in objects] == [
        "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ConfigMap",
        "PersistentVolumeClaim", "Job",
    ]  # fmt: skip
    subject = read_subject("chaosrunner", "default")
    assert objects[1:5] == grant(load_drill(EXAMPLE), "default", subject).manifests()
    spec, pod = objects[-1]["spec"], pod_of(objects)
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert pod["serviceAccountName"] == objects[0]["metadata"]["name"] == "chaosrunner"
    (container,) = pod["containers"]
    assert container["args"] == [
        "run", "--yes", "--context", "in-cluster", "--namespace", "default", "--timelines", "/recordings",
        "--parameter", "hold=1m", "/drill/aibrix-vllm-example.yaml",
    ]  # fmt: skip
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert said == ""
    assert "AIBRIX_API_KEY" in job(EXAMPLE)[1]


def test_it_has_no_privileges_and_asks_to_be_left_where_it_is() -> None:
    objects, _ = job(EXAMPLE)
    pod = pod_of(objects)
    (container,) = pod["containers"]
    # https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert objects[-1]["spec"]["template"]["metadata"]["annotations"] == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true",
    }  # fmt: skip
    fields = {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in container["env"][1:]}
    assert fields == {
        "POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "NODE_NAME": "spec.nodeName",
    }  # fmt: skip


def test_its_grace_period_holds_the_rollback_and_the_longest_request() -> None:
    drill = load_drill(EXAMPLE)
    longest = max(probe.timeouts.total for probe in drill.playbook.probes)
    assert pod_of(job(EXAMPLE)[0])["terminationGracePeriodSeconds"] >= UNDO_LIMIT + longest


@pytest.mark.parametrize(
    ("option", "volume", "claims"),
    [
        ("claim", {"persistentVolumeClaim": {"claimName": "chaosrunner-aibrix-vllm-example"}}, 1),
        ("claim:there", {"persistentVolumeClaim": {"claimName": "there"}}, 0),
        ("empty", {"emptyDir": {}}, 0),
        ("host:/srv/drills", {"hostPath": {"path": "/srv/drills", "type": "Directory"}}, 0),
    ],
)
def test_where_recordings_go(option: str, volume: Object, claims: int) -> None:
    objects, _ = job(EXAMPLE, "--volume", option)
    assert pod_of(objects)["volumes"][1] == {"name": "recordings", **volume}
    assert sum(obj["kind"] == "PersistentVolumeClaim" for obj in objects) == claims


@pytest.mark.parametrize("layout", ["name", "beside", "above", "below"])
def test_the_files_load_in_the_pod_as_they_do_here(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here" / "deep", tmp_path / "there"
    playbooks = {"beside": here, "above": here.parent / "books", "below": here / "books"}
    names = {"beside": "./mine.yaml", "above": "../books/mine.yaml", "below": "books/mine.yaml"}
    drill = yaml.safe_load(resolve(EXAMPLE, "drills").read_text())
    for folder in (here, there, *playbooks.values()):
        folder.mkdir(parents=True, exist_ok=True)
    if layout != "name":
        shutil.copyfile(resolve("evict-one-replica", "playbooks"), playbooks[layout] / "mine.yaml")
        drill["playbook"] = names[layout]
    (here / "drill.yaml").write_text(yaml.safe_dump(drill))
    wanted = load_drill(here / "drill.yaml")
    path = unpacked(job(str(here / "drill.yaml"))[0], there)
    monkeypatch.chdir(there)
    found = load_drill(path)
    assert (found.drill, found.playbook) == (wanted.drill, wanted.playbook)
    assert sorted(there.rglob("*.yaml")) == sorted(p for p in there.rglob("*") if p.is_file())


def test_what_cannot_be_brought_along_is_refused_or_told(tmp_path: Path) -> None:
    source = yaml.safe_load(resolve(EXAMPLE, "drills").read_text())

    def ends(**endpoint: Any) -> tuple[int, str]:
        made = source | {"endpoint": source["endpoint"] | endpoint}
        (tmp_path / "drill.yaml").write_text(yaml.safe_dump(made))
        code, _, err = invoke("job", str(tmp_path / "drill.yaml"), "--image", "i")
        return code, err

    code, said = ends(api_key={"value": "s3cret"})
    assert code == 2
    assert "holds a credential" in said
    assert "s3cret" not in said
    code, said = ends(api_key={"file": "key"}, ca="ca.pem")
    assert code == 0
    assert "ca.pem" in said
    assert "key" in said


@pytest.mark.parametrize(
    "options",
    [
        ("--volume", "pvc"), ("--volume", "host:relative"), ("--volume", "empty:x"), ("--node-selector", "zone"),
    ],
)  # fmt: skip
def test_bad_options(options: tuple[str, str]) -> None:
    code, _, err = invoke("job", EXAMPLE, "--image", "i", *options)
    assert code == 2
    assert options[1] in err


def test_where_it_may_run() -> None:
    pod = pod_of(job(EXAMPLE, "--node-selector", "pool=ops", "--tolerate", "ops")[0])
    assert pod["nodeSelector"] == {"pool": "ops"}
    assert pod["tolerations"] == [{"key": "ops", "operator": "Exists"}]
    # Never by force: the workload's replacements would be kept off the runner's node.
    assert list(pod["affinity"]["podAntiAffinity"]) == ["preferredDuringSchedulingIgnoredDuringExecution"]


def test_names_that_kubernetes_takes() -> None:
    assert name_of("chat") == "chaosrunner-chat"
    assert name_of("My_Drill.v2") == "chaosrunner-my-drill-v2"
    assert len(name_of("x" * 100)) <= 52


def test_files_of_prompts_have_to_be_brought(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Hello.\n")
    playbook = resolve("evict-one-replica", "playbooks").read_text()
    prompt = 'prompt: "Count from {{ nonce }}."'
    assert playbook.count(prompt) == 1
    (tmp_path / "evict.yaml").write_text(playbook.replace(prompt, "prompts: prompts.txt"))
    drill = resolve(EXAMPLE, "drills").read_text()
    (tmp_path / "drill.yaml").write_text(drill.replace("playbook: evict-one-replica", "playbook: evict.yaml"))
    _, said = job(str(tmp_path / "drill.yaml"))
    assert f"the playbook reads {tmp_path / 'prompts.txt'}: mount it at the same path relative to the playbook" in said


def test_a_drill_in_production_names_its_cluster_in_a_job_too(tmp_path: Path) -> None:
    drill = tmp_path / "drill.yaml"
    drill.write_text(resolve(EXAMPLE, "drills").read_text() + "\nproduction: true\n")
    code, _, err = invoke("job", str(drill), "--image", "i")
    assert (code, "give --cluster in-cluster" in err) == (2, True)
    objects, _ = job(str(drill), "--cluster", "in-cluster")
    arguments = pod_of(objects)["containers"][0]["args"]
    assert arguments[arguments.index("--cluster") + 1] == "in-cluster"
