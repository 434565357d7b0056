"""Discovery: what kubectl and the product look up is there, and reads as recorded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.api.recorded import calls, comparable
from tests.labs import Lab

USED = {
    "api-v1": (
        "configmaps", "events", "namespaces", "nodes", "nodes/status", "pods", "pods/ephemeralcontainers",
        "pods/eviction", "pods/log", "pods/status", "secrets", "serviceaccounts", "services",
    ),
    "apps-v1": ("deployments", "deployments/scale", "deployments/status", "replicasets", "replicasets/scale"),
    "policy-v1": ("poddisruptionbudgets", "poddisruptionbudgets/status"),
    "discovery-v1": ("endpointslices",),
}  # fmt: skip


def by_name(body: Any) -> dict[str, Any]:
    return {entry["name"]: comparable(entry) for entry in body["resources"]}


@pytest.mark.parametrize(("label", "name"), [(label, name) for label, names in USED.items() for name in names])
def test_a_resource_is_shown_as_recorded(lab: Lab, label: str, name: str) -> None:
    call = calls()[label]
    answer = lab.admin.request("GET", call["path"])
    assert answer.status == 200
    assert by_name(answer.body)[name] == by_name(call["response"])[name]


@pytest.mark.parametrize(
    ("group", "version"),
    [("apps", "v1"), ("policy", "v1"), ("discovery.k8s.io", "v1"), ("coordination.k8s.io", "v1"),
     ("authorization.k8s.io", "v1"), ("events.k8s.io", "v1"), ("networking.k8s.io", "v1"),
     ("rbac.authorization.k8s.io", "v1")],
)  # fmt: skip
def test_a_group_is_shown_with_its_version(lab: Lab, group: str, version: str) -> None:
    groups = {entry["name"]: entry["preferredVersion"] for entry in lab.admin.request("GET", "/apis").body["groups"]}
    assert groups[group] == {"groupVersion": f"{group}/{version}", "version": version}


@pytest.mark.parametrize("path", ["/api", "/apis"])
def test_clients_that_ask_for_it_get_the_aggregated_form(lab: Lab, path: str) -> None:
    """kubectl takes whichever form it gets by the content type."""
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    answer = lab.admin.request("GET", path, accept=accept)
    assert answer.headers["Content-Type"] == "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    assert answer.body["kind"] == "APIGroupDiscoveryList"


def test_the_version_is_that_of_the_recording(lab: Lab) -> None:
    version = lab.admin.request("GET", "/version").body
    recorded = calls()["version"]["response"]
    assert {name: version[name] for name in ("major", "minor", "gitVersion")} == {
        name: recorded[name] for name in ("major", "minor", "gitVersion")
    }
