"""Network effects on one Pod at a time, as its agents can tell them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaosrunner.faults.ephemeral import Agent, EphemeralContainer
from chaosrunner.faults.network import ALONE, NetworkEffect, Standing
from tests.faults.world import running

pytestmark = pytest.mark.anyio


def effect(kind: Any, **more: Any) -> NetworkEffect:
    return NetworkEffect(kind=kind, duration=10.0, **more)


def hit(pod: dict[str, Any], made: NetworkEffect, state: str) -> dict[str, Any]:
    """The Pod with an agent in it."""
    spec = {"entry": "e1", "start_by": 1.0, **msgspec.to_builtins(made)}
    container = {"name": "chaosrunner-e1", "args": ["network", msgspec.json.encode(spec).decode()]}
    status = {"name": "chaosrunner-e1", "state": {state: {"exitCode": 0}}}
    return pod | {
        "spec": pod["spec"] | {"ephemeralContainers": [container]},
        "status": pod["status"] | {"ephemeralContainerStatuses": [status]},
    }


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "there"])
@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        (effect("rate"), effect("partition"), True),
        (effect("rate"), effect("rate"), True),
        (effect("loss", direction="in"), effect("partition"), False),
        (effect("loss", direction="out"), effect("latency", direction="out"), True),
        (effect("reject"), effect("partition"), False),
        (effect("partition", ports=(8000,)), effect("loss", ports=(8000, 9000)), True),
        (effect("partition", ports=(8000,)), effect("loss", ports=(9000,)), False),
        (effect("partition", peers=("10.0.0.0/8",)), effect("loss", peers=("10.1.2.3/32",)), True),
        (effect("partition", peers=("10.0.0.0/8",)), effect("loss"), True),
        (effect("partition", peer="gateway"), effect("loss", peer="gateway", peers=("10.1.2.3/32",)), True),
        (effect("partition", peer="gateway"), effect("loss", peer="10.0.0.0/8", peers=("10.0.0.0/8",)), False),
        (effect("partition", peers=("10.0.0.0/8",)), effect("loss", peers=("11.0.0.0/8", "fd00::/8")), False),
    ],
)
async def test_packets_that_leave_have_one_fate(
    planned: bool, first: NetworkEffect, second: NetworkEffect, clash: bool, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        pod = world.pod("a")
        if not planned:
            pod = hit(pod, first, "running")
        standing = Standing(effects=(first,)) if planned else ALONE
        problems = await EphemeralContainer(Agent()).check(world.cluster, pod, second, standing)
        assert ([each.code for each in problems] == ["effects_clash"]) == clash
        ended = hit(world.pod("b"), first, "terminated")
        assert "effects_clash" not in [
            each.code for each in await EphemeralContainer(Agent()).check(world.cluster, ended, second)
        ]
