"""One workload for both labs: the same objects, and what differs is what must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaosrunner.lab import manifests, spec
from chaosrunner.lab.manifests import Places
from chaosrunner.lab.objects import Json

IMAGE = "localhost/chaosrunner/workload:0123456789abcdef"
REQUESTS = Path("/state/requests")
WHOLE: dict[str, Any] = {"pre_stop": 2, "pdb": {"max_unavailable": 1}, "sleepers": 2}


def of(places: Places, **entries: Any) -> dict[str, Json]:
    found = manifests.objects(spec.build(WHOLE | entries), places)
    return {f"{obj['kind']} {obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}": obj for obj in found}


def embedded() -> Places:
    return Places.embedded(Path("/state/kubeconfig"), REQUESTS, "127.9.0.4", (8080, 9090, 8000))


def flags(obj: Json) -> list[str]:
    return list(obj["spec"]["template"]["spec"]["containers"][0]["command"])


def test_both_labs_run_the_same_objects() -> None:
    here, there = of(embedded()), of(Places.real(IMAGE, REQUESTS))
    rights = {
        "ServiceAccount lab-system/endpoints-reader",
        "Role lab/endpoints-reader",
        "RoleBinding lab/endpoints-reader",
    }
    assert there.keys() - here.keys() == rights
    assert not here.keys() - there.keys()
    for name, obj in here.items():
        real = there[name]
        if obj["kind"] != "Deployment":
            assert real == obj
            continue
        pods = [one["spec"]["template"]["spec"] for one in (obj, real)]
        containers = [pod["containers"][0] for pod in pods]
        assert (containers[1].pop("image"), containers[1].pop("imagePullPolicy")) == (IMAGE, "Never")
        containers[0].pop("image")
        if "gateway" in name or "alert-source" in name:
            assert pods[0].pop("hostNetwork")
            assert pods[1].pop("serviceAccountName") == "endpoints-reader"
            only_here, only_there = (set(flags(one)) - set(flags(other)) for one, other in ((obj, real), (real, obj)))
            assert only_here <= {"--kubeconfig=/state/kubeconfig", "--gateway=http://127.9.0.4:8080"}
            assert only_there <= {"--gateway=http://gateway"}
            for container in containers:
                container.pop("command")
        assert real == obj


def test_the_gateway_may_read_the_models_endpoints_and_nothing_else() -> None:
    found = of(Places.real(IMAGE, REQUESTS, "drill-1", "drill-1-system"))
    role, binding = found["Role drill-1/endpoints-reader"], found["RoleBinding drill-1/endpoints-reader"]
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    ]
    (subject,) = binding["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "endpoints-reader", "namespace": "drill-1-system"}
    assert "--namespace=drill-1" in flags(found["Deployment drill-1-system/gateway"])


def test_workloads_side_by_side_share_no_object() -> None:
    one, other = (of(Places.real(IMAGE, REQUESTS / name, name, f"{name}-system")) for name in ("one", "other"))
    assert not one.keys() & other.keys()
    assert len(one) == len(of(Places.real(IMAGE, REQUESTS)))


def test_every_program_logs_its_requests_into_the_labs_folder() -> None:
    for name, obj in of(Places.real(IMAGE, REQUESTS)).items():
        if obj["kind"] == "Deployment" and "sleeper" not in name:
            pod = obj["spec"]["template"]["spec"]
            (volume,) = pod["volumes"]
            (mount,) = pod["containers"][0]["volumeMounts"]
            assert volume["hostPath"]["path"] == mount["mountPath"] == str(REQUESTS)
            assert any(flag.startswith(f"--log={REQUESTS}/") for flag in flags(obj))


def test_manifests_of_the_spec_come_last_and_as_they_are() -> None:
    given = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extra"}}
    assert manifests.objects(spec.build({"manifests": [given]}), embedded())[-1] == given


def test_a_liveness_probe_is_there_where_asked_for() -> None:
    def model(**entries: Any) -> Json:
        return dict(of(embedded(), **entries)["Deployment lab/model"]["spec"]["template"]["spec"]["containers"][0])

    assert "livenessProbe" not in model()
    probe = model(liveness=3)["livenessProbe"]
    assert (probe["httpGet"]["path"], probe["periodSeconds"], probe["failureThreshold"]) == ("/health", 1, 3)
