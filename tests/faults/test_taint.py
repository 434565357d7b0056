"""A taint that throws Pods out is held to the drill's limits, past every budget as it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaosrunner.faults.base import PlanContext
from chaosrunner.faults.taint import Taint
from chaosrunner.plan.limits import Guard
from chaosrunner.playbook.limits import Limits
from chaosrunner.timeline.rows import Target
from tests.faults.world import NAMESPACE, World, running

EVERYTHING = {"operator": "Exists"}


async def judged(world: World, guard: Guard, effect: str = "NoExecute") -> tuple[list[str], list[str], str, str | None]:
    """Pods that would go, problems of the plan, and what `apply` came to."""
    node = next(n for n in world.store.list("nodes") if n["metadata"]["name"] == "n1")
    target = Target(kind="Node", name="n1", uid=node["metadata"]["uid"])
    fault = Taint([target], key="k", effect=effect, off_limits=guard.off_limits, too_many=guard.too_many_evictions)
    preview = await fault.plan(PlanContext(cluster=world.cluster, pdbs=[]))
    applied = await fault.apply(world.context())
    gone = [touch.target.name for touch in preview.touches if touch.action == "throw_out"]
    return gone, [problem.text for problem in preview.problems], applied.result, applied.reason


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("limits", "effect", "gone", "said"),
    [
        ({"max_pods": 2}, "NoExecute", ["chat-1", "chat-2"], None),
        ({"max_pods": 1}, "NoExecute", ["chat-1", "chat-2"], "limits.max_pods is 1"),
        ({"max_pods": 2, "labels": "tier=test"}, "NoExecute", ["chat-1", "chat-2"], "outside the drill's limits"),
        ({"max_pods": 1}, "NoSchedule", [], None),
    ],
)
async def test_a_taint_throws_out_no_more_than_the_limits_allow(
    limits: dict[str, Any], effect: str, gone: list[str], said: str | None, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        world.node("n1")
        for name in ("chat-1", "chat-2"):
            world.pod(name)
        world.pod("agent", labels={"app": "agent"}, tolerations=[EVERYTHING])
        found, problems, result, reason = await judged(world, Guard(Limits(**limits), NAMESPACE, 2), effect)
        assert sorted(found) == gone
        assert any(said in text for text in problems) if said else problems == []
        assert (result, said in (reason or "") if said else reason) == (
            ("inconclusive", True) if said else ("ok", None)
        )
        assert bool(world.store.get("nodes", "n1")["spec"].get("taints")) == (said is None)
