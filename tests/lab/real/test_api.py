"""The real lab's API client, before the embedded lab's server."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.errors import UserError
from chaosrunner.lab.objects import Json
from chaosrunner.lab.real.api import Api, ApiError, NotAvailable, Unreachable

pytestmark = pytest.mark.lab


NEVER = {"tcpSocket": {"port": 9}, "periodSeconds": 1}
"""A probe that fails."""


def config_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def deployment(name: str, replicas: int = 1, **pod: Any) -> Json:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def container(*command: str, **more: Any) -> Json:
    return {"name": "main", "image": "lab/test:1", "command": list(command), **more}


def test_an_object_is_created_found_and_deleted(api: Api) -> None:
    obj = config_map("one", key="value")
    path = api.path(obj, "lab")
    assert path == "/api/v1/namespaces/lab/configmaps/one"
    assert api.find(path) is None
    assert api.create(obj, "lab")["metadata"]["uid"]
    assert (api.find(path) or {})["data"] == {"key": "value"}
    assert "one" in [item["metadata"]["name"] for item in api.items("/api/v1/namespaces/lab/configmaps")]
    with pytest.raises(ApiError, match="already exists") as raised:
        api.create(obj, "lab")
    assert (raised.value.status, raised.value.reason) == (409, "AlreadyExists")
    assert api.delete(path)
    assert not api.delete(path)


def test_applying_creates_and_then_changes(api: Api) -> None:
    for value in ("first", "second"):
        api.apply(config_map("applied", key=value), "lab")
        found = api.find("/api/v1/namespaces/lab/configmaps/applied") or {}
        assert found["data"] == {"key": value}


def test_an_object_goes_to_its_own_namespace_or_to_none(api: Api) -> None:
    obj = config_map("x") | {"metadata": {"name": "x", "namespace": "lab-system"}}
    assert api.collection(obj, "lab") == "/api/v1/namespaces/lab-system/configmaps"
    assert api.path({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}}, "lab") == "/api/v1/nodes/node1"


@pytest.mark.parametrize(("version", "kind"), [("v1", "Gadget"), ("example.com/v1", "Gadget")])
def test_an_unknown_kind_is_told(api: Api, version: str, kind: str) -> None:
    with pytest.raises(UserError, match=f"the lab has no {version} {kind}"):
        api.create({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}})


def test_a_server_that_is_not_there_is_unreachable(api: Api, tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        path = tmp_path / "kubeconfig"
        path.write_text(
            f'{{"current-context": "x", "contexts": [{{"name": "x", "context": {{"cluster": "x"}}}}], "clusters": '
            f'[{{"name": "x", "cluster": {{"server": "http://127.0.0.1:{held.getsockname()[1]}"}}}}]}}'
        )
        with pytest.raises(Unreachable, match="refused"):
            Api.of_kubeconfig(path).find("/api/v1/nodes")


def test_a_bad_kubeconfig_is_the_users(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        Api.of_kubeconfig(tmp_path / "nowhere")


def test_a_deployment_that_comes_up_is_waited_for(api: Api) -> None:
    api.create(deployment("fine", 2, containers=[container("sleep", "1000")]), "lab")
    api.wait_available([("lab", "fine"), ("lab", "model")], 20)
    pods = api.items("/api/v1/namespaces/lab/pods", labelSelector="app=fine")
    assert [pod["status"]["phase"] for pod in pods] == ["Running", "Running"]


@pytest.mark.parametrize(
    ("name", "pod", "why"),
    [
        ("nowhere", {"nodeSelector": {"no": "where"}, "containers": [container("sleep", "1")]}, "not scheduled: 0/3"),
        (
            "crashing",
            {"containers": [container("python3", "-c", "raise SystemExit('no such thing')", readinessProbe=NEVER)]},
            "main: CrashLoopBackOff: .*, it ended with code 1, its last words: no such thing",
        ),
        (
            "unready",
            {"containers": [container("sleep", "9", readinessProbe=NEVER)]},
            r"main is not ready \(Readiness probe failed",
        ),
    ],
)
def test_why_a_deployment_does_not_come_up(api: Api, name: str, pod: Json, why: str) -> None:
    api.create(deployment(name, **pod), "lab")
    try:
        with pytest.raises(NotAvailable, match=why) as raised:
            api.wait_available([("lab", name)], 3)
        assert f"deployment lab/{name} did not become available within 3 s: pod {name}-" in str(raised.value)
    finally:
        api.delete(f"/apis/apps/v1/namespaces/lab/deployments/{name}")


def test_what_no_waiting_mends_is_told_at_once(api: Api) -> None:
    """No agent here has images: a status says what a kubelet says of one that was not imported."""
    api.create(deployment("hopeless", containers=[container("sleep", "100", readinessProbe=NEVER)]), "lab")
    message = 'Container image "localhost/x:1" is not present with pull policy of Never'
    waiting = {"waiting": {"reason": "ErrImageNeverPull", "message": message}}
    status = {"name": "main", "ready": False, "state": waiting, "lastState": {}}
    try:
        pods: list[Json] = []
        while not pods or pods[0]["status"]["phase"] != "Running":
            pods = api.items("/api/v1/namespaces/lab/pods", labelSelector="app=hopeless")
        path = f"/api/v1/namespaces/lab/pods/{pods[0]['metadata']['name']}/status"
        patch = {"status": {"containerStatuses": [status]}}
        api.request("PATCH", path, patch, content_type="application/merge-patch+json")
        with pytest.raises(NotAvailable, match=f"available: pod hopeless-.*: main: ErrImageNeverPull: {message}"):
            api.wait_available([("lab", "hopeless")], 60)
    finally:
        api.delete("/apis/apps/v1/namespaces/lab/deployments/hopeless")
