from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.errors import UserError
from chaosrunner.lab import manifests, spec


def test_an_empty_spec_is_a_whole_lab() -> None:
    found = spec.read("{}")
    assert (found.nodes, found.replicas, found.grace, found.pdb) == (3, 2, 30, None)


def test_durations_are_seconds() -> None:
    found = spec.build({"startup": "1m30s", "pre_stop": 2, "kubelet": {"relist": "250ms"}})
    assert (found.startup, found.pre_stop, found.kubelet.relist) == (90, 2, 0.25)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('{"nodse": 3}', "lab:", "nodse"),
        ('{"nodes": 0}', "lab.nodes:", "at least one"),
        ('{"nodes": "3"}', "lab.nodes:", "int"),
        ('{"replicas": -1}', "lab.replicas:", ">= 0"),
        ('{"grace": 1.5}', "lab.grace:", "int"),
        ('{"startup": "2 parsecs"}', "lab.startup:", "no duration"),
        ('{"startup": true}', "lab.startup:", "duration"),
        ('{"warmup": {"first": 1}}', "lab.warmup:", "first"),
        ('{"pdb": {}}', "lab.pdb:", "either"),
        ('{"pdb": {"min_available": 1, "max_unavailable": 1}}', "lab.pdb:", "either"),
        ('{"pdb": {"min_available": "many"}}', "lab.pdb.min_available:", "str"),
        ('{"model": {"sigterm": "explode"}}', "lab.model.sigterm:", "abort, error, hang, drain, ignore"),
        ('{"model": {"sigtrem": "abort"}}', "lab.model.sigtrem:", "sigterm"),
        ('{"model": {"startup": 3}}', "lab.model.startup:", "unknown option"),
        ('{"model": {"max_sequences": 0}}', "lab.model.max_sequences:", "greater than 0"),
        ('{"gateway": {"new_connections": "yes"}}', "lab.gateway.new_connections:", "true or false"),
        ('{"model": {"control": true}}', "lab.model.control:", "unknown option"),
        ('{"gateway": {"policy": "best"}}', "lab.gateway.policy:", "least_request"),
        ('{"addresses": "some"}', "lab.addresses:", "some"),
        ('{"manifests": [{"kind": "Pod"}]}', "lab.manifests[0]:", "apiVersion"),
        ("{nope", "lab:", "JSON"),
    ],
)
def test_a_mistake_is_one_line_that_names_its_place(text: str, where: str, what: str) -> None:
    with pytest.raises(UserError) as raised:
        spec.read(text)
    message = str(raised.value)
    assert message.startswith(where)
    assert what in message
    assert "\n" not in message


def built(**entries: Any) -> dict[str, dict[str, Any]]:
    places = manifests.Places.embedded(
        Path("/state/kubeconfig"), Path("/state/requests"), "127.9.0.4", (8080, 9090, 8000)
    )
    found = manifests.objects(spec.build(entries), places)
    return {f"{obj['kind']}/{obj['metadata']['name']}": obj for obj in found}


def test_the_model_gets_its_options_as_flags() -> None:
    pod = built(model={"max_sequences": 4}, startup=3, warmup={"standstill": "2s"})["Deployment/model"]
    command = pod["spec"]["template"]["spec"]["containers"][0]["command"]
    assert {"--max-sequences=4", "--control", "--startup=3.0", "--warmup-standstill=2.0"} <= set(command)
    assert {"--host=$(POD_IP)", "--port=$(CONTAINER_PORT_HTTP)"} <= set(command)


def test_hooks_and_grace_are_those_of_the_spec() -> None:
    whole = built(pre_stop=5, grace=40)["Deployment/model"]["spec"]["template"]["spec"]
    assert whole["terminationGracePeriodSeconds"] == 40
    assert whole["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}
    part = built(pre_stop=0.5)["Deployment/model"]["spec"]["template"]["spec"]["containers"][0]
    assert part["lifecycle"]["preStop"] == {"exec": {"command": ["sleep", "0.5"]}}
    # The API server refuses a sleep action that is not shorter than the grace period.
    long = built(pre_stop=3, grace=3)["Deployment/model"]["spec"]["template"]["spec"]["containers"][0]
    assert long["lifecycle"]["preStop"] == {"exec": {"command": ["sleep", "3.0"]}}
    assert "lifecycle" not in built()["Deployment/model"]["spec"]["template"]["spec"]["containers"][0]


def test_a_budget_is_made_only_where_asked_for() -> None:
    assert "PodDisruptionBudget/model" not in built()
    assert built(pdb={"max_unavailable": "50%"})["PodDisruptionBudget/model"]["spec"]["maxUnavailable"] == "50%"


def test_alert_rules_reach_the_alert_source() -> None:
    rules = [{"name": "Failing", "expr": "gateway_failed_share > 5%", "for": "3s"}]
    source = built(alerts={"interval": "500ms", "rules": rules})["Deployment/alert-source"]
    command = source["spec"]["template"]["spec"]["containers"][0]["command"]
    rule = next(json.loads(flag.removeprefix("--rule=")) for flag in command if flag.startswith("--rule="))
    assert (rule["alert"], rule["for"]) == ("Failing", "3s")
    assert "--interval=0.5" in command


def test_anti_affinity_keeps_replicas_apart() -> None:
    pod = built(anti_affinity=True)["Deployment/model"]["spec"]["template"]["spec"]
    terms = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms[0]["topologyKey"] == "kubernetes.io/hostname"
    assert "topologySpreadConstraints" not in pod
