"""Roles out of a drill, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaosrunner.cluster.lease import name_for
from chaosrunner.errors import UserError
from chaosrunner.plan.access import needs
from chaosrunner.plan.rbac import Grant, grant, read_subject
from chaosrunner.playbook import BoundDrill, load_drill
from tests.engine.drills import invoke

PLAYBOOK = """
apiVersion: chaosrunner.dev/v1
kind: Playbook
metadata: {{name: book}}
probes:
  - name: chat
    openai: {{prompt: "Count."}}
steps:
  - baseline: {{for: 1s}}
{steps}
"""

DRILL = """
apiVersion: chaosrunner.dev/v1
kind: Drill
metadata: {{name: mine}}
playbook: ./book.yaml
namespace: inference
workload: {{selector: app=chat, service: chat{controller}}}
endpoint: {{url: "http://127.0.0.1:1"}}
limits: {limits}
"""


def bound(folder: Path, *steps: str, controller: str | None = "deployment/chat", limits: str = "{}") -> BoundDrill:
    (folder / "book.yaml").write_text(PLAYBOOK.format(steps="\n".join(f"  - {step}" for step in steps)))
    named = f", controller: {controller}" if controller else ""
    (folder / "drill.yaml").write_text(DRILL.format(controller=named, limits=limits))
    return load_drill(folder / "drill.yaml")


def rights(drill: BoundDrill, **known: Any) -> set[str]:
    return {str(access) for access in needs(drill.drill, drill.playbook, "inference", **known)}


def made(drill: BoundDrill, subject: str = "chaosrunner") -> Grant:
    return grant(drill, "inference", read_subject(subject, "inference"))


def test_a_drill_that_names_its_nodes_may_change_only_these(tmp_path: Path) -> None:
    drill = bound(tmp_path, "cordon: {node: n1}", "drain: {node: n2}", "uncordon: {}")
    found = rights(drill)
    assert {f"{verb} nodes {name}" for verb in ("get", "patch") for name in ("n1", "n2")} <= found
    assert not {"get nodes", "patch nodes"} & found
    (rule,) = [rule for role in made(drill).roles for rule in role.rules if "patch" in rule.verbs]
    assert (rule.names, rule.verbs) == (("n1", "n2"), ("get", "patch"))
    # One that chooses makes all of them candidates.
    assert {"get nodes", "patch nodes"} <= rights(bound(tmp_path, "cordon: {node: n1}", "drain: {nodes: 1}"))


def test_what_is_asked_of_the_whole_cluster_is_not_asked_of_a_namespace_too(tmp_path: Path) -> None:
    found = rights(bound(tmp_path, "drain: {nodes: 1}"))
    assert {"list pods", "watch pods in inference", "get pods in inference"} <= found
    assert "list pods in inference" not in found


def test_a_drain_may_evict_only_where_its_limits_say(tmp_path: Path) -> None:
    drill = bound(tmp_path, "drain: {nodes: 1}", limits="{namespaces: [inference, batch], max_pods: 5}")
    found = rights(drill)
    for namespace in ("inference", "batch"):
        assert {
            f"create pods/eviction in {namespace}",
            f"get pods in {namespace}",
            f"create events in {namespace}",
            f"list poddisruptionbudgets.policy in {namespace}",
        } <= found
    assert [role.namespace for role in made(drill).roles] == ["inference", "batch", "default", None]


def test_a_cordon_takes_no_pods_and_a_delete_asks_no_budget(tmp_path: Path) -> None:
    assert not {"get pods in inference", "create pods/eviction in inference"} & rights(
        bound(tmp_path, "cordon: {nodes: 1}")
    )
    deleting = _needs(bound(tmp_path, "delete-pod: {pods: 1}"))
    assert "delete pods in inference" in deleting
    assert not deleting["list poddisruptionbudgets.policy in inference"]
    assert _needs(bound(tmp_path, "evict: {pods: 1}"))["list poddisruptionbudgets.policy in inference"]


def test_a_driver_needs_its_own_rights(tmp_path: Path) -> None:
    def of(*drivers: str) -> dict[str, bool]:
        drill = bound(tmp_path, "network: {partition: true, peer: {cidr: [10.0.0.0/8]}}")
        chosen = drill.drill.drivers.model_copy(update={"network": list(drivers)})
        return _needs(replace(drill, drill=drill.drill.model_copy(update={"drivers": chosen})))

    policies = "list networkpolicies.networking.k8s.io in inference"
    alone = of("network-policy")
    assert alone[policies]
    assert alone["create networkpolicies.networking.k8s.io in inference"]
    assert alone["patch pods in inference"]
    assert "patch pods/ephemeralcontainers in inference" not in alone
    # With another one to fall back on they are not required.
    assert not of("network-policy", "toxiproxy")[policies]
    assert policies not in of("toxiproxy")
    assert "patch pods in inference" not in of("toxiproxy")


def test_faults_inside_pods_are_put_there_and_read_not_executed(tmp_path: Path) -> None:
    put, read = "patch pods/ephemeralcontainers in inference", "get pods/log in inference"
    for step in ("freeze: {pods: 1}", "kill: {pods: 1}", "network: {partition: true, peer: everywhere}"):
        found = _needs(bound(tmp_path, step))
        assert found[put]
        assert found["get pods in inference"]
        assert not found[read]
        assert not [right for right in found if "exec" in right or right == "patch pods in inference"]
    peer = "network: {partition: true, peer: {selector: app=caller, namespace: front}}"
    assert _needs(bound(tmp_path, peer))["list pods in front"]


def test_the_workload_itself_is_changed_by_name(tmp_path: Path) -> None:
    for step in ("scale: {by: -1}", "rollout-restart: {}"):
        assert "patch deployments.apps chat in inference" in rights(bound(tmp_path, step))
        unnamed = rights(bound(tmp_path, step, controller=None))
        assert {"patch deployments.apps in inference", "patch statefulsets.apps in inference"} <= unnamed


def _needs(drill: BoundDrill) -> dict[str, bool]:
    """Rights, and whether each is required."""
    return {right.right: right.required for right in needs(drill.drill, drill.playbook, "inference").values()}


@pytest.mark.parametrize(
    ("controller", "kinds"),
    [
        ("deployment/chat", {"replicasets.apps", "deployments.apps"}),
        ("StatefulSet/chat", {"statefulsets.apps"}),
        ("stormservice/chat", {"rolesets.orchestration.aibrix.ai", "stormservices.orchestration.aibrix.ai"}),
        ("mystery/chat", set()),
        (None, {"replicasets.apps", "deployments.apps", "statefulsets.apps"}),
    ],
)
def test_the_kinds_above_the_pods(tmp_path: Path, controller: str | None, kinds: set[str]) -> None:
    drill = bound(tmp_path, "cordon: {nodes: 1}", controller=controller)
    above = {right for right in rights(drill) if right.startswith("get ") and "." in right and "leases" not in right}
    assert above == {f"get {kind} in inference" for kind in kinds}
    told = "`chaosrunner plan` names each kind" in made(drill).text().replace("\n# ", " ")
    assert told == (controller in ("mystery/chat", None))


def test_the_lease_has_its_name_where_the_drill_tells_its_target(tmp_path: Path) -> None:
    drill = bound(tmp_path, "cordon: {nodes: 1}")
    lease = name_for("deployment/chat")
    assert {
        f"{verb} leases.coordination.k8s.io {lease} in inference" for verb in ("get", "update", "delete")
    } <= rights(drill)
    assert "create leases.coordination.k8s.io in inference" in rights(drill)
    unnamed = bound(tmp_path, "cordon: {nodes: 1}", controller=None)
    assert "update leases.coordination.k8s.io in inference" in rights(unnamed)
    assert f"update leases.coordination.k8s.io {lease} in inference" in rights(unnamed, target="deployment/chat")


def test_the_text_is_the_objects_with_a_reason_for_each_rule(tmp_path: Path) -> None:
    found = made(bound(tmp_path, "drain: {nodes: 1}", limits="{namespaces: [inference, batch], max_pods: 5}"))
    assert [obj for obj in yaml.safe_load_all(found.text()) if obj] == found.manifests()
    rules = sum(len(role.rules) for role in found.roles)
    assert found.text().count("Required: ") + found.text().count("Optional: ") == rules
    assert all(len(line) <= 120 for line in found.text().splitlines())


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("robot", {"kind": "ServiceAccount", "name": "robot", "namespace": "inference"}),
        ("ops/robot", {"kind": "ServiceAccount", "name": "robot", "namespace": "ops"}),
        (
            "user:jane@example.com",
            {"kind": "User", "name": "jane@example.com", "apiGroup": "rbac.authorization.k8s.io"},
        ),
        ("group:oidc:sre", {"kind": "Group", "name": "oidc:sre", "apiGroup": "rbac.authorization.k8s.io"}),
    ],
)
def test_who_gets_the_rights(tmp_path: Path, text: str, reference: dict[str, str]) -> None:
    objects = made(bound(tmp_path, "cordon: {nodes: 1}"), text).manifests()
    assert all(obj["subjects"] == [reference] for obj in objects if obj["kind"].endswith("Binding"))


@pytest.mark.parametrize("text", ["", "/robot", "a/b/c", "robot:", "robot:x", "user:", "ops/"])
def test_a_subject_that_is_none(text: str) -> None:
    with pytest.raises(UserError, match="names nobody"):
        read_subject(text, "inference")


def test_the_command_asks_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    bound(tmp_path, "evict: {pods: 1}")
    code, out, _ = invoke("plan", str(tmp_path / "drill.yaml"), "--rbac", "-n", "other", "--subject", "group:sre")
    assert code == 0
    kinds = [(obj["kind"], obj["metadata"].get("namespace")) for obj in yaml.safe_load_all(out) if obj]
    assert kinds == [
        ("Role", "other"), ("RoleBinding", "other"),
        ("Role", "default"), ("RoleBinding", "default"),
        ("ClusterRole", None), ("ClusterRoleBinding", None),
    ]  # fmt: skip
    code, out, _ = invoke("plan", str(tmp_path / "drill.yaml"), "--rbac", "-o", "json")
    assert code == 0
    assert {obj["kind"] for obj in yaml.safe_load(out)["items"]} == {kind for kind, _ in kinds}
    assert invoke("plan", "lab-drain-node", "--rbac")[0] == 2  # it names no namespace
    assert invoke("plan", str(tmp_path / "drill.yaml"), "--subject", "group:sre")[0] == 2
