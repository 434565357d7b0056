"""Whether the replicas can be reached by their own addresses: real sockets, Pods of the lab's API server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chaosrunner.faults.base import Problem
from chaosrunner.plan.plan import make_plan
from chaosrunner.playbook.load import load_drill
from tests.faults.world import NAMESPACE, World, running

pytestmark = pytest.mark.anyio

NOWHERE = "255.255.255.255"
"""No connection can be made to it, and no packet leaves the machine for it."""


@pytest.fixture
def port() -> Iterator[int]:
    """One that takes connections, on loopback."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


def closed() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number


def world_of(world: World, *addresses: str | list[str], ports: list[dict[str, Any]] | None = None) -> None:
    """A workload whose Pods have these addresses, behind a Service."""
    world.node("n1")
    pods = []
    for index, given in enumerate(addresses):
        ips = [given] if isinstance(given, str) else given
        made = world.pod(f"chat-{index}")
        status = {"phase": "Running", "podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips]}
        world.store.load("pods", [{**made, "status": {**made["status"], **status}}])
        pods.append(world.store.get("pods", f"chat-{index}", NAMESPACE))
    world.service("chat", pods)
    slice_ = world.store.get("endpointslices", "chat-x", NAMESPACE)
    world.store.load("endpointslices", [{**slice_, "ports": ports or slice_["ports"]}])


async def found(world: World, *, probes: str = "replicas", **replicas: Any) -> list[Problem]:
    """What the plan says of reaching the replicas."""
    api = {"apiVersion": "chaosrunner.dev/v1"}
    chat = {"name": "chat", "openai": {"prompt": "x"}}
    direct = {"name": "direct", "target": probes, "openai": {"prompt": "x"}}
    book = {"kind": "Playbook", "metadata": {"name": "b"}, "probes": [chat, direct], "steps": ["baseline"]}
    (world.folder / "b.yaml").write_text(json.dumps(api | book))
    drill = {
        "kind": "Drill",
        "metadata": {"name": "d"},
        "playbook": "./b.yaml",
        "namespace": NAMESPACE,
        "workload": {"selector": "app=chat", "service": "chat"},
        "endpoint": {"url": "http://127.0.0.1:1", "pod_header": "x-pod", "replicas": replicas},
    }
    (world.folder / "d.yaml").write_text(json.dumps(api | drill))
    plan = await make_plan(load_drill(world.folder / "d.yaml"), world.cluster, environ={}, host="laptop")
    mine = [problem for problem in plan.problems if problem.code.startswith(("replica", "no_replica"))]
    assert plan.refused == any(problem.severity == "refuse" for problem in plan.problems)
    return mine


async def test_replicas_that_can_be_reached_are_no_problem(tmp_path: Path, port: int) -> None:
    async with running(tmp_path) as world:
        world_of(world, "127.0.0.1", ports=[{"name": "http", "port": port}])
        assert await found(world) == []
        assert await found(world, port="http") == []
        assert await found(world, port=port) == []
        assert await found(world, probes="endpoint", port=closed()) == []


async def test_a_drill_that_cannot_reach_any_replica_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world_of(world, NOWHERE, NOWHERE)
        (problem,) = await found(world)
        assert (problem.severity, problem.code) == ("refuse", "replicas_unreachable")
        assert problem.text == (
            "no replica can be reached from here, and a probe sends to each: chat-0 (255.255.255.255:8000), "
            "chat-1 (255.255.255.255:8000)"
        )
        assert problem.how is not None
        for way in ("chaosrunner job", "chaosrunner lab exec", "endpoint.replicas.proxy"):
            assert way in problem.how
        # What only the proxy can reach is for the proxy to say.
        assert await found(world, proxy="http://127.0.0.1:3128") == []


async def test_some_out_of_reach_are_a_warning(tmp_path: Path, port: int) -> None:
    async with running(tmp_path) as world:
        world_of(world, "127.0.0.1", NOWHERE, ports=[{"port": port}])
        (problem,) = await found(world)
        assert (problem.severity, problem.code) == ("warn", "replicas_unreachable")
        assert "chat-1" in problem.text
        assert "chat-0" not in problem.text


async def test_a_wrong_port_is_reached_and_refuses(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world_of(world, "127.0.0.1")
        (problem,) = await found(world, port=closed())
        assert (problem.severity, problem.code) == ("warn", "replicas_refused")
        assert problem.how is not None
        assert "endpoint.replicas.port" in problem.how


async def test_of_several_ports_the_drill_must_name_one_that_there_is(tmp_path: Path, port: int) -> None:
    async with running(tmp_path) as world:
        world_of(world, "127.0.0.1", ports=[{"name": "http", "port": port}, {"name": "metrics", "port": 9}])
        (several,) = await found(world)
        (unknown,) = await found(world, port="grpc")
        assert [(one.severity, one.code) for one in (several, unknown)] == [("refuse", "replica_port")] * 2
        assert several.text.startswith("Service chat has several ports, http, metrics:")
        assert unknown.text == "Service chat has no port named grpc; it has http, metrics"
        assert await found(world, port="http") == []


async def test_a_family_that_no_replica_has(tmp_path: Path, port: int) -> None:
    async with running(tmp_path) as world:
        world_of(world, ["127.0.0.1", "::1"], ports=[{"port": port}])
        assert await found(world) == []
        (problem,) = await found(world, family="IPv6")  # the Service is one of IPv4
        assert (problem.severity, problem.code) == ("warn", "no_replica_address")
        (unreached,) = await found(world, family="IPv6", port=closed())
        assert "[::1]:" in unreached.text
