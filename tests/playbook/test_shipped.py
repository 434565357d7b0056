"""The playbooks and drills that ship, and the JSON Schema that editors see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from chaosrunner.lab.spec import build as build_lab
from chaosrunner.playbook import load_drill, load_playbook, locate, validate
from chaosrunner.playbook.expressions import ALERT_STATES, METRICS
from chaosrunner.playbook.schema import schema

from .files import DRILL, PLAYBOOK

PLAYBOOKS = sorted(locate.available("playbooks"))
DRILLS = sorted(locate.available("drills"))
LAB_DRILLS = [name for name in DRILLS if name.startswith("lab-")]


def test_what_ships() -> None:
    assert PLAYBOOKS == [
        "cordon-and-rollback", "delete-pod", "drain-node", "evict-one-replica", "freeze-engine", "gateway-delay",
        "grey-replica", "isolate-replica", "kill-container", "kill-engine", "lossy-replica", "node-loss",
        "rolling-restart-under-load", "scale-down-under-load", "slow-replica",
    ]  # fmt: skip
    assert {load_drill(name).playbook.metadata.name for name in LAB_DRILLS} == set(PLAYBOOKS)


@pytest.mark.parametrize("name", PLAYBOOKS + DRILLS)
def test_shipped_files_have_no_problem_and_their_own_name(name: str) -> None:
    path = {**locate.available("playbooks"), **locate.available("drills")}[name]
    assert validate(path) == []
    loaded = load_playbook(path) if name in PLAYBOOKS else load_drill(path).drill
    assert loaded.metadata.name == name
    assert loaded.description


@pytest.mark.parametrize("name", LAB_DRILLS)
def test_lab_drills_describe_a_lab_that_the_lab_understands(name: str) -> None:
    bound = load_drill(name)
    bound.check_lab()
    assert bound.drill.lab is not None
    lab = build_lab(bound.drill.lab.spec())
    assert lab.startup == bound.drill.lab.startup
    gateway = bound.drill.lab.gateway
    assert gateway is not None
    assert gateway.pod_header == bound.drill.endpoint.pod_header


@pytest.mark.parametrize("name", LAB_DRILLS)
def test_every_duration_of_a_lab_drill_can_be_shortened(name: str) -> None:
    given: dict[str, str] = {
        key: "2s" for key in ("baseline", "hold", "patience", "exposure") if key in load_drill(name).parameters
    }
    given |= {"lab.startup": "500ms", "lab.warmup.first_token": "100ms", "lab.warmup.standstill": "200ms"}
    bound = load_drill(name, given)
    assert bound.parameters["hold"] == 2.0
    assert bound.drill.lab is not None
    assert build_lab(bound.drill.lab.spec()).warmup.standstill == 0.2


def test_the_graceful_twin_differs_only_in_how_the_replicas_end() -> None:
    abrupt, graceful = (load_drill(name) for name in ("lab-evict-one-replica", "lab-evict-one-replica-graceful"))
    assert abrupt.playbook == graceful.playbook
    assert abrupt.parameters == graceful.parameters
    assert abrupt.drill.lab is not None
    assert graceful.drill.lab is not None
    one, other = abrupt.drill.lab.spec(), graceful.drill.lab.spec()
    assert {key for key in one | other if one.get(key) != other.get(key)} == {"model", "pre_stop"}
    assert (one["model"]["sigterm"], other["model"]["sigterm"]) == ("abort", "drain")
    # kubernetes/kubernetes: preStop and the engine's drain share the grace period
    assert other["grace"] > other["pre_stop"] + other["model"]["drain_timeout"]
    assert other["pre_stop"] > other["gateway"]["propagation_delay"]


def test_the_example_for_a_real_cluster_asks_for_its_key_only_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIBRIX_API_KEY", raising=False)
    bound = load_drill("aibrix-vllm-example")
    bound.check_environment()
    assert bound.drill.endpoint.pod_header == "target-pod"
    assert bound.drill.endpoint.headers == {"routing-strategy": "least-request"}
    monkeypatch.setenv("AIBRIX_API_KEY", "k")
    assert bound.drill.endpoint.api_key is not None
    assert bound.drill.endpoint.api_key.resolve() == "k"


# --- schema -------------------------------------------------------------------------------------------------


def errors(kind: Any, data: Any) -> list[str]:
    return [error.json_path for error in Draft202012Validator(schema(kind)).iter_errors(data)]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_shipped_playbooks_fit_the_schema(name: str) -> None:
    assert errors("playbook", read(locate.available("playbooks")[name])) == []


@pytest.mark.parametrize("name", DRILLS)
def test_shipped_drills_fit_the_schema(name: str) -> None:
    assert errors("drill", read(locate.available("drills")[name])) == []


@pytest.mark.parametrize("kind", ["playbook", "drill"])
def test_the_schema_is_one_and_describes_every_field(kind: Any) -> None:
    found = schema(kind)
    Draft202012Validator.check_schema(found)
    for name, definition in {**found["$defs"], kind: found}.items():
        for key, field in definition.get("anyOf", [definition])[0].get("properties", {}).items():
            assert field.get("description") or "$ref" in field, f"{name}.{key}"


@pytest.mark.parametrize(
    ("keys", "value", "fits"),
    [
        (("steps", 0), "baseline", True),
        (("steps", 0), {"uncordon": None}, True),
        (("steps", 0), {"baseline": {}, "hold": {"for": 1}}, False),
        (("steps", 0), {"name": "nothing"}, False),
        (("steps", 0), "evct", False),
        (("steps", 0, "baseline", "for"), "1h30m", True),
        (("steps", 0, "baseline", "for"), 1.5, True),
        (("steps", 0, "baseline", "for"), "${time}", True),
        (("steps", 0, "baseline", "for"), "long", False),
        (("steps", 0, "baseline", "fro"), "1s", False),
        (("steps", 1, "evict", "pods"), "50%", True),
        (("steps", 1, "evict", "pods"), "${count}", True),
        (("steps", 1, "evict", "pods"), 0, False),
        (("steps", 1, "evict", "dry_run"), "${flag}", True),
        (("steps", 1, "evict", "dry_run"), "yes", False),
        (("steps", 1, "evict", "expect"), 429, True),
        (("steps", 1, "evict", "expect"), "blocked_by_budget", True),
        (("steps", 1, "evict", "expect"), "blocked", False),
        (("steps", 1, "evict", "from"), {"node": "a", "selector": "b"}, False),
        (("checks", 0), {"check": "exposed > 1", "confidence": "95%"}, True),
        (("checks", 0), {"name": "only a name"}, False),
        (("probes", 0, "openai"), None, False),
        (("probes", 0, "load", "closed", "concurrency"), "four", False),
        (("probes", 0, "load"), {"open": {"stages": [{"rps": "${rate}", "to": 9.5, "for": "1m"}]}}, True),
        (("probes", 0, "load"), {"open": {"stages": [{"rps": 5}]}}, False),
        (("probes", 0, "load"), {"open": {"stages": []}}, False),
        (("probes", 0, "load"), {}, False),
        (("probes", 0, "cancel_after"), {"chunks": 3, "share": "10%"}, True),
        (("probes", 0, "cancel_after"), {"chunks": 3, "time": "1s"}, False),
        (("probes", 0, "headers"), {"x-tenant": "a"}, True),
        (("kind",), "Drill", False),
        (("kind",), "${kind}", False),
    ],
)
def test_what_the_schema_of_playbooks_takes(keys: tuple[Any, ...], value: Any, fits: bool) -> None:
    data = yaml.safe_load(PLAYBOOK)
    here = data
    for key in keys[:-1]:
        here = here[key]
    here[keys[-1]] = value
    assert (errors("playbook", data) == []) is fits


def test_the_schema_of_drills_takes_a_drill_and_no_plain_credential() -> None:
    data = yaml.safe_load(DRILL)
    assert errors("drill", data) == []
    data["endpoint"]["api_key"] = "sk-1"
    assert errors("drill", data) == ["$.endpoint.api_key"]


def test_every_metric_is_described() -> None:
    assert all(known.doc for known in METRICS.values())
    assert set(ALERT_STATES) == {"inactive", "pending", "firing"}
