from __future__ import annotations

from typing import Any

import pytest

from chaosrunner.plan.lint import endings, kept_spec


def pod(container: dict[str, Any], grace: int | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "engine", **container}]}
    if grace is not None:
        spec["terminationGracePeriodSeconds"] = grace
    return {"spec": spec}


def sleep(seconds: int) -> dict[str, Any]:
    return {"preStop": {"sleep": {"seconds": seconds}}}


@pytest.mark.parametrize(
    ("grace", "prestop", "drain", "margin"),
    # kserve/kserve#5496, vllm-project/vllm#43208: 60 - 15 - 45 leaves nothing before SIGKILL.
    [(60, 15, 45, 0.0), (60, 15, 40, 5.0), (30, 30, 0, 0.0)],
)
def test_margin_of_the_grace_period(grace: int, prestop: int, drain: int, margin: float) -> None:
    container = {"command": ["vllm", "serve"], "args": [f"--shutdown-timeout={drain}"], "lifecycle": sleep(prestop)}
    (ending,) = endings(pod(container, grace))
    assert ending.margin == margin


@pytest.mark.parametrize(
    ("container", "drain"),
    [
        ({"command": ["vllm", "serve", "m"], "args": ["--shutdown-timeout", "45"]}, 45.0),
        ({"command": ["sh", "-c", "exec vllm serve m --shutdown-timeout=20 --port 8000"]}, 20.0),
        ({"image": "vllm/vllm-openai:v0.32.0", "args": ["--model", "m"]}, 0.0),
        ({"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]}, 0.0),
        ({"command": ["model-server"]}, None),
        ({"command": ["model-server", "--shutdown-timeout"]}, None),
    ],
)
def test_drain_limit_from_arguments(container: dict[str, Any], drain: float | None) -> None:
    (ending,) = endings(pod(container))
    assert ending.drain == drain
    assert ending.grace == 30.0


@pytest.mark.parametrize(
    ("lifecycle", "prestop"),
    [
        (None, 0.0),
        (sleep(5), 5.0),
        ({"preStop": {"exec": {"command": ["sleep", "15"]}}}, 15.0),
        ({"preStop": {"exec": {"command": ["/bin/sh", "-c", "sleep 10s; nginx -s quit"]}}}, 10.0),
        ({"preStop": {"exec": {"command": ["sh", "-c", "while busy; do sleep 1; done"]}}}, None),
        ({"preStop": {"httpGet": {"path": "/drain", "port": 8000}}}, None),
    ],
)
def test_length_of_the_hook(lifecycle: dict[str, Any] | None, prestop: float | None) -> None:
    (ending,) = endings(pod({"lifecycle": lifecycle} if lifecycle else {}))
    assert ending.prestop == prestop


def test_the_kept_spec_explains_the_end_and_hides_secrets() -> None:
    container = {
        "command": ["vllm", "serve"],
        "args": ["--api-key", "s3cret", "--hf-token=abc", "--max-num-batched-tokens", "8"],
        "env": [{"name": "TOKEN", "value": "abc"}],
        "lifecycle": sleep(5),
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
    }
    kept = kept_spec(pod(container, 90))
    assert kept["terminationGracePeriodSeconds"] == 90
    (engine,) = kept["containers"]
    assert engine["args"] == ["--api-key", "[redacted]", "--hf-token=[redacted]", "--max-num-batched-tokens", "8"]
    assert engine["lifecycle"] == sleep(5)
    assert "env" not in engine
